"""Reward by a judge: the completions of a prompt are compared in pairs, and the reward is the share of wins.

Judges are biased towards the first or the second position. So every pair is shown in both orders, and the
two preferences are averaged.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

from reflectrl.core.episodes.log import drop_half_line
from reflectrl.core.json_lines import read_json_lines
from reflectrl.core.prompts.messages import said
from reflectrl.core.prompts.tokens import beginning
from reflectrl.core.terminal import note_once
from reflectrl.core.types import UserError
from reflectrl.serving.endpoints.client import Ask, Endpoint
from reflectrl.serving.endpoints.config import EndpointConfig
from reflectrl.serving.endpoints.journal import Budget, Journal
from reflectrl.serving.endpoints.parsing import PREFERENCE, read_verdict
from reflectrl.serving.endpoints.ranking import UNREAD, VERDICTS, both_ways, require_readable, standings
from reflectrl.wings.text.generation.judge import compare_request
from reflectrl.wings.text.rewards.base import Component, response_of
from reflectrl.wings.text.rewards.total import key_and_number
from reflectrl.wings.text.samples.sample import Sample

Pair = tuple[str, str, str]
"""A prompt, the answer that is shown first, and the answer that is shown second."""
AT_ONCE = 16
"""Number of questions per batch. Verdicts are saved after each batch."""


class Judge(Protocol):
    """A judge that compares two answers to a prompt."""

    name: str
    """Name of the judge, which identifies its saved verdicts."""

    def preferences(self, pairs: Sequence[Pair]) -> Sequence[float | None]:
        """Return the preference for each pair's first answer, from 0 to 1. 0.5 is a tie, None cannot be read."""
        ...


class EndpointJudge:
    """A judge model behind an OpenAI-compatible API, which answers A, B or TIE. Any other answer is left out."""

    def __init__(self, config: EndpointConfig, journal: Journal) -> None:
        self.endpoint, self.name = Endpoint(config, journal), f"{config.base_url} {config.model}"

    def preferences(self, pairs: Sequence[Pair]) -> list[float | None]:
        """Ask one question per pair; UserError if the server gives no answer."""
        asks = [Ask([said("user", compare_request(*pair))], 16) for pair in pairs]
        answers = self.endpoint.complete_all(asks)
        return [PREFERENCE[read_verdict(answer, cut=answer.ending == "cut")] for answer in answers]


class LocalJudge:
    """A causal language model on this machine as judge: P("A") against P("B") after the question, without ties."""

    def __init__(self, model: str) -> None:
        from reflectrl.core.config import ModelConfig
        from reflectrl.models.load import load_model
        from reflectrl.models.players import Policy

        self.lm = load_model(model, ModelConfig(source=model, mixed_precision="off"), "policy")
        self.policy, self.name = Policy(self.lm, scoring="sum"), f"local {model}"

    def preferences(self, pairs: Sequence[Pair]) -> list[float]:
        """Run one forward pass per pair; UserError if a pair does not fit the model's context."""
        return [self._preference(pair) for pair in pairs]

    def _preference(self, pair: Pair) -> float:
        request = self.lm.encode(f"{compare_request(*pair)}\n\nAnswer:")
        ids = (*beginning(self.lm.tokenizer), *request)
        if len(ids) + 4 > self.lm.context:
            raise UserError(f"reward tournament: a question of {len(ids)} tokens does not fit {self.name}")
        with self.lm.playing():
            logits_PA, _ = self.policy.logits([ids], [("A", "B")])
        return float(logits_PA[0].softmax(-1)[0])


