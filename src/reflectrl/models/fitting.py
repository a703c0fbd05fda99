"""How much memory a model needs, told from its files before it is loaded.

Nothing is loaded for it, not even torch: the headers of safetensors files list every tensor with its shape, and
`config.json` says the rest. So a dry run can show the estimate.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectrl.config import ModelConfig, Recipe
from reflectrl.types import UserError

if TYPE_CHECKING:
    import torch

GIB = 2**30

BITS = {"nf4": 4.5, "int8": 8.0, "float32": 32.0, "bfloat16": 16.0}
"""Bits per number; NF4 holds a constant per 64 numbers beside them, which is quantised again (Dettmers et al. 2023)."""

VECTORS = 20
"""Vectors of the model's width that a layer keeps of each token for the gradient (`LanguageModel.activation_bytes`)."""

PASS = 4 * GIB
"""Activations to which SFT cuts its passes (`learn.examples.ACTIVATIONS`); a longer row is a pass of its own."""

TABLES = ("embed", "wte", "wpe", "lm_head", "embed_out")
"""What the names of embedding tables and heads contain: never quantised, and given no adapter."""


@dataclass(frozen=True)
class Need:
    """Bytes that a run needs at its peak, by what they are for."""

    weights: float
    adapters: float
    learner: float
    caches: float
    activations: float

    @property
    def play(self) -> float:
        """Both players and what they keep of their episodes."""
        return self.weights + self.adapters + self.caches

    @property
    def update(self) -> float:
        """Both players, gradients and the optimiser's state of the one that learns, and activations."""
        return self.weights + self.adapters + self.learner + self.activations

    sft = rl = update

    def __str__(self) -> str:
        parts = ", ".join(f"{part.name} {getattr(self, part.name) / GIB:.2f}" for part in fields(self))
        return f"about {max(self.play, self.update) / GIB:.2f} GiB ({parts})"


def shapes_of(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name → shape of every tensor in a folder's safetensors files; UserError where a header cannot be read."""
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        try:
            with path.open("rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                if length > path.stat().st_size:
                    raise ValueError("the header is longer than the file")
                header = json.loads(file.read(length))
            found |= {name: tuple(one["shape"]) for name, one in header.items() if name != "__metadata__"}
        except (OSError, ValueError, struct.error, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is no safetensors file: {error}") from error
    return found


def weight_bytes(shapes: Mapping[str, tuple[int, ...]], model: ModelConfig) -> float:
    """Bytes of one copy of the weights as `model` wants them loaded."""
    linear = BITS.get(model.quantisation, BITS[model.dtype])
    bits = sum(prod(s) * (linear if _is_linear(name, s) else BITS[model.dtype]) for name, s in shapes.items())
    return bits / 8


def adapter_bytes(shapes: Mapping[str, tuple[int, ...]], model: ModelConfig) -> float:
    """Bytes of one player's adapter, in float32: rank · (inputs + outputs) of every linear layer."""
    return 4.0 * model.lora_rank * sum(sum(shape) for name, shape in shapes.items() if _is_linear(name, shape))


def estimate(recipe: Recipe) -> Need | None:
    """What a recipe needs at its peak; None where the model is made from scratch or its files are not at hand."""
    model, folder = recipe.model, Path(recipe.model.source)
    if model.source == "scratch" or not (shapes := shapes_of(folder)):
        return None
    size = _text_config(folder)
    layers, width, heads = (
        int(next((size[name] for name in names if size.get(name)), 0))
        for names in (
            ("num_hidden_layers", "n_layer"),
            ("hidden_size", "n_embd"),
            ("num_attention_heads", "n_head"),
        )
    )
    weights, adapter = weight_bytes(shapes, model), adapter_bytes(shapes, model)
    number = BITS[model.dtype] / 8
    kept = size.get("num_key_value_heads") or heads
    token = 2 * layers * kept * (size.get("head_dim") or width // max(1, heads)) * number
    live = max(recipe.rl.episodes, recipe.eval.batch) * 2 * model.context * token
    row = model.context * VECTORS * width * layers * number
    learner = 3 * (adapter if model.lora_rank else weights)
    copies = 1 if model.lora_rank else 2
    return Need(
        weights * copies,
        2 * adapter,
        learner,
        min(live, 2 * recipe.play.kv_cache_mib * 2**20),
        max(row, min(PASS, recipe.sft.batch_size * row)),
    )


def available() -> float:
    """Bytes of memory that this machine (or its control group) can give now; infinite where nobody says."""
    found = float("inf")
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found = 1024.0 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
        return found if limit == "max" else min(found, float(int(limit) - used))
    except (OSError, StopIteration, ValueError):
        if found == float("inf") and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
            return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        return found


def free_bytes(device: torch.device) -> float:
    """Bytes of memory that a device can give now; those of the machine for a CPU."""
    if device.type != "cuda":
        return available()
    import torch

    return float(torch.cuda.mem_get_info(device)[0])


def refuse_unless_fitting(source: str, model: ModelConfig, free: float) -> None:
    """Raise UserError where one copy of a model's weights alone is larger than the memory, before it is loaded.

    Args:
        free: bytes that the device has to give.
    """
    needed = weight_bytes(shapes_of(Path(source)), model)
    if needed > free:
        advice = ["model.dtype = 'bfloat16'"] if model.dtype == "float32" and model.quantisation == "none" else []
        advice += [] if model.quantisation == "nf4" else ["model.quantisation = 'nf4' with model.lora_rank"]
        about = f"its weights need {needed / GIB:.2f} GiB, and {max(0.0, free) / GIB:.2f} are free"
        raise UserError(f"model {source!r} does not fit: {about}; try {' or '.join([*advice, 'a smaller model'])}")


def _is_linear(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and not any(table in name for table in TABLES)


def _text_config(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return dict(found.get("text_config") or found)
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{folder / 'config.json'} cannot be read: {error}") from error
