"""Token ids of texts that grow by lines, as histories do: a line that was seen before is not encoded again.

The ids are those of the whole text. That takes a tokenizer that first splits a text into words, none of which goes on
beyond a line's end if something visible stands on both sides of it: byte-level BPE does (GPT-2's, Llama 3's, Qwen's,
those made here), SentencePiece does not. Which one it is, is asked of the tokenizer itself; others encode the whole.
"""

from __future__ import annotations

import re
from itertools import product
from typing import Any
from weakref import WeakKeyDictionary

LINE_END = re.compile(r"(?<=[!-~]\n)(?=[!-~])")
"""Where a text may be cut. (Blank characters beside the newline may join it in a word.)"""

MOST_LINES = 2**14
"""Lines that are remembered; then remembering begins anew."""

VISIBLE = "aZ09.,:;>-+|'\"(_#<"
"""Of the kinds of visible characters that splitting rules tell apart, some each."""

_known: WeakKeyDictionary[Any, dict[str, list[int]] | None] = WeakKeyDictionary()


def encode_lines(tokenizer: Any, text: str) -> list[int]:
    """The ids of a text, without special tokens: what `tokenizer.encode` returns."""
    if tokenizer not in _known:
        _known[tokenizer] = {} if splits_at_lines(tokenizer) else None
    known = _known[tokenizer]
    if known is None:
        return list(tokenizer.encode(text, add_special_tokens=False))
    ids: list[int] = []
    for line in LINE_END.split(text):
        if line not in known:
            if len(known) >= MOST_LINES:
                known.clear()
            known[line] = tokenizer.encode(line, add_special_tokens=False)
        ids += known[line]
    return ids


def splits_at_lines(tokenizer: Any) -> bool:
    """Whether a text's ids are those of its lines, one after another."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    splitter = getattr(backend, "pre_tokenizer", None)
    if splitter is None or type(backend.normalizer).__name__ not in ("NoneType", "NFC"):
        return False
    added = backend.get_added_tokens_decoder().values()
    if any("\n" in token.content or (token.lstrip and LINE_END.search(f".\n{token.content}")) for token in added):
        return False

    def words(text: str) -> list[str]:
        return [word for word, _ in splitter.pre_tokenize_str(text)]

    pairs = [(f"a{left}\n", f"{right}b") for left, right in product(VISIBLE, repeat=2)]
    return all(words(first + second) == words(first) + words(second) for first, second in pairs)
