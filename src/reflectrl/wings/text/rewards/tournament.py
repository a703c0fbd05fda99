"""A judge as reward: the completions of a prompt meet in pairs; each is worth the share of its meetings that it won.

A judge prefers what it reads first, or second; so every pair is shown in both orders, and their mean counts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from reflectrl.endpoints.client import Ask, Endpoint
from reflectrl.endpoints.config import EndpointConfig
from reflectrl.endpoints.journal import Budget, Journal
from reflectrl.endpoints.ranking import both_ways, standings
from reflectrl.episodes.log import drop_half_line
from reflectrl.prompts.messages import said
from reflectrl.prompts.tokens import beginning
from reflectrl.types import UserError
from reflectrl.wings.text.generation.judge import compare_request, read_verdict
from reflectrl.wings.text.rewards.base import Component, response_of
from reflectrl.wings.text.samples.sample import Sample

Pair = tuple[str, str, str]
"""A prompt, the answer that is shown first, and the one that is shown second."""
AT_ONCE = 16
"""Questions after whose answers those are kept."""


class Judge(Protocol):
    """Who compares."""

    name: str
    """Identifies it, in what is kept of its verdicts."""

    def preferences(self, pairs: Sequence[Pair]) -> list[float]:
        """How much each first answer is preferred to the second: 1, 0, or between; 0.5 is a tie."""
        ...


class EndpointJudge:
    """A model behind an OpenAI-compatible address, which answers A, B or TIE; what it says otherwise is a tie."""

    def __init__(self, config: EndpointConfig, journal: Journal) -> None:
        self.endpoint, self.name = Endpoint(config, journal), f"{config.base_url} {config.model}"

    def preferences(self, pairs: Sequence[Pair]) -> list[float]:
        """One question per pair; UserError where the server gives no answer."""
        asks = [Ask([said("user", compare_request(*pair))], 16) for pair in pairs]
        verdicts = map(read_verdict, self.endpoint.complete_all(asks))
        return [{"first": 1.0, "second": 0.0}.get(verdict, 0.5) for verdict in verdicts]


class LocalJudge:
    """A causal language model on this machine: P("A") against P("B") behind the question. Never a tie by rule."""

    def __init__(self, model: str) -> None:
        from reflectrl.config import ModelConfig
        from reflectrl.models.load import load_model
        from reflectrl.players.policy import Policy

        self.lm = load_model(model, ModelConfig(source=model, mixed_precision="off"), "policy")
        self.policy, self.name = Policy(self.lm, scoring="sum"), f"local {model}"

    def preferences(self, pairs: Sequence[Pair]) -> list[float]:
        """One pass per pair; UserError where a pair does not fit the model's context."""
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
    """Ranks the completions of each prompt by what a judge says of their pairs, as a number in [0, 1].

    Of n different completions, each gets the mean over the n - 1 others of how much it is preferred to them: 1 for one
    that beats all, 0 for one that loses to all, 0.5 for ties, and for one that is alone. Equal completions get equal
    numbers. The judge is asked n (n - 1) times per prompt, and never twice about the same pair in the same order.

    Args:
        model: of the judge: a folder or hub name on this machine, or, with `base_url`, the server's name for it.
        base_url: where the API of a server begins, such as "http://127.0.0.1:8000/v1". Prompts and completions are sent
            there.
        key_env: the environment variable that holds the server's key, if it asks for one.
        max_requests: budget of the run, retries included; 0 sets no limit.
    """

    by_group = True
    """A number depends on the other completions of the prompt, so it is not kept; the verdicts are."""

    def __init__(self, model: str, base_url: str = "", key_env: str = "", max_requests: int = 0) -> None:
        self.model, self.base_url, self.key_env, self.max_requests = model, base_url, key_env, max_requests

    @cached_property
    def judge(self) -> Judge:
        """The judge, loaded when it is asked for the first time."""
        if not self.base_url:
            return LocalJudge(self.model)
        journal = Journal(self.folder / "judge.jsonl" if self.folder else None, Budget(requests=self.max_requests))
        return EndpointJudge(EndpointConfig(self.base_url, self.model, self.key_env), journal)

    @cached_property
    def verdicts(self) -> dict[str, float]:
        """Preferences by question, those of the file included."""
        return {} if self.path is None else _read(self.path)

    @cached_property
    def path(self) -> Path | None:
        """The file of the judge's verdicts; None where nothing is kept between calls."""
        name = hashlib.sha256(self.judge.name.encode()).hexdigest()[:16]
        return None if self.folder is None else self.folder / f"verdicts-{name}.jsonl"

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """One number per sample: its standing among the completions of its prompt."""
        groups: dict[str, dict[str, None]] = {}
        for sample in samples:
            groups.setdefault(sample.prompt, {})[response_of(sample)] = None
        self._ask([(prompt, *pair) for prompt, texts in groups.items() for pair in both_ways(list(texts))])
        found: dict[str, Mapping[str, float]] = {}
        for prompt, texts in groups.items():

            def preferred(one: str, other: str, prompt: str = prompt) -> float:
                return self._known((prompt, one, other))

            found[prompt] = standings(list(texts), preferred)
        return [found[sample.prompt][response_of(sample)] for sample in samples]

    def _ask(self, pairs: Sequence[Pair]) -> None:
        """Ask what is not known yet, a few at a time, each of which is kept at once."""
        left = [pair for pair in dict.fromkeys(pairs) if self._key(pair) not in self.verdicts]
        for start in range(0, len(left), AT_ONCE):
            part = left[start : start + AT_ONCE]
            new = {self._key(pair): said for pair, said in zip(part, self.judge.preferences(part), strict=True)}
            self.verdicts.update(new)
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a", encoding="utf-8") as file:
                    file.writelines(f"{json.dumps(pair)}\n" for pair in new.items())

    def _known(self, pair: Pair) -> float:
        return self.verdicts[self._key(pair)]

    def _key(self, pair: Pair) -> str:
        return hashlib.sha256(json.dumps([self.judge.name, *pair]).encode()).hexdigest()[:24]


def _read(path: Path) -> dict[str, float]:
    drop_half_line(path)
    if not path.exists():
        return {}
    try:
        rows: list[Any] = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        return {str(key): float(said) for key, said in rows}
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is no file of verdicts; remove it to ask anew") from error
