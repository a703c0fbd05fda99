"""Win rates by a judge model behind an OpenAI-compatible API, which sees every pair of answers in both orders."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined

from reflectrl.core.episodes.log import drop_half_line
from reflectrl.core.json_lines import parse_json, read_json_lines
from reflectrl.core.prompts.messages import said
from reflectrl.core.statistics import mean_interval
from reflectrl.core.types import UserError
from reflectrl.serving.endpoints.answers import without_thinking
from reflectrl.serving.endpoints.client import Ask, Endpoint
from reflectrl.serving.endpoints.journal import Cost
from reflectrl.serving.endpoints.parsing import Verdict, read_verdict
from reflectrl.wings.text.samples.sample import Sample


@lru_cache(maxsize=1)
def _words() -> Any:
    source = files("reflectrl.wings.text.generation").joinpath("judge.j2").read_text(encoding="utf-8")
    return Environment(undefined=StrictUndefined).from_string(source).module


def compare_request(prompt: str, first: str, second: str, criteria: Sequence[str] = ()) -> str:
    """Return the question to a judge about two answers to a prompt.

    Args:
        criteria: adjectives, such as "helpful" and "safe". The judge gives a verdict on each. Without any, it gives one
            verdict on everything.
    """
    return str(_words().compare(prompt.strip(), first.strip(), second.strip(), criteria))


OVERALL = "overall"
"""Name of the only verdict if there are no criteria."""
CRITERION = re.compile(r"[a-z][a-z-]*( [a-z][a-z-]*)*")
"""Form of a criterion: words in lower case."""
ORDERS = ("ours first", "theirs first")
POINTS: Mapping[tuple[str, Verdict], int] = {
    ("ours first", "first"): 1,
    ("ours first", "second"): -1,
    ("theirs first", "first"): -1,
    ("theirs first", "second"): 1,
}
"""Points of our answer by order and verdict. Ties and unclear answers give no points."""


class Question(NamedTuple):
    """One pair of answers in one order."""

    id: str
    order: str
    request: str

    def key(self, judge: str, criterion: str) -> str:
        """Return a hash of the judge's name, the full question, and the criterion of a verdict."""
        text = f"{judge}\x1f{self.request}"
        if criterion != OVERALL:  # so that verdicts of earlier versions, which had no criteria, still count
            text += f"\x1f{criterion}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Wins:
    """Wins, ties and losses of our answers against theirs, counted by prompt.

    A prompt is won if the verdicts in both orders together favour our answer, lost if they favour theirs, and a tie
    otherwise. So a judge that always prefers the first answer gives only ties. A prompt without a verdict that can be
    read is none of these, and left out of all rates.

    Attributes:
        unclear: number of verdicts (two per prompt) that named neither answer.
        unread: number of prompts whose verdicts were both unclear.
        swayed: prompts on which the judge preferred the same position, not the same answer, in both orders.
    """

    wins: int
    ties: int
    losses: int
    unclear: int
    swayed: int
    unread: int = 0

    @property
    def compared(self) -> int:
        """Number of prompts with a verdict that can be read."""
        return self.wins + self.ties + self.losses

    @property
    def too_few(self) -> bool:
        """True if so many prompts have no verdict that the rest says little about all of them."""
        return self.unread >= max(1, self.compared)

    @property
    def rate(self) -> float:
        """Share of wins among the compared prompts, with ties as half."""
        return (self.wins + self.ties / 2) / max(1, self.compared)

    def interval(self, confidence: float) -> tuple[float, float] | None:
        """Return Student's t interval of the rate over prompts; None for fewer than two prompts."""
        return mean_interval([1.0] * self.wins + [0.5] * self.ties + [0.0] * self.losses, confidence)


