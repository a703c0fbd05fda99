"""Conventions of tokenizers, found by trying them: how sequences begin and end, and how texts become tokens.

A tokenizer's attributes are not a reliable guide. A tokenizer with a `bos_token` may never put it before a text
(SmolLM2), and a tokenizer whose beginning and end are the same token may well do so (OPT). SentencePiece puts a space
before every text, and WordPiece marks continuations of words. With both, a text after another text has other tokens
than alone.

Text of an environment or of data stays text: a control token that is spelled out in it becomes ordinary tokens.
Otherwise an observation could end the user's turn, and a completion could end the sequence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

WORDS = ("a", "the", "1", ".")
"""Texts for finding the tokens that a tokenizer puts around a text."""

SEAMS = (("x:", "y"), ("x\n", "y"), ("x", " y"), ("x.", "\ny"), ("", " y"))
"""Pairs of consecutive texts with different characters at the seam, for trying a tokenizer."""

ANCHORS = (":", "|", "\n")
"""Characters after which a text is encoded as if in the middle of a longer text. Words rarely merge with them."""

BYTE = re.compile("<0x[0-9A-F]{2}>")
"""Tokens for the bytes of characters without tokens of their own. Some tokenizers declare these tokens as special."""

MOST_TEMPLATES = 64
"""Largest number of template texts whose tokens are cached. When it is reached, the cache is emptied."""


@dataclass(frozen=True)
class Conventions:
    """Conventions of a tokenizer.

    Attributes:
        start: tokens that it puts before a text.
        end: tokens that it puts after a text.
        separable: True if the concatenated tokens of two texts decode to the joined text, as with byte-level BPE.
        spelled: spellings of the control tokens, longest first.
        controls: ids of control tokens, which no encoded text may contain.
        templates: cache of the tokens of templates' texts, in which control tokens have their meaning.
    """

    start: tuple[int, ...]
    end: tuple[int, ...]
    separable: bool
    spelled: tuple[str, ...]
    controls: frozenset[int]
    templates: dict[str, list[int]] = field(default_factory=dict)


_known: WeakKeyDictionary[Any, Conventions] = WeakKeyDictionary()


def conventions(tokenizer: Any) -> Conventions:
    """Return the conventions of a tokenizer. They are found once and cached."""
    if tokenizer not in _known:
        start, end = _around(tokenizer)
        control = _control_tokens(tokenizer)
        # The token for unknown characters is harmless, and with some tokenizers it occurs in all texts.
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
    """Return the tokens at the beginning of a sequence, which the tokenizer puts before a text."""
    return conventions(tokenizer).start


def ending(tokenizer: Any) -> tuple[int, ...]:
    """Return the tokens at the end of a finished text: the tokenizer's own, with end-of-text as the last."""
    end, last = conventions(tokenizer).end, int(tokenizer.eos_token_id)
    return end if end and end[-1] == last else (*end, last)


def encode_template(tokenizer: Any, text: str) -> list[int]:
    """Encode a text in which control tokens keep their meaning, such as the text of a chat template."""
    cache = conventions(tokenizer).templates
    if text not in cache:
        if len(cache) >= MOST_TEMPLATES:
            cache.clear()
        cache[text] = list(tokenizer.encode(text, add_special_tokens=False))
    return cache[text]


