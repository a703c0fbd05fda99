"""The reflector: a frozen model that writes a short analysis of the state."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from reflectrl.models.engine import Ids, generate, tokenize
from reflectrl.models.lm import LanguageModel
from reflectrl.players.base import Seat
from reflectrl.prompts import reflector_prompt
from reflectrl.types import Sampling, Turn

Written = tuple[Ids, tuple[float, ...]]


class Reflector:
    """Reflects by decoding a language model until end-of-text.

    Args:
        max_new_tokens: longest reflection.
        sampling: greedy reflections are memoised, since the model is frozen: an identical prompt is decoded once.
        memory: how many greedy reflections are kept; the least recently used are forgotten.
    """

    def __init__(
        self,
        lm: LanguageModel,
        max_new_tokens: int = 100,
        sampling: Sampling = Sampling(temperature=0.0),  # noqa: B008  (frozen)
        memory: int = 50_000,
    ) -> None:
        self.lm, self.max_new_tokens, self.sampling, self.memory = lm, max_new_tokens, sampling, memory
        self._known: OrderedDict[Ids, Written] = OrderedDict()
        self.asked = 0
        self.remembered = 0

    def turns(self, seats: Sequence[Seat]) -> list[Turn]:
        prompts = [self._prompt(seat) for seat in seats]
        self.asked += len(prompts)
        if not self.sampling.greedy:
            written = generate(self.lm, prompts, self.max_new_tokens, self.sampling, [seat.rng for seat in seats])
            return [self._turn(one) for one in written]
        found = {prompt: self._recall(prompt) for prompt in prompts if prompt in self._known}
        new = [prompt for prompt in dict.fromkeys(prompts) if prompt not in found]
        self.remembered += len(prompts) - len(new)
        if new:
            found |= self._decode(new, seats[: len(new)])
        return [self._turn(found[prompt]) for prompt in prompts]

    def _prompt(self, seat: Seat) -> Ids:
        return tokenize(self.lm, reflector_prompt(seat.observation), reserve=self.max_new_tokens)

    def _decode(self, prompts: list[Ids], seats: Sequence[Seat]) -> dict[Ids, Written]:
        generators = [seat.rng for seat in seats]  # greedy decoding draws nothing from them
        written = generate(self.lm, prompts, self.max_new_tokens, self.sampling, generators)
        found = dict(zip(prompts, written, strict=True))
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
