"""The meaning of "auto" precision in a run: decided once, noted in `state.json`, and kept wherever the run continues.

The recipe keeps its "auto", so fingerprints, forks and exported agents do not depend on where a run began. Builders get
a recipe with "on" or "off" in its place, in every process and rank, and on every machine of the run.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from reflectrl.core.config import ModelConfig, Recipe
from reflectrl.models.processor import processor
from reflectrl.runs.artifact import Graph
from reflectrl.runs.state import State

KEYS = ("mixed_precision", "mixed_play")


def auto_keys(model: ModelConfig) -> list[str]:
    """Return the keys of [model] that are "auto"."""
    return [key for key in KEYS if getattr(model, key) == "auto"]


def decide(state: State, model: ModelConfig, graph: Graph) -> None:
    """Note what "auto" means in a run, if models are used and it has not been noted before.

    Raises:
        UserError: this machine does not have the device in `model.device`.
    """
    from reflectrl.models.load import pick_device  # imports torch, which a dry run does not need
    from reflectrl.models.machine import is_mixed

    if not state.auto_precision and auto_keys(model) and uses_models(graph):
        state.auto_precision = "on" if is_mixed(pick_device(model.device), "auto") else "off"


def decided(model: ModelConfig, precision: str) -> ModelConfig:
    """Return [model] with "on" or "off" where it says "auto"; unchanged if nothing is decided ("")."""
    changes: dict[str, Any] = dict.fromkeys(auto_keys(model), precision) if precision else {}
    return replace(model, **changes)


def in_run(model: ModelConfig, folder: Path) -> ModelConfig:
    """Return [model] with the precision that was decided for the run in a folder."""
    return decided(model, State.read(folder).auto_precision)


def uses_models(graph: Graph) -> bool:
    """Return whether a run loads any model."""
    return any("model" in artifact.settings for artifact in graph.values())


def note(recipe: Recipe, graph: Graph, state: State) -> str:
    """Return the line of a dry run about "auto" precision, or "". Imports no torch, so it cannot ask a GPU."""
    keys = " and ".join(f"model.{key}" for key in auto_keys(recipe.model))
    if not keys or not uses_models(graph):
        return ""
    if state.auto_precision:
        return f'{keys}: "auto" means "{state.auto_precision}" in this run, as {state.path} says'
    fast, device = processor().bfloat16, recipe.model.device
    if device.startswith("cuda"):
        meaning = '"on" if the GPU has bfloat16'
    elif device not in ("auto", "cpu"):
        meaning = f'"off" on {device}'
    else:
        meaning = f'"on", since this processor has {fast}' if fast else '"off": this processor has no fast bfloat16'
    elsewhere = " (a GPU, if there is one, is asked when the run begins)" if device == "auto" else ""
    return f'{keys}: "auto" will mean {meaning}{elsewhere}'
