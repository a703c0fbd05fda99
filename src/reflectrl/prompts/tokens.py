"""A tokenizer's own conventions, found by asking it: how sequences begin and end, and how texts become tokens.

Names do not tell. A tokenizer with a `bos_token` may never put it before a text (SmolLM2), and one whose beginning and
end are the same token may well do so (OPT). SentencePiece puts a space before every text, WordPiece marks what goes on
within a word: for both, a text behind another one has other tokens than alone.

A text of an environment or of data stays text: a control token that is spelled out in it becomes ordinary tokens.
Otherwise an observation could end the user's turn, and a completion the sequence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

WORDS = ("a", "the", "1", ".")
"""Texts that a tokenizer is asked to encode with and without what it puts around a text."""

SEAMS = (("x:", "y"), ("x\n", "y"), ("x", " y"), ("x.", "\ny"), ("", " y"))
"""Two texts of which the second follows the first; what is between them differs."""

ANCHORS = (":", "|", "\n")
"""Characters behind which a text is encoded as in the middle of another one: words rarely grow together with them."""

BYTE = re.compile("<0x[0-9A-F]{2}>")
"""A token for a byte of a character without a token of its own; some tokenizers declare these as special."""

MOST_TEMPLATES = 64
"""The number of template texts whose tokens are cached; when it is reached, the cache is emptied."""


@dataclass(frozen=True)
class Conventions:
    """What a tokenizer does with texts.

    Attributes:
        start: tokens that it puts before a text.
        end: tokens that it puts behind a text.
        separable: the tokens of two texts, one after the other, are those of the joined text, as with byte-level BPE.
        spelled: the control tokens as they are spelled, longest first.
        controls: the ids that no text may contain.
        templates: tokens of texts in which control tokens are meant.
    """

    start: tuple[int, ...]
    end: tuple[int, ...]
    separable: bool
    spelled: tuple[str, ...]
    controls: frozenset[int]
    templates: dict[str, list[int]] = field(default_factory=dict)


_known: WeakKeyDictionary[Any, Conventions] = WeakKeyDictionary()


def conventions(tokenizer: Any) -> Conventions:
    """The conventions of a tokenizer; it is asked once."""
    if tokenizer not in _known:
        start, end = _around(tokenizer)
        control = _control_tokens(tokenizer)
        # Unknown characters are no attack, and in some tokenizers all texts have them.
        unknown = getattr(tokenizer, "unk_token_id", None)
        _known[tokenizer] = Conventions(
            start,
            end,
            _is_separable(tokenizer),
            tuple(sorted(control, key=len, reverse=True)),
            frozenset(control.values()) - {unknown},
        )
    return _known[tokenizer]


def beginning(tokenizer: Any) -> tuple[int, ...]:
    """The tokens with which a sequence begins: what the tokenizer puts before a text."""
    return conventions(tokenizer).start


def ending(tokenizer: Any) -> tuple[int, ...]:
    """The tokens with which a finished text ends: what the tokenizer puts behind it, with end-of-text as the last."""
    end, last = conventions(tokenizer).end, int(tokenizer.eos_token_id)
    return end if end and end[-1] == last else (*end, last)


def encode_template(tokenizer: Any, text: str) -> list[int]:
    """The ids of a text in which control tokens are meant, such as that of a chat template."""
    known = conventions(tokenizer).templates
    if text not in known:
        if len(known) >= MOST_TEMPLATES:
            known.clear()
        known[text] = list(tokenizer.encode(text, add_special_tokens=False))
    return known[text]


def encode_text(tokenizer: Any, text: str, behind: str = "") -> list[int]:
    """The ids of a text of an environment or of data, in which nothing is a control token.

    Args:
        behind: the text that stands directly before it, in which control tokens may be meant. Where no token crosses
            the seam, the ids are those that the joined text has there; otherwise no space is added.
    """
    about = conventions(tokenizer)
    ids = _split(tokenizer, text) if about.separable or not behind else _encode_behind(tokenizer, text, behind)
    if about.controls.isdisjoint(ids):
        return ids
    if len(text) < 2:  # a character that is a control token itself is left out
        return [] if text in about.spelled else ids
    # The tokenizer's own model knows the spelling (Unigram does), or the template uses tokens that are not declared
    # as special. So every control token is cut behind its first character.
    cuts = "|".join(f"(?<={re.escape(word[0])})(?={re.escape(word[1:])})" for word in about.spelled if len(word) > 1)
    pieces = re.split(cuts, text) if cuts else [text]
    if len(pieces) == 1:  # what is spelled only becomes one by normalisation
        pieces = [text[: len(text) // 2], text[len(text) // 2 :]]
    found: list[int] = []
    for piece in pieces:
        found += encode_text(tokenizer, piece, behind)
        behind = piece
    return found


def decode_behind(tokenizer: Any, ids: Sequence[int], before: Sequence[int]) -> str:
    """The text of tokens that follow others. Decoded alone, SentencePiece's lose the space with which they begin."""
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    if not conventions(tokenizer).separable:
        context = list(before[-16:])  # a character may consist of several tokens
        head, whole = (str(tokenizer.decode(part, **options)) for part in (context, [*context, *ids]))
        if head and whole.startswith(head):
            return whole[len(head) :]
    return str(tokenizer.decode(list(ids), **options))