class Tournament(Component):
    """Rank the completions of each prompt by a judge's comparisons of pairs, as a number in [0, 1].

    Each of n distinct completions gets its mean preference over the n - 1 others: 1 if it beats all, 0 if it loses to
    all, 0.5 for ties or if there is no other. Equal completions get equal numbers. The judge is asked n (n - 1) times
    per prompt, and never twice about the same pair in the same order.

    Args:
        model: the judge model: a folder or hub name on this machine or, with `base_url`, its name on the server.
        base_url: base URL of a server's API, such as "http://127.0.0.1:8000/v1". Prompts and completions are sent
            there.
        key_env: environment variable with the server's API key, if it needs one.
        max_requests: largest number of requests per run, including retries; 0 sets no limit.
    """

    reported = 0
    """Number of unreadable verdicts at the last remark about them."""
    by_group = True
    """True: a score depends on the prompt's other completions, so verdicts are cached instead of scores."""

    def __init__(self, model: str, base_url: str = "", key_env: str = "", max_requests: int = 0) -> None:
        self.model, self.base_url, self.key_env, self.max_requests = model, base_url, key_env, max_requests

    @cached_property
    def judge(self) -> Judge:
        """Judge, loaded at its first use."""
        if not self.base_url:
            return LocalJudge(self.model)
        journal = Journal(self.folder / "judge.jsonl" if self.folder else None, Budget(requests=self.max_requests))
        return EndpointJudge(EndpointConfig(self.base_url, self.model, self.key_env), journal)

    @cached_property
    def counts(self) -> Counter[str]:
        """Numbers of verdicts of this process, and of those that cannot be read."""
        return Counter()

    @cached_property
    def verdicts(self) -> dict[str, float | None]:
        """Preferences by question, starting with the preferences in the file. None cannot be read, and is not kept."""
        return {} if self.path is None else _read(self.path)

    @cached_property
    def path(self) -> Path | None:
        """File of the judge's verdicts; None if nothing is kept between runs."""
        name = hashlib.sha256(self.judge.name.encode()).hexdigest()[:16]
        return None if self.folder is None else self.folder / f"verdicts-{name}.jsonl"

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Return the standing of each sample among the completions of its prompt."""
        groups: dict[str, dict[str, None]] = {}
        for sample in samples:
            groups.setdefault(sample.prompt, {})[response_of(sample)] = None
        self._ask([(prompt, *pair) for prompt, texts in groups.items() for pair in both_ways(list(texts))])
        by_prompt: dict[str, Mapping[str, float]] = {}
        for prompt, texts in groups.items():

            def preferred(first: str, second: str, prompt: str = prompt) -> float | None:
                return self._preference_of((prompt, first, second))

            by_prompt[prompt] = standings(list(texts), preferred)
        return [by_prompt[sample.prompt][response_of(sample)] for sample in samples]

    def _ask(self, pairs: Sequence[Pair]) -> None:
        """Ask the judge about pairs without a verdict, in small batches, and save the verdicts after each batch."""
        pending = [pair for pair in dict.fromkeys(pairs) if self._key(pair) not in self.verdicts]
        for start in range(0, len(pending), AT_ONCE):
            part = pending[start : start + AT_ONCE]
            new_verdicts = {
                self._key(pair): preference for pair, preference in zip(part, self.judge.preferences(part), strict=True)
            }
            self.verdicts.update(new_verdicts)
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a", encoding="utf-8") as file:
                    readable = (pair for pair in new_verdicts.items() if pair[1] is not None)
                    file.writelines(f"{json.dumps(pair)}\n" for pair in readable)
            self.counts[VERDICTS] += len(part)
            self.counts[UNREAD] += sum(preference is None for preference in new_verdicts.values())
            require_readable(self.counts, "name another model for the reward tournament")
        unread, asked = self.counts[UNREAD], self.counts[VERDICTS]
        if unread >= 2 * self.reported and unread:
            self.reported = unread
            note_once(f"reward tournament: {unread} of {asked} verdicts so far cannot be read, and are left out")

    def _preference_of(self, pair: Pair) -> float | None:
        return self.verdicts[self._key(pair)]

    def _key(self, pair: Pair) -> str:
        return hashlib.sha256(json.dumps([self.judge.name, *pair]).encode()).hexdigest()[:24]


def _read(path: Path) -> dict[str, float | None]:
    drop_half_line(path)
    if not path.exists():
        return {}
    return dict(
        row
        for _, row in read_json_lines(path, key_and_number, "not a verdict", "remove the file to ask the judge again")
    )
