"""Checks of an untrusted adapter or model that are possible only while it is loaded (see `soundness.py`).

A hostile file must end in an error of one line, within seconds. So these checks refuse patterns that a library would
match for ever, and sizes that are far larger than the weights.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.modules import module as registrations

from reflectrl.core.types import UserError
from reflectrl.models.weights import shapes_of

SECONDS = 3
"""Longest time in seconds for matching an adapter's patterns with the names of a model's modules."""
PICKLES = "*.bin"
"""File names of pickled weights, which have no header that could be read safely."""
BUFFERS = re.compile(r"(^|\.)(inv_freq|position_ids|masked_bias|causal_mask|attn\.bias|attention\.bias)$")
"""Names of tensors in old checkpoints that are not weights: masks and angles, which the model computes itself."""
NAMED = 3
"""Largest number of tensors that an error names."""


# ---- adapters --------------------------------------------------------------------------------------------------------

MATCH = r"""
import json, re, sys
patterns, names = json.load(sys.stdin)
forms = "({})", r"(.*\.)?({})$", r"(^|.*\.){}($|\..*)", r"(?:^|.*?\.){}\.(?P<idx>\d+)\."
for pattern in patterns:
    for form in forms:
        form = re.compile(form.replace("{}", pattern))
        for name in names:
            form.fullmatch(name)
            form.match(name)
"""
"""Program that matches patterns like PEFT, in all forms in which PEFT uses them."""


def require_quick_patterns(path: Path, settings: Mapping[str, Any], model: nn.Module) -> None:
    """Refuse an adapter if matching its patterns with the names of a model's modules would take for ever.

    The patterns are tried in a separate process, since a match cannot be interrupted.

    Args:
        path: the adapter's settings file, for errors.
        settings: content of `adapter_config.json`.

    Raises:
        UserError: a pattern is invalid, or matching takes longer than `SECONDS`.
    """
    patterns = sorted({text for text in _texts(settings) if re.search(r"[*+{]", text)})
    if not patterns:
        return
    request = json.dumps([patterns, [name for name, _ in model.named_modules()]])
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", MATCH], input=request, text=True, capture_output=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{path}: its patterns take for ever to match, such as {patterns[0][:100]!r}") from None
    if done.returncode:
        raise UserError(f"{path}: a pattern cannot be used, such as {patterns[0][:100]!r}")


def _texts(value: Any) -> Iterator[str]:
    """Yield every string in a JSON value, keys included."""
    if isinstance(value, Mapping):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


# ---- sizes and names -------------------------------------------------------------------------------------------------


@contextmanager
def within_weights(folder: Path) -> Iterator[None]:
    """Stop a library from building a model that is far larger than the weights in a folder."""
    shapes = shapes_of(folder, "*.safetensors")
    pickled = sum(path.stat().st_size for path in folder.glob(PICKLES))  # has no header that could be read safely
    with bounded(len(shapes) + pickled // 100, sum(map(prod, shapes.values())) + pickled):
        yield


@contextmanager
def bounded(tensors: int, numbers: int) -> Iterator[None]:
    """Stop a library from building a model that is far larger than its weights.

    The bounds are generous, because tensors may be shared or packed (quantised models), and parameters are registered
    twice while a model is loaded.

    Args:
        tensors: number of tensors in the weights.
        numbers: number of elements in all these tensors together.

    Raises:
        ValueError: within the block, as soon as the model being built exceeds the bounds.
    """
    left = {"tensors": 8 * tensors + 1000, "numbers": 16 * numbers + 2**20}

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None:
            left["tensors"] -= 1
            left["numbers"] -= parameter.numel()
        if min(left.values()) < 0:
            raise ValueError(f"its configuration describes a far larger model than its weights ({numbers} numbers)")

    handle = registrations.register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


def require_all_loaded(about: str, missing: Iterable[str], unexpected: Iterable[str]) -> None:
    """Refuse weights with missing tensors, which would be drawn at random, or with tensors that have no place.

    Args:
        about: name of the model or adapter, for the message.
        missing: names of missing tensors.
        unexpected: names of tensors without a place in the model. `BUFFERS` are ignored.

    Raises:
        UserError: names the tensors.
    """
    wrong = {
        "missing": sorted(missing),
        "unexpected": sorted(name for name in unexpected if not BUFFERS.search(name)),
    }
    problems = [f"{_listed(names)} {kind}" for kind, names in wrong.items() if names]
    if problems:
        raise UserError(f"{about}: the names of its weights do not fit its configuration: {'; '.join(problems)}")


def _listed(names: list[str]) -> str:
    first_names = ", ".join(name[:100] for name in names[:NAMED])
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{first_names}{more} {'is' if len(names) == 1 else 'are'}"


@contextmanager
def hushed() -> Iterator[None]:
    """Silence libraries' warnings and progress bars within the block. Our own errors report problems instead."""
    from transformers.utils import logging as library

    before, bars = library.get_verbosity(), library.is_progress_bar_enabled()
    library.set_verbosity(logging.CRITICAL + 1)
    library.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        library.set_verbosity(before)
        if bars:
            library.enable_progress_bar()