def defused(tokenizer: Any, text: str) -> str:
    """A text for a chat template, with a space behind the first character of each control token that it spells out.

    What a template returns is one text, so its own control tokens could not be told from those in a message.
    """
    for word in conventions(tokenizer).spelled:
        if len(word) > 1:
            text = text.replace(word, f"{word[0]} {word[1:]}")
    return text


def template_end(tokenizer: Any, text: str) -> tuple[str, str]:
    """A template's text before its first control token, and the rest."""
    places = [at for word in conventions(tokenizer).spelled if (at := text.find(word)) >= 0]
    first = min(places, default=len(text))
    return text[:first], text[first:]


def _encode_behind(tokenizer: Any, text: str, behind: str) -> list[int]:
    """The ids of a text behind another one, by encoding both together and taking away those of the first."""
    controls = conventions(tokenizer).controls
    head = tokenizer.encode(behind, add_special_tokens=False)
    whole = tokenizer.encode(behind + text, add_special_tokens=False)
    tail = whole[len(head) :]
    if whole[: len(head)] == head and controls.isdisjoint(tail):
        return list(tail)
    unknown = getattr(tokenizer, "unk_token_id", None)
    for anchor in ANCHORS:
        head, whole = _split(tokenizer, anchor), _split(tokenizer, anchor + text)
        # Unknown characters side by side may become one token, in which the text's first one would be lost.
        if whole[: len(head)] == head and unknown not in head:
            return whole[len(head) :]
    return _split(tokenizer, text)


def _split(tokenizer: Any, text: str) -> list[int]:
    """The ids of a text, with special tokens split into ordinary ones."""
    return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))


def _around(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that a tokenizer puts before and behind a text."""
    for word in WORDS:
        bare = list(tokenizer.encode(word, add_special_tokens=False))
        full = list(tokenizer.encode(word, add_special_tokens=True))
        for at in range(len(full) - len(bare) + 1):
            if bare and full[at : at + len(bare)] == bare:
                return tuple(full[:at]), tuple(full[at + len(bare) :])
    return (), ()


def _is_separable(tokenizer: Any) -> bool:
    """Whether texts that are encoded one by one give the joined text when they are decoded together."""
    return all(
        tokenizer.decode(_split(tokenizer, first) + _split(tokenizer, second)) == first + second
        for first, second in SEAMS
    )


def _control_tokens(tokenizer: Any) -> dict[str, int]:
    """Spelling → id of the special tokens, and of other added tokens by which a chat template marks turns.

    A pair such as <think> and </think> encloses text that a model writes, so it marks no turn.
    """
    added = getattr(tokenizer, "added_tokens_decoder", None)
    if added is None:
        added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    template = str(getattr(tokenizer, "chat_template", None) or "")
    spellings = {token.content for token in added.values()}

    def marks_turn(word: str) -> bool:
        paired = word.startswith("</") or word.replace("<", "</", 1) in spellings
        return word in template and not paired and word == word.strip()

    return {
        token.content: int(number)
        for number, token in added.items()
        if token.content and (token.special or marks_turn(token.content)) and not BYTE.fullmatch(token.content)
    }
