"""The header of a GGUF file, read within the bounds of the file: settings and the sizes of tensors.

Libraries trust the lengths that a header gives. With a hostile file, they read on for ever beyond its end.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Number of a type → its letter in `struct`."""
STRING, ARRAY = 8, 9
DEEPEST = 4
"""Largest depth of nested arrays."""
LONGEST = 4096
"""Largest count of numbers in an array that is kept. Longer ones are about tokens, and not about layers."""


class Header(NamedTuple):
    """Facts about a model from its GGUF file.

    Attributes:
        settings: all settings, by name: numbers, texts, and short lists of numbers; None for other values.
        shapes: the shapes of all tensors, by name.
    """

    settings: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def architecture(self) -> str:
        """Name of the model's architecture."""
        return str(self.settings.get("general.architecture", ""))

    def of(self, prefix: str) -> dict[str, Any]:
        """Return the settings with a prefix, by the rest of their names."""
        return {
            name.removeprefix(f"{prefix}."): value
            for name, value in self.settings.items()
            if name.startswith(f"{prefix}.")
        }


def read_header(file: Path) -> Header:
    """Read a header.

    Raises:
        ValueError: it is damaged, or the file ends before its header does.
        OSError: the file cannot be read.
    """
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = _Cursor(data, len(b"GGUF") + struct.calcsize("I"))
        tensors, pairs = cursor.take("Q"), cursor.take("Q")
        settings, shapes = dict[str, Any](), dict[str, tuple[int, ...]]()
        for _ in range(pairs):
            name = cursor.string()
            settings[name] = cursor.value(cursor.take("I"))
        for _ in range(tensors):
            name = cursor.string()
            shapes[name] = tuple(cursor.take("Q") for _ in range(cursor.take("I")))
            cursor.skip(struct.calcsize("<IQ"))  # type and offset
        if sum(map(prod, shapes.values())) > 16 * len(data):  # no quantisation stores 16 numbers in a byte
            raise ValueError("its tensors are larger than the file")
        return Header(settings, shapes)


@dataclass
class _Cursor:
    """A position in a header. Reading beyond the end raises ValueError."""

    data: mmap.mmap
    place: int

    def skip(self, length: int) -> int:
        """Skip some bytes, and return the position where they began."""
        start, self.place = self.place, self.place + length
        if self.place > len(self.data):
            raise ValueError("the file ends within its header")
        return start

    def take(self, letter: str) -> Any:
        """Read a number."""
        return struct.unpack_from(f"<{letter}", self.data, self.skip(struct.calcsize(f"<{letter}")))[0]

    def string(self) -> str:
        """Read a text."""
        length = self.take("Q")
        start = self.skip(length)
        return self.data[start : start + length].decode("utf-8", errors="replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        """Read a value: a number, a text, or a short list of numbers. Other arrays are skipped, and give None."""
        if kind in SCALARS:
            return self.take(SCALARS[kind])
        if kind == STRING:
            return self.string()
        if kind == ARRAY and depth < DEEPEST:
            inner, count = self.take("I"), self.take("Q")
            if inner in SCALARS and count <= LONGEST:
                return [self.take(SCALARS[inner]) for _ in range(count)]
            if inner in SCALARS:
                self.skip(count * struct.calcsize(f"<{SCALARS[inner]}"))
            else:
                for _ in range(count):  # each is 8 bytes at least, so this ends with the file
                    self.value(inner, depth + 1)
        else:
            raise ValueError(f"it has a value of an unknown kind ({kind})")
        return None
