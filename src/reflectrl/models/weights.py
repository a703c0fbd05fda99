"""Sizes of a model's weights, read from the headers of its safetensors files. No weights are loaded."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path

from reflectrl.core.config import ModelConfig
from reflectrl.core.json_lines import parse_json
from reflectrl.core.regular_files import open_regular
from reflectrl.core.types import UserError

GIB = 2**30

BITS = {"nf4": 4.5, "int8": 8.0, "float32": 32.0, "bfloat16": 16.0}
"""Bits per number. NF4 also stores a constant per 64 numbers, which is itself quantised (Dettmers et al. 2023)."""

TABLES = ("embed", "wte", "wpe", "lm_head", "embed_out")
"""Parts of the names of embedding tables and heads, which are never quantised and get no adapter."""


def shapes_of(folder: Path, files: str = "model*.safetensors") -> dict[str, tuple[int, ...]]:
    """Map the name of every tensor in a folder's safetensors files to its shape.

    Raises:
        UserError: a header cannot be read.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob(files)):
        try:
            with open_regular(path) as file:
                (length,) = struct.unpack("<Q", file.read(8))
                if length > path.stat().st_size:
                    raise ValueError("the header is longer than the file")
                header = parse_json(file.read(length))
            shapes |= {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
        except (OSError, ValueError, struct.error, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is not a safetensors file: {error}") from error
    return shapes


def weight_bytes(shapes: Mapping[str, tuple[int, ...]], model: ModelConfig) -> float:
    """Return the bytes of a copy of the weights, in the precision and quantisation that `model` sets."""
    linear = BITS.get(model.quantisation, BITS[model.dtype])
    bits = sum(prod(s) * (linear if is_linear(name, s) else BITS[model.dtype]) for name, s in shapes.items())
    return bits / 8


def is_linear(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor is the matrix of a linear layer, which may be quantised and get an adapter."""
    return len(shape) == 2 and not any(table in name for table in TABLES)