def encode_text(tokenizer: Any, text: str, behind: str = "") -> list[int]:
    """Encode a text of an environment or of data, in which control tokens become ordinary tokens.

    Args:
        behind: text directly before it, in which control tokens keep their meaning. If no token crosses the seam, the
            ids are the same as in the joined text. Otherwise the text is encoded without an added space.
    """
    rules = conventions(tokenizer)
    ids = _split(tokenizer, text) if rules.separable or not behind else _encode_behind(tokenizer, text, behind)
    if rules.controls.isdisjoint(ids):
        return ids
    if len(text) < 2:  # a single character that is a control token itself cannot be split, so it is dropped
        return [] if text in rules.spelled else ids
    # The tokenizer's own model knows the spelling (Unigram does), or the template uses tokens that are not declared
    # as special. So every control token is split after its first character.
    cuts = "|".join(f"(?<={re.escape(word[0])})(?={re.escape(word[1:])})" for word in rules.spelled if len(word) > 1)
    pieces = re.split(cuts, text) if cuts else [text]
    if len(pieces) == 1:  # the text turns into a control token only by normalisation
        pieces = [text[: len(text) // 2], text[len(text) // 2 :]]
    split_ids: list[int] = []
    for piece in pieces:
        split_ids += encode_text(tokenizer, piece, behind)
        behind = piece
    return split_ids


def decode_behind(tokenizer: Any, ids: Sequence[int], before: Sequence[int]) -> str:
    """Decode tokens that follow other tokens. Decoded alone, SentencePiece's tokens would lose their leading space."""
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    if not conventions(tokenizer).separable:
        context = list(before[-16:])  # a character may consist of several tokens
        head, joined = (str(tokenizer.decode(part, **options)) for part in (context, [*context, *ids]))
        if head and joined.startswith(head):
            return joined[len(head) :]
    return str(tokenizer.decode(list(ids), **options))


def defused(tokenizer: Any, text: str) -> str:
    """Insert a space after the first character of each control token that a text for a chat template spells out.

    A template returns a single text, in which its own control tokens could not be distinguished from control tokens in
    a message.
    """
    for word in conventions(tokenizer).spelled:
        if len(word) > 1:
            text = text.replace(word, f"{word[0]} {word[1:]}")
    return text


def template_end(tokenizer: Any, text: str) -> tuple[str, str]:
    """Split a template's text at its first control token. Return the text before it, and the rest."""
    positions = [position for word in conventions(tokenizer).spelled if (position := text.find(word)) >= 0]
    first = min(positions, default=len(text))
    return text[:first], text[first:]


def _encode_behind(tokenizer: Any, text: str, behind: str) -> list[int]:
    """Encode a text that follows another text: encode both together, and remove the ids of the first."""
    controls = conventions(tokenizer).controls
    head = tokenizer.encode(behind, add_special_tokens=False)
    joined = tokenizer.encode(behind + text, add_special_tokens=False)
    tail = joined[len(head) :]
    if joined[: len(head)] == head and controls.isdisjoint(tail):
        return list(tail)
    unknown = getattr(tokenizer, "unk_token_id", None)
    for anchor in ANCHORS:
        head, joined = _split(tokenizer, anchor), _split(tokenizer, anchor + text)
        # Adjacent unknown characters may become a single token, which would swallow the text's first character.
        if joined[: len(head)] == head and unknown not in head:
            return joined[len(head) :]
    return _split(tokenizer, text)


def _split(tokenizer: Any, text: str) -> list[int]:
    """Encode a text, with special tokens split into ordinary tokens."""
    return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))


def _around(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Find the tokens that a tokenizer puts before and after a text."""
    for word in WORDS:
        plain_ids = list(tokenizer.encode(word, add_special_tokens=False))
        full_ids = list(tokenizer.encode(word, add_special_tokens=True))
        for start in range(len(full_ids) - len(plain_ids) + 1):
            if plain_ids and full_ids[start : start + len(plain_ids)] == plain_ids:
                return tuple(full_ids[:start]), tuple(full_ids[start + len(plain_ids) :])
    return (), ()


def _is_separable(tokenizer: Any) -> bool:
    """Return whether texts that are encoded one by one give the joined text when they are decoded together."""
    return all(
        tokenizer.decode(_split(tokenizer, first) + _split(tokenizer, second)) == first + second
        for first, second in SEAMS
    )


def _control_tokens(tokenizer: Any) -> dict[str, int]:
    """Map the spellings of special tokens, and of added tokens by which a chat template marks turns, to their ids.

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
        token.content: int(token_id)
        for token_id, token in added.items()
        if token.content and (token.special or marks_turn(token.content)) and not BYTE.fullmatch(token.content)
    }
