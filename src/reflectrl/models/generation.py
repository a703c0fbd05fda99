"""The draft model of speculative decoding (Leviathan et al. 2023).

A draft model guesses several tokens, and the language model checks all of them in one pass. Here, the draft model is
not a second network. It looks up the last few tokens: in the prompt, where they may occur as well (prompt lookup,
Saxena 2023), and in the texts written earlier. Reflections repeat themselves, so most of their tokens can be guessed. A
guess never decides what is written: every token is drawn from the model's own distribution, and the guessed tokens are
kept up to the first that differs from the draw.
"""

from __future__ import annotations

from dataclasses import dataclass, field

CONTEXTS = (1, 2, 3, 4, 6, 8, 12)
"""Numbers of last tokens that are looked up."""

IN_PROMPT = 2
"""Smallest number of tokens that is looked up in the prompt."""

LONGEST_DRAFT = 16
"""The largest number of tokens in a draft."""

LIKELY = 0.3
"""Smallest probability that a whole draft is right. The draft ends before it falls below this."""

MOST_CONTEXTS = 400_000
"""Largest number of stored contexts (about 60 MiB). When it is reached, all are dropped."""

SURE = 3
"""Largest count of a continuation. It is small, so that another continuation can soon replace it."""

FADING = 200
"""Number of trials from which old trials are halved, because the reliability of evidence changes with the texts."""

START, END = chr(0x10FFFE), chr(0x10FFFF)
"""Marks of a text's beginning and end. No vocabulary is large enough to contain these characters as tokens."""

Evidence = tuple[str, int, int]
"""Evidence for a guess: its source ("prompt" or "texts"), the number of matching tokens, and how often it was seen."""


@dataclass
class Draft:
    """Tokens that may come next, as characters, and the evidence for each."""

    tokens: str = ""
    evidence: list[Evidence] = field(default_factory=list)


class DraftModel:
    """Model that guesses how a text continues, from its prompt and from earlier texts of the same writer.

    Each token is represented by one character (`chr`), so that sequences of tokens can be searched and hashed as
    strings. A guess is trusted as much as guesses with the same evidence have been right so far. So drafts are long
    where texts repeat themselves, and short where they do not.

    Args:
        limit: the largest number of contexts whose continuation is stored.
    """

    def __init__(self, limit: int = MOST_CONTEXTS) -> None:
        self.limit = limit
        self._next: dict[str, tuple[str, int]] = {}
        self._trials: dict[Evidence, tuple[float, float]] = {}

    def draft(self, prompt: str, written: str, most: int) -> Draft:
        """Return at most `most` tokens that are likely to come next. The draft stops at a guessed end of the text."""
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
        """Return the best guess for the next token: (belief, token, evidence).

        Candidates are the tokens that followed the last n tokens in earlier texts, for each n of `CONTEXTS`, and the
        token that followed the longest match in the prompt. The belief is the share of guesses with the same evidence
        that were right (one half if there were none).
        """
        best: tuple[float, str, Evidence] = (0.0, END, ("", 0, 0))
        in_prompt = False
        for length in reversed(CONTEXTS):
            if length > len(text):
                continue
            context, guesses = text[-length:], list[tuple[str, Evidence]]()
            if length >= IN_PROMPT and not in_prompt:
                after = prompt.rfind(context, 0, -1) + length
                if in_prompt := after >= length:
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
        """Learn from the outcome of a draft, and from the whole text once it is complete.

        Args:
            held: number of the draft's tokens that were right. The next one was wrong, and the rest were not tried.
            text: the complete text, with `END` as its last character unless it was cut off; None while it goes on.
        """
        for i, evidence in enumerate(draft.evidence[: held + 1]):
            right, tried = self._trials.get(evidence, (0.0, 0.0))
            decay = 0.5 if tried >= FADING else 1.0
            self._trials[evidence] = decay * right + (i < held), decay * tried + 1
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
                next_token, times = self._next.get(context, (token, 0))
                if next_token == token:
                    self._next[context] = token, min(times + 1, SURE)
                else:  # a continuation is replaced once it has failed as often as it was right
                    self._next[context] = (next_token, times - 1) if times > 1 else (token, 1)
