"""What reading a file gives, and a memory of what was read."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Any


@dataclass(frozen=True, slots=True)
class Text:
    """The text of a file, or its beginning. Bytes that are not UTF-8 are U+FFFD in it."""

    text: str
    complete: bool = True
    """Whether this is all of the file."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why there is no text: a few words, in lower case."""

    reason: str


def printable(text: str) -> str:
    """A text as one line, without control characters, marks that turn the direction of reading, and repeated spaces."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


class TextCache:
    """The texts that were used last, within so many bytes of memory. Threads may share it; a copy begins empty."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        """Bytes that are held, never more than the limit."""
        self._texts: OrderedDict[Hashable, Text] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable) -> Text | None:
        """The text that was put there, if it is still held."""
        with self._lock:
            if (found := self._texts.get(key)) is not None:
                self._texts.move_to_end(key)
            return found

    def put(self, key: Hashable, text: Text) -> None:
        """Hold a text, letting go of those that were not used for longest."""
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