def judge(
    ours: Sequence[Sample],
    theirs: Sequence[Sample],
    endpoint: Endpoint,
    path: Path,
    threads: int = 4,
    max_tokens: int = 16,
    progress: Callable[[int, int], None] = lambda done, total: None,
    begin: Callable[[Cost], None] = lambda cost: None,
    criteria: Sequence[str] = (),
) -> dict[str, Wins]:
    """Ask a judge to compare two models' completions of the same prompts.

    Args:
        path: file to which every verdict is appended. Questions with all their verdicts are not asked again, except for
            unclear ones: the endpoint's journal knows the same question, but not one with a larger `max_tokens`.
        threads: questions per batch; verdicts are written after each batch.
        max_tokens: longest answer of the judge in tokens. A judge that reasons before it answers needs more.
        progress: progress callback; receives the number of answers so far and in total.
        begin: receives, before the first question, an estimate of the largest total cost.
        criteria: adjectives by which the judge compares (`compare_request`).

    Returns:
        The wins by criterion; of "overall" if there are no criteria.

    Raises:
        UserError: a prompt has no completion by the other model, the file holds anything but verdicts, a criterion is
            no adjective, the budget is spent, or the server does not answer.
    """
    for criterion in criteria:
        if not CRITERION.fullmatch(criterion) or list(criteria).count(criterion) > 1:
            raise UserError(f"judge: {criterion!r} is not a criterion; name different adjectives: helpful,safe")
    others = {sample.prompt: sample.completion for sample in theirs}
    questions = []
    for sample in ours:
        if sample.prompt not in others:
            raise UserError(f"judge: the other model has no completion of prompt {sample.id!r}")
        texts = (sample.completion, others[sample.prompt])
        request, reverse = (compare_request(sample.prompt, *pair, criteria) for pair in (texts, texts[::-1]))
        questions += [Question(sample.id, ORDERS[0], request), Question(sample.id, ORDERS[1], reverse)]
    names, judge_name = list(criteria) or [OVERALL], f"{endpoint.where} {endpoint.name}"
    verdicts = _read(path)
    pending = []
    for question in questions:
        if any(verdicts.get(question.key(judge_name, name), "unclear") == "unclear" for name in names):
            pending.append(question)
    asks = [Ask([said("user", question.request)], max_tokens) for question in pending]
    begin(endpoint.estimate(asks))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for start in range(0, len(pending), threads):
            part = slice(start, start + threads)
            for question, answer in zip(pending[part], endpoint.complete_all(asks[part]), strict=True):
                for name, verdict in read_verdicts(answer, criteria, cut=answer.ending == "cut").items():
                    key = question.key(judge_name, name)
                    if verdicts.get(key) in ("first", "second", "tie", verdict):
                        continue
                    verdicts[key] = verdict
                    row = {"key": key, "id": question.id, "order": question.order, "verdict": verdict}
                    file.write(json.dumps(row if name == OVERALL else {**row, "criterion": name}) + "\n")
                file.flush()
            progress(len(questions) - len(pending) + min(start + threads, len(pending)), len(questions))
    return {name: count({(q.id, q.order): verdicts[q.key(judge_name, name)] for q in questions}) for name in names}


def read_verdicts(answer: str, criteria: Sequence[str], cut: bool = False) -> dict[str, Verdict]:
    """Return the verdict on each criterion; of "overall" if there are no criteria.

    An answer has a line like "helpful: A" for each criterion, perhaps with reasons before them, so the last such line
    counts. A criterion without a line is unclear.

    Args:
        cut: True if the answer ended at its largest length.
    """
    if not criteria:
        return {OVERALL: read_verdict(answer, cut)}
    visible, verdicts = without_thinking(answer), dict[str, Verdict]()
    for criterion in criteria:
        lines = re.findall(rf"(?im)^[^\w\n]*+(?:more )?{re.escape(criterion)}\W*:(.*)$", visible)
        verdicts[criterion] = read_verdict(lines[-1]) if lines else "unclear"
    return verdicts


def count(verdicts: Mapping[tuple[str, str], Verdict]) -> Wins:
    """Count wins, ties and losses from the verdicts in both orders."""
    points: Counter[str] = Counter()
    for (name, order), verdict in verdicts.items():
        if verdict != "unclear":
            points[name] += POINTS.get((order, verdict), 0)
    names, swayed = list(points), 0
    for name in names:  # the same place wins in both orders: the judge went by the order, not by the texts
        first, *rest = [verdicts[name, order] for order in ORDERS]
        swayed += first in ("first", "second") and all(verdict == first for verdict in rest)
    return Wins(
        wins=sum(points[name] > 0 for name in names),
        ties=sum(points[name] == 0 for name in names),
        losses=sum(points[name] < 0 for name in names),
        unclear=sum(verdict == "unclear" for verdict in verdicts.values()),
        swayed=swayed,
        unread=len({name for name, _ in verdicts}) - len(names),
    )


def _read(path: Path) -> dict[str, Verdict]:
    drop_half_line(path)
    if not path.exists():
        return {}
    rows = read_json_lines(path, _key_and_verdict, "not a verdict", "remove the file to ask the judge again")
    return dict(row for _, row in rows)


def _key_and_verdict(line: str) -> tuple[str, Verdict]:
    row = parse_json(line)
    return row["key"], row["verdict"]
