"""The draft model of speculative decoding (Leviathan et al. 2023).

A draft model guesses several tokens, and the language model checks them
in one pass instead of one pass each. Here the draft model is no second network. A guess comes from the prompt, where
the last few tokens may have stood before (prompt lookup, Saxena 2023), or from what has followed them in texts written
earlier; reflections repeat themselves, so most tokens of one can be guessed. A guess never decides what is written:
every token is drawn from the model's own distribution, and a draft holds as far as the draws agree with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

CONTEXTS = (1, 2, 3, 4, 6, 8, 12)
"""How many of the last tokens are looked up."""

IN_PROMPT = 2
"""Fewer tokens than this are not looked up in the prompt."""

LONGEST_DRAFT = 16
"""Tokens."""

LIKELY = 0.3
"""A draft ends where it holds with less probability than this."""

MOST_CONTEXTS = 400_000
"""Most runs of tokens whose continuation is stored (about 60 MiB); then all is learned anew."""

SURE = 3
"""A continuation counts as seen at most this often in a row, so that another can replace it."""

FADING = 200
"""After so many trials, half of them are dropped: how reliable a kind of evidence is changes with the texts."""

START, END = chr(0x10FFFE), chr(0x10FFFF)
"""Stand before a text's first token and after its last one; no vocabulary is so large that a token looks like them."""

Evidence = tuple[str, int, int]
"""Where a guess comes from: "prompt" or "texts", the number of tokens that agreed, and how often it was so."""


@dataclass
class Draft:
    """Tokens that may come next, as characters, and the evidence for each."""

    tokens: str = ""
    evidence: list[Evidence] = field(default_factory=list)


class DraftModel:
    """Guesses how one writer's text goes on, from the prompt and from what it has written before.

    Tokens are characters here, one each (`chr`), so that runs of them are found and hashed as strings.

    A guess is believed as much as guesses on like evidence have been right, so drafts are long where texts repeat
    themselves, and stop where they do not.

    Args:
        limit: most runs of tokens whose continuation is stored.
    """

    def __init__(self, limit: int = MOST_CONTEXTS) -> None:
        self.limit = limit
        self._next: dict[str, tuple[str, int]] = {}
        self._trials: dict[Evidence, tuple[float, float]] = {}

    def draft(self, prompt: str, written: str, most: int) -> Draft:
        """At most `most` tokens that are likely to follow, none beyond the text's end."""
        draft, probability = Draft(), 1.0
        while len(draft.tokens) < min(most, LONGEST_DRAFT):
            belief, token, evidence = self._guess(prompt, START + written + draft.tokens)
            probability *= belief
            if probability < LIKELY or token == END:
                break
            draft.tokens += token
            draft.evidence.append(evidence)
        return draft

    def _guess(self, prompt: str, text: str) -> tuple[float, str, Evidence]:
        """What followed the last tokens elsewhere and how far to believe it: the best of what followed each number of
        them in earlier texts, and the greatest number that stands in the prompt there.

        How often guesses on like evidence have been right is the belief; half, as long as nothing is known.
        """
        best: tuple[float, str, Evidence] = (0.0, END, ("", 0, 0))
        found = False
        for length in reversed(CONTEXTS):
            if length > len(text):
                continue
            context, guesses = text[-length:], list[tuple[str, Evidence]]()
            if length >= IN_PROMPT and not found:
                after = prompt.rfind(context, 0, -1) + length
                if found := after >= length:
                    guesses.append((prompt[after], ("prompt", length, 0)))
            if context in self._next:
                token, times = self._next[context]
                guesses.append((token, ("texts", length, times)))
            for token, evidence in guesses:
                right, tried = self._trials.get(evidence, (0.0, 0.0))
                belief = (right + 1) / (tried + 2)
                if belief > best[0]:
                    best = belief, token, evidence
        return best

    def learn(self, draft: Draft, held: int, text: str | None = None) -> None:
        """Take note of how a draft fared, and of the whole text once it has been written.

        Args:
            held: how many of the draft's tokens were right; the one after them was wrong, the rest was not tried.
            text: what was written, with `END` as its last character unless it was cut off; None while it goes on.
        """
        for i, evidence in enumerate(draft.evidence[: held + 1]):
            right, tried = self._trials.get(evidence, (0.0, 0.0))
            kept = 0.5 if tried >= FADING else 1.0
            self._trials[evidence] = kept * right + (i < held), kept * tried + 1
        if text is None:
            return
        if len(self._next) >= self.limit:
            self._next.clear()
        text = START + text
        for i in range(1, len(text)):
            for length in CONTEXTS:
                if length > i:
                    break
                context, token = text[i - length : i], text[i]
                known, times = self._next.get(context, (token, 0))
                if known == token:
                    self._next[context] = token, min(times + 1, SURE)
                else:  # it makes way for another when it has failed as often as it was right
                    self._next[context] = (known, times - 1) if times > 1 else (token, 1)
