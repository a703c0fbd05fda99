"""Drafts: guesses at how a text goes on, which the model checks in one pass instead of writing token by token.

Speculative decoding (Leviathan et al. 2023) without a second model. A guess comes from the prompt, where the last few
tokens may have stood before (prompt lookup, Saxena 2023), or from what has followed them in texts written earlier;
reflections repeat themselves, so most tokens of one can be guessed. A guess never decides what is written: every token
is drawn from the model's own distribution, and a draft only holds as far as the draws agree with it.

Tokens are kept as characters, one per token, so that runs of them are found and hashed as strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter

CONTEXTS = (1, 2, 3, 4, 6, 8, 12)
"""How many of the last tokens are looked up."""

IN_PROMPT = 2
"""Fewer tokens than this are not looked up in the prompt."""

MOST = 16
"""The longest draft, in tokens."""

LIKELY = 0.3
"""A draft ends where it holds with less probability than this."""

REMEMBERED = 400_000
"""Most runs of tokens whose continuation is remembered (about 60 MiB); then all is learned anew."""

SURE = 3
"""A continuation that was seen so often in a row is not told from one that was seen more often."""

FADING = 200
"""After so many trials, a kind of evidence has half of them forgotten: what is guessed well changes with the texts."""

START, END = chr(0x10FFFE), chr(0x10FFFF)
"""Stand before a text's first token and after its last one; no vocabulary is so large that a token looks like them."""

Evidence = tuple[str, int, int]
"""Where a guess comes from: "prompt" or "texts", the number of tokens that agreed, and how often it was so."""

NOTHING: Evidence = ("", 0, 0)


def spelled(ids: Iterable[int]) -> str:
    """Tokens as characters."""
    return "".join(map(chr, ids))


@dataclass
class Draft:
    """Tokens that may come next, as characters, and what speaks for each."""

    tokens: str = ""
    evidence: list[Evidence] = field(default_factory=list)


class Drafts:
    """What one writer has written so far, and how far that can be trusted.

    A guess is believed as much as guesses on like evidence have been right, so drafts are long where texts repeat
    themselves, and stop where they do not.

    Args:
        limit: most runs of tokens that are remembered.
    """

    def __init__(self, limit: int = REMEMBERED) -> None:
        self.limit = limit
        self._next: dict[str, tuple[str, int]] = {}
        self._trials: dict[Evidence, tuple[float, float]] = {}

    def draft(self, prompt: str, written: str, most: int) -> Draft:
        """How a text may go on: at most `most` tokens, up to its end, and none that little speaks for."""
        draft, probability = Draft(), 1.0
        while len(draft.tokens) < min(most, MOST):
            guesses = self._guesses(prompt, START + written + draft.tokens)
            belief, token, evidence = max(guesses, key=itemgetter(0), default=(0.0, END, NOTHING))
            probability *= belief
            if probability < LIKELY or token == END:
                break
            draft.tokens += token
            draft.evidence.append(evidence)
        return draft

    def _guesses(self, prompt: str, text: str) -> Iterator[tuple[float, str, Evidence]]:
        """What followed the last tokens elsewhere, and how far to believe it: in earlier texts for each number of
        tokens, in the prompt for the greatest that stood there.
        """
        found = False
        for length in reversed(CONTEXTS):
            if length > len(text):
                continue
            context = text[-length:]
            if length >= IN_PROMPT and not found:
                after = prompt.rfind(context, 0, -1) + length
                if found := after >= length:
                    yield self._weighed(prompt[after], ("prompt", length, 0))
            if context in self._next:
                token, times = self._next[context]
                yield self._weighed(token, ("texts", length, times))

    def _weighed(self, token: str, evidence: Evidence) -> tuple[float, str, Evidence]:
        """How often such guesses have been right; every other time, as long as nothing is known."""
        right, tried = self._trials.get(evidence, (0.0, 0.0))
        return (right + 1) / (tried + 2), token, evidence

    def check(self, draft: Draft, held: int) -> None:
        """Say how many tokens of a draft were right; the one after them was wrong, and the rest was not tried."""
        for i, evidence in enumerate(draft.evidence[: held + 1]):
            right, tried = self._trials.get(evidence, (0.0, 0.0))
            kept = 0.5 if tried >= FADING else 1.0
            self._trials[evidence] = kept * right + (i < held), kept * tried + 1

    def learn(self, text: str) -> None:
        """Remember a text that was written; `END` is the last of its tokens, unless it was cut off."""
        if len(self._next) >= self.limit:
            self._next.clear()
        text = START + text
        for i in range(1, len(text)):
            for length in CONTEXTS:
                if length > i:
                    break
                self._follow(text[i - length : i], text[i])

    def _follow(self, context: str, token: str) -> None:
        """A token that followed makes way for another when it has failed as often as it was right."""
        known, times = self._next.get(context, (token, 0))
        if known == token:
            self._next[context] = token, min(times + 1, SURE)
        else:
            self._next[context] = (known, times - 1) if times > 1 else (token, 1)
