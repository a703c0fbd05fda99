"""Variables of a TensorFlow SavedModel, the folder in which Keras 2 saves a model, read without TensorFlow.

The folder holds `saved_model.pb`, a protocol buffer with the names of the variables, and `variables/`, whose index is a
sorted table in LevelDB's format and whose shards are raw numbers. Everything else in it, programs included, is skipped.

Sources: tensorflow/core/protobuf (saved_model, meta_graph, saved_object_graph, tensor_bundle) for the fields, and
tensorflow/core/lib/io/format.h for the table.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reflectrl.core.regular_files import read_regular

MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
"""Last bytes of a table."""
FOOTER = 48
"""Length of a table's footer: where two blocks are, zeros, and the magic number."""
FLOAT32 = 1
"""Number of the type float32 in TensorFlow's protocol buffers."""
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
"""End of the key of a variable's value."""


class _Object(NamedTuple):
    """A node of a model's tree of objects.

    Attributes:
        children: numbers of other nodes, by attribute.
        variable: name of the variable that this is; "" for other objects.
    """

    children: dict[str, int]
    variable: str


def read_variables(folder: Path) -> dict[str, np.ndarray]:
    """Map the names of a SavedModel's float32 variables to their values, which stay on the disk until they are used.

    The optimiser's variables and the metrics' are left out.

    Raises:
        ValueError: a file is damaged, or in a format that TensorFlow does not write for variables.
        OSError: a file cannot be read.
    """
    try:
        objects = _objects(memoryview(read_regular(folder / "saved_model.pb")))
        table = _table(memoryview(read_regular(folder / "variables" / "variables.index")))
        shards = _number(table.pop(b"", memoryview(b"")), 1)
        variables = {}
        for key, entry in table.items():
            path = key.decode("utf-8")
            if not path.endswith(VALUE) or path.startswith(("optimizer/", "keras_api/")) or ".OPTIMIZER_SLOT" in path:
                continue
            if _number(entry, 1) == FLOAT32:
                shard = f"variables.data-{_number(entry, 3):05}-of-{shards:05}"
                name = _variable(objects, path.removesuffix(VALUE))
                variables[name] = _values(folder / "variables" / shard, entry)
        return variables
    except (IndexError, KeyError, struct.error, OverflowError, TypeError) as error:  # numbers that lead nowhere
        raise ValueError("its index of variables is damaged") from error


def _variable(objects: list[_Object], path: str) -> str:
    """Follow a path of attributes from the root, and return the name of the variable there."""
    node = objects[0]
    for attribute in path.split("/"):
        node = objects[node.children[attribute]]
    return node.variable


def _values(path: Path, entry: memoryview) -> np.ndarray:
    """Map the numbers of a variable into memory."""
    shape = tuple(_number(size, 1) for size in _messages(_message(entry, 2), 2))
    if _number(entry, 5) != 4 * prod(shape):
        raise ValueError("the size of a variable does not fit its shape")
    if not path.is_file():
        raise ValueError(f"{path.name} is missing")
    return np.memmap(path, np.dtype("<f4"), "r", _number(entry, 4), shape)


def _objects(data: memoryview) -> list[_Object]:
    """Read the tree of objects of the first graph in `saved_model.pb`."""
    graph = _message(_message(data, 2), 7)
    objects = []
    for node in _messages(graph, 1):
        children = {_text(child, 2): _number(child, 1) for child in _messages(node, 1)}
        objects.append(_Object(children, _text(_message(node, 7), 6)))
    return objects


# ---- protocol buffers ------------------------------------------------------------------------------------------------


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a message. A value is a whole number, or bytes."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == 0:
            value, position = _varint(data, position)
            yield tag >> 3, value
            continue
        if kind == 2:
            length, position = _varint(data, position)
        elif kind in (1, 5):  # numbers of 8 and 4 bytes
            length = 8 if kind == 1 else 4
        else:
            raise ValueError("a message has a field of an unknown kind")
        yield tag >> 3, _slice(data, position, length)
        position += length


def _messages(data: memoryview, number: int) -> list[memoryview]:
    return [value for field, value in _fields(data) if field == number]


def _message(data: memoryview, number: int) -> memoryview:
    """Return the first field with this number; an empty message if there is none."""
    return next((value for field, value in _fields(data) if field == number), memoryview(b""))


def _number(data: memoryview, number: int) -> int:
    """Return a whole number of a message; 0, the default, if it is not there."""
    return next((int(value) for field, value in _fields(data) if field == number), 0)


def _text(data: memoryview, number: int) -> str:
    return bytes(_message(data, number)).decode("utf-8")


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """Read a number of seven bits per byte, and return it with the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number is too long")


def _slice(data: memoryview, position: int, length: int) -> memoryview:
    if position + length > len(data):
        raise ValueError("a file ends too early")
    return data[position : position + length]


# ---- tables ----------------------------------------------------------------------------------------------------------


def _table(data: memoryview) -> dict[bytes, memoryview]:
    """Read all keys and values of a table. Its last block lists the blocks that hold them."""
    if bytes(data[-len(MAGIC) :]) != MAGIC:
        raise ValueError("variables.index is not a table of variables")
    footer = data[-FOOTER:]
    position = 0
    for _ in range(2):  # past a block that is not needed
        _, position = _varint(footer, position)
    entries = {}
    for _, handle in _block(data, footer[position:]):
        for key, value in _block(data, handle):
            entries[key] = value
    return entries


def _block(data: memoryview, handle: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the keys and values of a block, given the bytes that say where it is.

    Each key begins with a part of the key before it, of which only the length is written.
    """
    offset, position = _varint(handle, 0)
    size, _ = _varint(handle, position)
    block = _slice(data, offset, size)
    if data[offset + size] != 0:
        raise ValueError("variables.index is compressed")  # TensorFlow can read this, but does not write it
    (restarts,) = struct.unpack("<I", block[-4:])
    end, position, key = size - 4 * (restarts + 1), 0, b""
    while position < end:
        shared, position = _varint(block, position)
        rest, position = _varint(block, position)
        length, position = _varint(block, position)
        key = key[:shared] + bytes(_slice(block, position, rest))
        yield key, _slice(block, position + rest, length)
        position += rest + length
