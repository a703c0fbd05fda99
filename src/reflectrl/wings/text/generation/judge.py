"""Win rates by a judge model behind an OpenAI-compatible API, which sees every pair of answers in both orders."""

from __future__ import annotations

import hashlib
import json
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
from reflectrl.serving.endpoints.client import Ask, Endpoint
from reflectrl.serving.endpoints.journal import Cost
from reflectrl.serving.endpoints.parsing import Verdict, read_verdict
from reflectrl.wings.text.samples.sample import Sample


@lru_cache(maxsize=1)
def _words() -> Any:
    source = files("reflectrl.wings.text.generation").joinpath("judge.j2").read_text(encoding="utf-8")
    return Environment(undefined=StrictUndefined).from_string(source).module


def compare_request(prompt: str, first: str, second: str) -> str:
    """Return the question to a judge about two answers to a prompt."""
    return str(_words().compare(prompt.strip(), first.strip(), second.strip()))


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

    def key(self, judge: str) -> str:
        """Return a hash of the judge's name and the full question."""
        return hashlib.sha256(f"{judge}\x1f{self.request}".encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Wins:
    """Wins, ties and losses of our answers against theirs, counted by prompt.

    A prompt is won if the verdicts in both orders together favour our answer, lost if they favour theirs, and a tie
    otherwise. So a judge that always prefers the first answer gives only ties.

    Attributes:
        unclear: number of verdicts (two per prompt) that named neither answer.
        swayed: prompts on which the judge preferred the same position, not the same answer, in both orders.
    """

    wins: int
    ties: int
    losses: int
    unclear: int
    swayed: int

    @property
    def rate(self) -> float:
        """Share of wins, with ties as half."""
        return (self.wins + self.ties / 2) / max(1, self.wins + self.ties + self.losses)

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
) -> Wins:
    """Ask a judge to compare two models' completions of the same prompts.

    Args:
        path: file to which every verdict is appended. Questions with a verdict are not asked again.
        threads: questions per batch; verdicts are written after each batch.
        max_tokens: longest answer of the judge in tokens. A judge that reasons before it answers needs more.
        progress: progress callback; receives the number of answers so far and in total.
        begin: receives, before the first question, an estimate of the largest total cost.

    Raises:
        UserError: a prompt has no completion by the other model, the file holds anything but verdicts, the budget is
            spent, or the server does not answer.
    """
    others = {sample.prompt: sample.completion for sample in theirs}
    questions = []
    for sample in ours:
        if sample.prompt not in others:
            raise UserError(f"judge: the other model has no completion of prompt {sample.id!r}")
        texts = (sample.completion, others[sample.prompt])
        questions.append(Question(sample.id, ORDERS[0], compare_request(sample.prompt, *texts)))
        questions.append(Question(sample.id, ORDERS[1], compare_request(sample.prompt, *reversed(texts))))
    verdicts, name = _read(path), f"{endpoint.where} {endpoint.name}"
    pending = [question for question in questions if question.key(name) not in verdicts]
    asks = [Ask([said("user", question.request)], max_tokens) for question in pending]
    begin(endpoint.estimate(asks))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for start in range(0, len(pending), threads):
            part = slice(start, start + threads)
            for question, answer in zip(pending[part], endpoint.complete_all(asks[part]), strict=True):
                verdict = verdicts[question.key(name)] = read_verdict(answer)
                row = {"key": question.key(name), "id": question.id, "order": question.order, "verdict": verdict}
                file.write(json.dumps(row) + "\n")
                file.flush()
            progress(len(questions) - len(pending) + min(start + threads, len(pending)), len(questions))
    return count({(q.id, q.order): verdicts[q.key(name)] for q in questions})


def count(verdicts: Mapping[tuple[str, str], Verdict]) -> Wins:
    """Count wins, ties and losses from the verdicts in both orders."""
    points: Counter[str] = Counter()
    for (name, order), verdict in verdicts.items():
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
