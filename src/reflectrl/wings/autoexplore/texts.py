"""Results of reading a file, and a cache of texts."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Any


@dataclass(frozen=True, slots=True)
class Text:
    """Text of a file, or its beginning. Bytes that are not UTF-8 become U+FFFD."""

    text: str
    complete: bool = True
    """True if the text is the whole file."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Reason why a file has no text: a few words, in lower case."""

    reason: str


def printable(text: str) -> str:
    """Return a text as one line, without control characters, bidirectional marks, and repeated spaces."""
    if not text.isprintable():  # rare, and a loop over all characters is slow
        text = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(text.split())


class TextCache:
    """Least-recently-used cache of texts, limited in bytes. It is thread-safe. A copy starts empty."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        """Number of cached bytes, at most the limit."""
        self._texts: OrderedDict[Hashable, Text] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable) -> Text | None:
        """Return a cached text; None if there is none."""
        with self._lock:
            if (text := self._texts.get(key)) is not None:
                self._texts.move_to_end(key)
            return text

    def put(self, key: Hashable, text: Text) -> None:
        """Cache a text, and evict the least recently used texts above the limit."""
        with self._lock:
            if (former := self._texts.pop(key, None)) is not None:
                self.size -= sys.getsizeof(former.text)
            self._texts[key] = text
            self.size += sys.getsizeof(text.text)
            while self.size > self.limit:
                _, dropped = self._texts.popitem(last=False)
                self.size -= sys.getsizeof(dropped.text)

    def __reduce__(self) -> tuple[Any, ...]:
        return TextCache, (self.limit,)
