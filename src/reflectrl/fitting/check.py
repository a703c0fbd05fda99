"""The check of a recipe against the memory there is: what a dry run shows, and what a run refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from reflectrl.config import Recipe
from reflectrl.distributed import launched
from reflectrl.fitting.estimate import estimate
from reflectrl.models.memory import available
from reflectrl.models.weights import GIB
from reflectrl.types import UserError


def note(recipe: Recipe) -> str:
    """One line for a dry run; "" where nothing is known."""
    need = estimate(recipe)
    return "" if need is None else f"Memory: needs {need}; {available() / GIB:.2f} GiB of the machine's are free"


def require(recipe: Recipe) -> None:
    """Refuse a run that cannot fit on its device; UserError as `require_memory` raises it."""
    from reflectrl.models.load import pick_device  # brings torch, which a dry run does without
    from reflectrl.models.memory import free_bytes

    device = pick_device(recipe.model.device)
    pieces = launched()[1] if recipe.model.shard and device.type == "cuda" else 1  # a GPU for each
    require_memory(recipe, free_bytes(device) * pieces)


def require_memory(recipe: Recipe, free: float) -> None:
    """Refuse a run that cannot fit, however short its texts are.

    Args:
        free: bytes that the device has to give.

    Raises:
        UserError: says what is needed and there, and which settings would fit.
    """
    need = estimate(recipe)
    if need is None or need.least.peak <= free:
        return
    fitting = [(words, least) for words, least in _thriftier(recipe) if least <= free]
    ways = "; ".join(f"with {words} it needs {least / GIB:.2f}" for words, least in fitting[:3])
    about = f"needs about {need.least.peak / GIB:.2f} GiB before any text, and {max(0.0, free) / GIB:.2f} are free"
    raise UserError(f"model {' and '.join(map(repr, recipe.model.sources))} {about}; {ways or 'take a smaller model'}")


def _thriftier(recipe: Recipe) -> Iterator[tuple[str, float]]:
    """Settings that need less memory, in words, and how much at least; those that change least come first."""
    model = recipe.model
    lora: dict[str, Any] = {} if model.lora_rank else {"lora_rank": 16}
    half: dict[str, Any] = {} if model.dtype == "bfloat16" else {"dtype": "bfloat16"}
    quantised: dict[str, Any] = {} if model.quantisation == "nf4" else {"quantisation": "nf4"}
    tried = [lora, half, {**lora, **half}, {**lora, **quantised}, {**lora, **half, **quantised}]
    seen: list[dict[str, Any]] = [{}]
    for settings in tried:
        if settings not in seen:
            seen.append(settings)
            need = estimate(replace(recipe, model=replace(model, **settings)))
            if need is not None:
                yield " and ".join(f"model.{key}={value}" for key, value in settings.items()), need.least.peak
