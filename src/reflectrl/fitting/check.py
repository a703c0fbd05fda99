"""The check of a recipe against the memory there is: what a dry run shows, and what a run refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from reflectrl.config import Recipe
from reflectrl.distributed import launched
from reflectrl.fitting.estimate import estimate
from reflectrl.models.memory import available
from reflectrl.models.weights import GIB
from reflectrl.types import UserError


def note(recipe: Recipe, free: float | None = None) -> str:
    """One line for a dry run; "" where nothing is known.

    Args:
        free: bytes that are free; None asks the machine (not a GPU, since a dry run does without torch).
    """
    need, count = estimate(recipe), side_by_side(recipe)
    if need is None:
        return ""
    free = available() if free is None else free
    each = f", in each of {count} processes" if count > 1 else ""
    said = f"Memory: needs {need}{each}; {free / GIB:.2f} GiB of the machine's are free"
    if need.peak * count <= free:
        return said
    fitting = [f"with {words} it needs {most / GIB:.2f}" for words, _, most in _thriftier(recipe) if most <= free]
    return f"{said}: too little for texts so long; {'; '.join(fitting[:3]) or 'set a smaller model.context'}"


def side_by_side(recipe: Recipe) -> int:
    """How many processes load models of their own on this machine."""
    return recipe.processes if recipe.engine == "local" else 1


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
    need, count = estimate(recipe), side_by_side(recipe)
    if need is None or need.least.peak * count <= free:
        return
    fitting = [f"with {words} it needs {least / GIB:.2f}" for words, least, _ in _thriftier(recipe) if least <= free]
    ways = "; ".join(fitting[:3])
    before = f"before any text{f' in {count} processes' if count > 1 else ''}"
    about = f"needs about {need.least.peak * count / GIB:.2f} GiB {before}, and {max(0.0, free) / GIB:.2f} are free"
    raise UserError(f"model {' and '.join(map(repr, recipe.model.sources))} {about}; {ways or 'take a smaller model'}")


def _thriftier(recipe: Recipe) -> Iterator[tuple[str, float, float]]:
    """Settings that need less memory, in words, and bytes: before any text, and where prompts fill the context.

    Those that change least come first.
    """
    model = recipe.model
    lora: dict[str, Any] = {} if model.lora_rank else {"lora_rank": 16}
    lora |= {"frozen_layers": 0} if model.frozen_layers else {}  # adapters leave all layers as they are
    half: dict[str, Any] = {} if model.dtype == "bfloat16" else {"dtype": "bfloat16"}
    quantised: dict[str, Any] = {} if model.quantisation == "nf4" else {"quantisation": "nf4"}
    again: dict[str, Any] = {} if model.gradient_checkpointing else {"gradient_checkpointing": True}
    tried = [again, lora, half, {**again, **lora}, {**lora, **half}, {**lora, **quantised}]
    tried += [{**lora, **half, **quantised}, {**again, **lora, **half, **quantised}]
    distinct = [settings for i, settings in enumerate(tried) if settings not in tried[:i]]
    count = side_by_side(recipe)
    ways: list[tuple[int, dict[str, Any]]] = [(1, {})] if count > 1 else []
    for processes, settings in (*ways, *product(sorted({count, 1}, reverse=True), distinct)):
        need = estimate(replace(recipe, model=replace(model, **settings)))
        words = ["processes=1"] if processes < count else []
        words += [f"model.{key}={str(value).lower()}" for key, value in settings.items()]
        if words and need is not None:
            yield " and ".join(words), need.least.peak * processes, need.peak * processes
