"""Check of a recipe against the available memory, for dry runs (a note) and runs (a refusal)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from reflectrl.core.config import Recipe
from reflectrl.core.types import UserError
from reflectrl.models.memory import available
from reflectrl.models.weights import GIB
from reflectrl.tools.fitting.estimate import estimate


def note(recipe: Recipe, free: float | None = None) -> str:
    """Return one line about memory for a dry run; "" if nothing is known.

    Args:
        free: free bytes; None asks the machine (not a GPU, since a dry run does not import torch).
    """
    need, count = estimate(recipe), side_by_side(recipe)
    if need is None:
        return ""
    free = available() if free is None else free
    each = f", in each of {count} processes" if count > 1 else ""
    summary = f"Memory: needs {need}{each}; {free / GIB:.2f} GiB of the machine's are free"
    if need.peak * count <= free:
        return summary
    fitting = [f"with {words} it needs {most / GIB:.2f}" for words, _, most in _thriftier(recipe) if most <= free]
    return f"{summary}: too little for texts of that length; {'; '.join(fitting[:3]) or 'set a smaller model.context'}"


def side_by_side(recipe: Recipe) -> int:
    """Return the number of processes on this machine that each load their own models."""
    return recipe.processes if recipe.engine == "local" else 1


def require(recipe: Recipe) -> None:
    """Refuse a run that cannot fit on its device. Raises UserError as `require_memory` does."""
    from reflectrl.models.load import pick_device  # brings torch, which a dry run does without
    from reflectrl.models.memory import free_bytes

    device = pick_device(recipe.model.device)
    require_memory(recipe, free_bytes(device))


def require_memory(recipe: Recipe, free: float) -> None:
    """Refuse a run that cannot fit, even with the shortest texts.

    Args:
        free: free bytes of the device.

    Raises:
        UserError: gives the needed and the free memory, and settings that would fit.
    """
    need, count = estimate(recipe), side_by_side(recipe)
    if need is None or need.least.peak * count <= free:
        return
    fitting = [f"with {words} it needs {least / GIB:.2f}" for words, least, _ in _thriftier(recipe) if least <= free]
    advice = "; ".join(fitting[:3])
    before = f"before any text{f' in {count} processes' if count > 1 else ''}"
    about = f"needs about {need.least.peak * count / GIB:.2f} GiB {before}, and {max(0.0, free) / GIB:.2f} are free"
    raise UserError(
        f"model {' and '.join(map(repr, recipe.model.sources))} {about}; {advice or 'take a smaller model'}"
    )


def _thriftier(recipe: Recipe) -> Iterator[tuple[str, float, float]]:
    """Yield settings that need less memory, in words, with bytes before any text and with prompts that fill the
    context.

    The smallest changes come first.
    """
    model = recipe.model
    lora: dict[str, Any] = {} if model.lora_rank else {"lora_rank": 16}
    lora |= {"frozen_layers": 0} if model.frozen_layers else {}  # adapters leave all layers as they are
    half: dict[str, Any] = {} if model.dtype == "bfloat16" else {"dtype": "bfloat16"}
    quantised: dict[str, Any] = {} if model.quantisation == "nf4" else {"quantisation": "nf4"}
    checkpointing: dict[str, Any] = {} if model.gradient_checkpointing else {"gradient_checkpointing": True}
    candidates = [checkpointing, lora, half, {**checkpointing, **lora}, {**lora, **half}, {**lora, **quantised}]
    candidates += [{**lora, **half, **quantised}, {**checkpointing, **lora, **half, **quantised}]
    distinct = [settings for i, settings in enumerate(candidates) if settings not in candidates[:i]]
    count = side_by_side(recipe)
    fewer_processes: list[tuple[int, dict[str, Any]]] = [(1, {})] if count > 1 else []
    for processes, settings in (*fewer_processes, *product(sorted({count, 1}, reverse=True), distinct)):
        need = estimate(replace(recipe, model=replace(model, **settings)))
        words = ["processes=1"] if processes < count else []
        words += [f"model.{key}={str(value).lower()}" for key, value in settings.items()]
        if words and need is not None:
            yield " and ".join(words), need.least.peak * processes, need.peak * processes
