"""A reflector that samples its reflections and records all tokens and log-probabilities, so that it can learn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from reflectrl.core.players.base import LiveEpisode
from reflectrl.core.types import Sampling
from reflectrl.models.backend import Completion
from reflectrl.models.generation import DraftModel
from reflectrl.models.players import Reflector, draw
from reflectrl.models.sharing import Ids, KVCache


class SampledReflector(Reflector):
    """A reflector that samples at a temperature. Its turns hold every token that it drew, end-of-text included, with
    the log-probabilities under the sampling distribution.

    Args:
        reflector: provides the model and the limits.
        temperature: sampling temperature, above 0.
    """

    def __init__(self, reflector: Reflector, temperature: float) -> None:
        sampling, speculative = Sampling(temperature), reflector.draft_model is not None
        cache = reflector.pool.limit
        super().__init__(reflector.lm, reflector.max_new_tokens, sampling, 0, cache, speculative, reflector.carries)
        self.draw = self._draw
        self._ends: dict[int, float] = {}

    def _draw(self, logits_BV: Tensor, generators: Sequence[np.random.Generator]) -> tuple[Tensor, Tensor]:
        """Draw tokens as `models.players.draw` does, and record the log-probability of each end-of-text."""
        tokens_B, logp_B = draw(logits_BV, generators, self.sampling)
        for row in (tokens_B == self.lm.tokenizer.eos_token_id).nonzero()[:, 0].tolist():
            self._ends[id(generators[row])] = float(logp_B[row])
        return tokens_B, logp_B

    def _compute(
        self, keys: Sequence[Ids], episodes: Sequence[LiveEpisode], caches: Sequence[KVCache] | None
    ) -> list[Completion]:
        self._ends, end = {}, self.lm.tokenizer.eos_token_id
        completions = super()._compute(keys, episodes, caches)
        ends = [self._ends.get(id(episode.rng)) for episode in episodes]
        return [
            (ids, logprobs) if last is None else ((*ids, end), (*logprobs, last))
            for (ids, logprobs), last in zip(completions, ends, strict=True)
        ]


def forget(reflector: Reflector) -> None:
    """Drop all that a reflector has cached, including drafts. What it computes next, down to the last digits of a
    probability, then does not depend on earlier work.
    """
    reflector.clear_cache()
    if reflector.draft_model is not None:
        reflector.draft_model = DraftModel()
