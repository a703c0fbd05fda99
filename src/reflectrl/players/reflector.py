"""The reflector: a frozen model that writes a short analysis of the state."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np

from reflectrl.models.drafts import Drafts
from reflectrl.models.engine import tokenize
from reflectrl.models.lm import LanguageModel
from reflectrl.models.packing import Ids
from reflectrl.models.prefix import CACHE, Prefix, PrefixPool
from reflectrl.models.writing import Written, generate
from reflectrl.players.base import LiveEpisode
from reflectrl.prompts import reflector_prompt
from reflectrl.types import Sampling, Turn


class Reflector:
    """Reflects by decoding a language model until end-of-text.

    Args:
        max_new_tokens: longest reflection.
        sampling: greedy reflections are memoised, since the model is frozen: an identical prompt is decoded once.
        memory: how many greedy reflections are kept (the least recently used are forgotten); 0 writes even equal ones
            one by one.
        cache: most bytes of keys and values of histories that are kept between steps; 0 encodes all anew each time.
        drafts: whether what was written before helps to write (faster, with the same result).
    """

    def __init__(
        self,
        lm: LanguageModel,
        max_new_tokens: int = 100,
        sampling: Sampling = Sampling(temperature=0.0),  # noqa: B008  (frozen)
        memory: int = 50_000,
        cache: int = CACHE,
        drafts: bool = True,
    ) -> None:
        self.lm, self.max_new_tokens, self.sampling, self.memory = lm, max_new_tokens, sampling, memory
        self.pool = PrefixPool(lm.token_bytes, cache)
        self.drafts = Drafts() if drafts else None
        self._known: OrderedDict[Ids, Written] = OrderedDict()
        self.asked = 0
        self.remembered = 0

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        prompts = [self._prompt(episode) for episode in episodes]
        self.asked += len(prompts)
        if not self.sampling.greedy or not self.memory:
            return [self._turn(one) for one in self._write(prompts, episodes)]
        found = {prompt: self._recall(prompt) for prompt in prompts if prompt in self._known}
        new = {prompt: episode for prompt, episode in zip(prompts, episodes, strict=True) if prompt not in found}
        self.remembered += len(prompts) - len(new)
        if new:
            found |= self._learn(new)
            self.pool.share_equal(prompts, episodes, new)
        return [self._turn(found[prompt]) for prompt in prompts]

    def _prompt(self, episode: LiveEpisode) -> Ids:
        return tokenize(self.lm, reflector_prompt(episode.observation), reserve=self.max_new_tokens)

    def _write(self, prompts: Sequence[Ids], episodes: Sequence[LiveEpisode]) -> list[Written]:
        """A continuation of each prompt, by each episode's own generator (from which greedy decoding draws nothing)."""
        growing = [self.pool.limit > 0 and bool(episode.observation.history) for episode in episodes]
        copies = 1 if self.lm.device.type == "cpu" else 2  # elsewhere, writing takes a copy of what is held
        needed = [copies * (len(ids) + self.max_new_tokens) for ids in prompts]
        written: list[Written] = []
        for rows, prefixes in self.pool.parts(episodes, needed, growing):
            with self.lm.playing():
                written += self._generate(prompts[rows], rows, [episode.rng for episode in episodes[rows]], prefixes)
        return written

    def _generate(
        self,
        prompts: Sequence[Ids],
        rows: slice,
        generators: Sequence[np.random.Generator],
        prefixes: Sequence[Prefix],
    ) -> list[Written]:
        return generate(self.lm, prompts, self.max_new_tokens, self.sampling, generators, prefixes, self.drafts)

    def _learn(self, new: Mapping[Ids, LiveEpisode]) -> dict[Ids, Written]:
        found = dict(zip(new, self._write(list(new), list(new.values())), strict=True))
        self._known.update(found)
        while len(self._known) > self.memory:
            self._known.popitem(last=False)
        return found

    def _recall(self, prompt: Ids) -> Written:
        self._known.move_to_end(prompt)
        return self._known[prompt]

    def _turn(self, written: Written) -> Turn:
        ids, logprobs = written
        text = self.lm.tokenizer.decode(ids, skip_special_tokens=True).strip()
        return Turn("reflector", text, token_ids=ids, logprobs=logprobs, sampling=self.sampling)
