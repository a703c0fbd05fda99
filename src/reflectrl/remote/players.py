"""Policy and reflector whose model is computed by servers while they play. While they learn, it is computed here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from scipy.special import log_softmax

from reflectrl.models.backend import Written
from reflectrl.models.sharing import Ids, KVCache
from reflectrl.players.base import LiveEpisode
from reflectrl.players.policy import Policy, Question, Reflector, sampler
from reflectrl.remote.client import Body, Choice, Servers
from reflectrl.types import Sampling, UserError

T = TypeVar("T")
UNREACHABLE = -1e4
"""Logit of a label that no server has returned: its probability is 0."""
MOST_NAMED = 128
"""So many tokens may be named whose log-probabilities are wanted (vLLM's limit); of more, the likeliest come."""


@dataclass
class Serving:
    """How the servers know a player's model, shared by all copies of the player.

    Attributes:
        name: of the weights.
        asked: labels whose log-probability was asked for.
        missing: those of them that did not come.
    """

    servers: Servers
    name: str = ""
    asked: int = 0
    missing: int = 0

    def complete(self, prompts: Sequence[Ids], each: int, settings: Sequence[Body]) -> list[Choice]:
        """The completion of each prompt, `each` prompts per request; prompts with the same settings go together."""
        rows: list[Sequence[int]] = []
        for same in {id(one): one for one in settings}.values():
            rows += cut([i for i, one in enumerate(settings) if one is same], each)
        asks = [
            {"model": self.name, "prompt": [prompts[i] for i in part], "return_tokens_as_token_ids": True}
            | dict(settings[part[0]])
            for part in rows
        ]
        found: dict[int, Choice] = {}
        for part, choices in zip(rows, self.servers.complete(asks), strict=True):
            found.update(zip(part, choices, strict=True))
        return [found[i] for i in range(len(prompts))]

    def unusable(self, what: str) -> UserError:
        """The error where an answer lacks what a player needs."""
        return UserError(f"rollouts: {' or '.join(self.servers.settings.servers)} returned {what}")


class ServedPolicy(Policy):
    """A policy whose choices are drawn here from log-probabilities that servers compute.

    Args:
        policy: whose model, sampling and settings it has.
        serving: by what name the servers have its model.
    """

    keeps = False

    def __init__(self, policy: Policy, serving: Serving) -> None:
        super().__init__(
            policy.lm, policy.sampling, policy.shuffle_labels, policy.memory, policy.pool.limit, policy.scoring
        )
        self.serving = serving
        self._texts: dict[int, str] = {}

    def with_sampling(self, sampling: Sampling) -> ServedPolicy:
        """The same player with another way of drawing, and memories of its own."""
        return ServedPolicy(super().with_sampling(sampling), self.serving)

    def local(self, questions: Sequence[Question]) -> list[np.ndarray]:
        """The same log-probabilities, computed here."""
        with self.lm.playing():
            return [log_softmax(logits) for logits in Policy._compute(self, questions, [], None)]

    def served(self, questions: Sequence[Question]) -> list[np.ndarray]:
        """Log-probabilities (A,) of each question's actions, by the servers' weights."""
        return [log_softmax(logits) for logits in self._compute(questions, [], None)]

    def _compute(
        self, keys: Sequence[Question], episodes: Sequence[LiveEpisode], caches: Sequence[KVCache] | None
    ) -> list[np.ndarray]:
        """Log-probabilities of the listed actions' labels: each is one token, so one token is asked for."""
        settings, prompts = self.serving.servers.settings, [ids for ids, _ in keys]
        labels = [[ids[0] for ids in self.answers(actions).ids] for _, actions in keys]
        bodies = {}
        for tokens in labels:
            named = {"logprob_token_ids": tokens} if len(tokens) <= MOST_NAMED else {}
            one = {"max_tokens": 1, "temperature": 0.0, "logprobs": settings.logprobs, "allowed_token_ids": tokens}
            bodies[tuple(tokens)] = one | named
        asked = [bodies[tuple(tokens)] for tokens in labels]
        choices = self.serving.complete(prompts, settings.prompts, asked)
        return [self._logits(choice, tokens) for choice, tokens in zip(choices, labels, strict=True)]

    def _logits(self, choice: Choice, tokens: Sequence[int]) -> np.ndarray:
        """What was returned of these tokens; what was not is unreachable, and counted."""
        try:
            top = choice["logprobs"]["top_logprobs"][0]
        except (KeyError, IndexError, TypeError):
            top = None
        if not isinstance(top, Mapping):
            raise self.serving.unusable("no log-probabilities (it must take 'logprobs' in /v1/completions)")
        found = [top.get(f"token_id:{token}", top.get(self._text(token))) for token in tokens]
        self.serving.asked += len(tokens)
        self.serving.missing += found.count(None)
        if all(value is None for value in found):
            raise self.serving.unusable(
                "the log-probability of none of the labels: it serves another model, or rollouts.logprobs is too small"
            )
        if not all(value is None or isinstance(value, int | float) for value in found):
            raise self.serving.unusable("log-probabilities that are no numbers")
        logits = np.array([UNREACHABLE if value is None else max(float(value), UNREACHABLE) for value in found])
        if not np.isfinite(logits).all():
            raise self.serving.unusable("log-probabilities that are not finite: the policy's weights are broken")
        return logits

    def _text(self, token: int) -> str:
        """A token as servers write it that do not return ids."""
        if token not in self._texts:
            self._texts[token] = self.lm.tokenizer.decode([token])
        return self._texts[token]


class ServedReflector(Reflector):
    """A frozen reflector whose texts are written by servers. They draw by seeds from the episodes' generators, so
    sampled texts are others than those written here; greedy ones are the same.
    """

    keeps = False

    def __init__(self, reflector: Reflector, serving: Serving) -> None:
        super().__init__(
            reflector.lm, reflector.max_new_tokens, reflector.sampling, reflector.memory, reflector.pool.limit,
            speculative=False,
        )  # fmt: skip
        self.serving = serving

    def local(self, prompts: Sequence[Ids], longest: int) -> list[Written]:
        """How its texts begin when they are written here, greedily."""
        with self.lm.playing():
            generators = [np.random.default_rng(0)] * len(prompts)  # from which nothing is drawn
            return self.backend.write(prompts, longest, sampler(Sampling(0.0)), generators)

    def served(self, prompts: Sequence[Ids], longest: int) -> list[Written]:
        """How they begin when the servers write them, greedily."""
        return self._ask(prompts, [self._settings(longest)] * len(prompts))

    def _compute(
        self, keys: Sequence[Ids], episodes: Sequence[LiveEpisode], caches: Sequence[KVCache] | None
    ) -> list[Written]:
        greedy = self._settings(self.max_new_tokens)
        if self.sampling.temperature == 0:
            return self._ask(keys, [greedy] * len(keys))
        drawn = {"temperature": self.sampling.temperature, "top_p": self.sampling.top_p}
        seeds = [int(episode.rng.integers(2**31)) for episode in episodes]
        return self._ask(keys, [greedy | drawn | {"seed": seed} for seed in seeds])

    def _settings(self, longest: int) -> dict[str, Any]:
        ends = sorted(self.lm.ends)
        return {"max_tokens": longest, "temperature": 0.0, "logprobs": 1, "stop_token_ids": ends}

    def _ask(self, prompts: Sequence[Ids], settings: Sequence[Body]) -> list[Written]:
        choices = self.serving.complete(prompts, self.serving.servers.settings.prompts, settings)
        return [self._written(choice) for choice in choices]

    def _written(self, choice: Choice) -> Written:
        """The tokens of a text, without its end, and their log-probabilities."""
        try:
            tokens, logprobs, text = choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"], choice["text"]
            named = [str(token).partition("token_id:")[2] for token in tokens]
            ids = [int(name) for name in named] if all(named) else self.lm.encode(str(text))
            known = tuple(float(value) for value in logprobs)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise self.serving.unusable("texts without log-probabilities of their tokens") from None
        vocabulary = self.lm.core.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
        if not all(0 <= token < vocabulary for token in ids):
            raise self.serving.unusable("tokens that this run's model does not have: it serves another one")
        end = next((i for i, token in enumerate(ids) if token in self.lm.ends), len(ids))
        return tuple(ids[:end]), known[:end]


def cut(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """The items in pieces of at most so many."""
    for start in range(0, len(items), most):
        yield items[start : start + most]
