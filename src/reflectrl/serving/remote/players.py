"""Policy and reflector whose model is computed by servers during play, and on this machine during training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from scipy.special import log_softmax

from reflectrl.core.players.base import LiveEpisode
from reflectrl.core.types import Sampling, UserError
from reflectrl.models.backend import Completion
from reflectrl.models.players import Policy, Question, Reflector, sampler
from reflectrl.models.sharing import Ids, KVCache
from reflectrl.serving.remote.client import Body, Choice, Servers

T = TypeVar("T")
UNREACHABLE = -1e4
"""Logit of a label that no server has returned. Its probability is 0."""
MOST_NAMED = 128
"""Largest number of tokens whose log-probabilities can be asked for by id (vLLM's limit). Above it, the likeliest are
returned."""


@dataclass
class Serving:
    """The servers' state of a player's model, shared by all copies of the player.

    Attributes:
        name: name of the weights on the servers.
        asked: number of labels whose log-probability was asked for.
        missing: number of labels among them that were not returned.
    """

    servers: Servers
    name: str = ""
    asked: int = 0
    missing: int = 0

    def complete(self, prompts: Sequence[Ids], each: int, settings: Sequence[Body]) -> list[Choice]:
        """Return the completion of each prompt, with `each` prompts per request.

        Prompts with equal settings share requests.
        """
        rows: list[Sequence[int]] = []
        for same in {id(body): body for body in settings}.values():
            rows += cut([i for i, body in enumerate(settings) if body is same], each)
        asks = []
        for part in rows:
            ask = {"model": self.name, "stream": False, "prompt": [prompts[i] for i in part]}
            ask["return_tokens_as_token_ids"] = True
            asks.append(ask | dict(settings[part[0]]))
        completions: dict[int, Choice] = {}
        for part, choices in zip(rows, self.servers.complete(asks), strict=True):
            completions.update(zip(part, choices, strict=True))
        return [completions[i] for i in range(len(prompts))]

    def unusable(self, what: str) -> UserError:
        """Return the error for an answer that lacks something a player needs."""
        return UserError(f"rollouts: {' or '.join(self.servers.settings.servers)} returned {what}")


class ServedPolicy(Policy):
    """A policy whose choices are sampled here from log-probabilities that servers compute.

    Args:
        policy: the policy whose model, sampling and settings it takes.
        serving: the servers, and the name of its model there.
    """

    keeps = False

    def __init__(self, policy: Policy, serving: Serving) -> None:
        super().__init__(
            policy.lm, policy.sampling, policy.shuffle_labels, policy.memory, policy.pool.limit, policy.scoring
        )
        self.serving = serving
        self._texts: dict[int, str] = {}

    def with_sampling(self, sampling: Sampling) -> ServedPolicy:
        """Return the same player with other sampling, and with empty caches."""
        return ServedPolicy(super().with_sampling(sampling), self.serving)

    def local(self, questions: Sequence[Question]) -> list[np.ndarray]:
        """Return log-probabilities (A,) of each question's actions, computed on this machine."""
        with self.lm.playing():
            return [log_softmax(logits) for logits in Policy._compute(self, questions, [], None)]

    def served(self, questions: Sequence[Question]) -> list[np.ndarray]:
        """Return log-probabilities (A,) of each question's actions, computed with the servers' weights."""
        return [log_softmax(logits) for logits in self._compute(questions, [], None)]

    def _compute(
        self, keys: Sequence[Question], episodes: Sequence[LiveEpisode], caches: Sequence[KVCache] | None
    ) -> list[np.ndarray]:
        """Return log-probabilities of the listed actions' labels.

        Each label is one token, so a completion of one token is asked for.
        """
        settings, prompts = self.serving.servers.settings, [ids for ids, _ in keys]
        labels = [[ids[0] for ids in self.candidates(actions).ids] for _, actions in keys]
        bodies = {}
        for tokens in labels:
            named = {"logprob_token_ids": tokens} if len(tokens) <= MOST_NAMED else {}
            body = {"max_tokens": 1, "temperature": 0.0, "logprobs": settings.logprobs, "allowed_token_ids": tokens}
            bodies[tuple(tokens)] = body | named
        prompt_bodies = [bodies[tuple(tokens)] for tokens in labels]
        choices = self.serving.complete(prompts, settings.prompts, prompt_bodies)
        return [self._logits(choice, tokens) for choice, tokens in zip(choices, labels, strict=True)]

    def _logits(self, choice: Choice, tokens: Sequence[int]) -> np.ndarray:
        """Return the logits of these tokens. A token that the server did not return is unreachable, and is counted."""
        try:
            top = choice["logprobs"]["top_logprobs"][0]
        except (KeyError, IndexError, TypeError):
            top = None
        if not isinstance(top, Mapping):
            raise self.serving.unusable("no log-probabilities (it must take 'logprobs' in /v1/completions)")
        logprobs = [top.get(f"token_id:{token}", top.get(self._text(token))) for token in tokens]
        self.serving.asked += len(tokens)
        self.serving.missing += logprobs.count(None)
        if all(value is None for value in logprobs):
            raise self.serving.unusable(
                "no log-probability of any label: it serves another model, or rollouts.logprobs is too small"
            )
        if not all(value is None or isinstance(value, int | float) for value in logprobs):
            raise self.serving.unusable("log-probabilities that are not numbers")
        logits = np.array([UNREACHABLE if value is None else max(float(value), UNREACHABLE) for value in logprobs])
        if not np.isfinite(logits).all():
            raise self.serving.unusable("log-probabilities that are not finite: the policy's weights are broken")
        return logits

    def _text(self, token: int) -> str:
        """Return a token's text, by which servers that return no ids name it."""
        if token not in self._texts:
            self._texts[token] = self.lm.tokenizer.decode([token])
        return self._texts[token]


class ServedReflector(Reflector):
    """A frozen reflector whose texts are written by servers.

    The servers sample with seeds from the episodes' generators, so sampled texts differ from texts written here. Greedy
    texts are the same.
    """

    keeps = False

    def __init__(self, reflector: Reflector, serving: Serving) -> None:
        super().__init__(
            reflector.lm, reflector.max_new_tokens, reflector.sampling, reflector.memory, reflector.pool.limit,
            speculative=False, carries=reflector.carries,
        )  # fmt: skip
        self.serving = serving

    def local(self, prompts: Sequence[Ids], longest: int) -> list[Completion]:
        """Return the beginning of its texts as written on this machine, greedily."""
        with self.lm.playing():
            generators = [np.random.default_rng(0)] * len(prompts)  # not used: greedy decoding draws nothing
            return self.backend.write(prompts, longest, sampler(Sampling(0.0)), generators)

    def served(self, prompts: Sequence[Ids], longest: int) -> list[Completion]:
        """Return the beginning of its texts as written by the servers, greedily."""
        return self._ask(prompts, [self._settings(longest)] * len(prompts))

    def _compute(
        self, keys: Sequence[Ids], episodes: Sequence[LiveEpisode], caches: Sequence[KVCache] | None
    ) -> list[Completion]:
        greedy = self._settings(self.max_new_tokens)
        if self.sampling.temperature == 0:
            return self._ask(keys, [greedy] * len(keys))
        drawn: dict[str, Any] = {"temperature": self.sampling.temperature, "top_p": self.sampling.top_p}
        if self.sampling.top_k:
            drawn["top_k"] = self.sampling.top_k  # not every server knows it, so it is sent only if it is set
        seeds = [int(episode.rng.integers(2**31)) for episode in episodes]
        return self._ask(keys, [greedy | drawn | {"seed": seed} for seed in seeds])

    def _settings(self, longest: int) -> dict[str, Any]:
        ends = sorted(self.lm.ends)
        return {"max_tokens": longest, "temperature": 0.0, "logprobs": 1, "stop_token_ids": ends}

    def _ask(self, prompts: Sequence[Ids], settings: Sequence[Body]) -> list[Completion]:
        choices = self.serving.complete(prompts, self.serving.servers.settings.prompts, settings)
        return [self._written(choice) for choice in choices]

    def _written(self, choice: Choice) -> Completion:
        """Return the tokens of a text, without its end, and their log-probabilities."""
        try:
            tokens, logprobs, text = choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"], choice["text"]
            named = [str(token).partition("token_id:")[2] for token in tokens]
            ids = [int(name) for name in named] if all(named) else self.lm.encode(str(text))
            token_logprobs = tuple(float(value) for value in logprobs)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise self.serving.unusable("texts without log-probabilities of their tokens") from None
        vocabulary = self.lm.core.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
        if not all(0 <= token < vocabulary for token in ids):
            raise self.serving.unusable("tokens that this run's model does not have: it serves another one")
        end = next((i for i, token in enumerate(ids) if token in self.lm.ends), len(ids))
        return tuple(ids[:end]), token_logprobs[:end]


def cut(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Yield the items in chunks of at most `most`."""
    for start in range(0, len(items), most):
        yield items[start : start + most]
