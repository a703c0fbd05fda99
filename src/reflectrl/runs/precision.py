"""Decisions about rounding: the meaning of "auto" precision in a run, and its number of threads.

Both are decided once, noted in `state.json`, and kept wherever the run continues. The recipe keeps its "auto" and its
`threads`, so fingerprints, forks and exported agents do not depend on where a run began. Builders get a recipe with the
decisions in their place, in every process and rank, and on every machine of the run.

Threads are a matter of rounding because each of them adds up a part of a sum: with another number, each trained weight
differs by about a millionth.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from reflectrl.core.advice import option
from reflectrl.core.config import ModelConfig, Recipe
from reflectrl.models.processor import processor
from reflectrl.runs.artifact import Graph
from reflectrl.runs.state import State

KEYS = ("mixed_precision", "mixed_play")


def auto_keys(model: ModelConfig) -> list[str]:
    """Return the keys of [model] that are "auto"."""
    return [key for key in KEYS if getattr(model, key) == "auto"]


def decide(state: State, model: ModelConfig, graph: Graph, threads: int = 0) -> None:
    """Note what "auto" means in a run, and its number of threads, if models are used and it has not been noted before.

    Args:
        threads: number of threads that the run asks for; 0 takes torch's.

    Raises:
        UserError: this machine does not have the device in `model.device`.
    """
    import torch  # a dry run does not need it

    from reflectrl.models.load import pick_device
    from reflectrl.models.machine import is_mixed

    if not uses_models(graph):
        return
    if not state.auto_precision and auto_keys(model):
        state.auto_precision = "on" if is_mixed(pick_device(model.device), "auto") else "off"
    state.threads = state.threads or threads or torch.get_num_threads()


def decided_recipe(recipe: Recipe, precision: str, threads: int) -> Recipe:
    """Return a recipe as builders get it: with the precision and the number of threads of its run."""
    return replace(recipe, model=decided(recipe.model, precision), threads=threads or recipe.threads)


def threads_kept(recipe: Recipe, state: State) -> str:
    """Return a line about threads that a run asks for in vain, since it began with another number; "" otherwise."""
    if recipe.threads in (0, state.threads) or not state.threads:
        return ""
    return (
        f"{option('threads', recipe.threads)} changes nothing: this run computes with {state.threads}, as {state.path} "
        f"says, since another number rounds differently; for {recipe.threads}, use another {option('folder')}"
    )


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """Compute with a number of threads within the block; 0 changes nothing."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
    """Return the lines of a dry run about precision and threads. Imports no torch, so it cannot ask a GPU."""
    return "\n# ".join(filter(None, (_precision_note(recipe, graph, state), threads_kept(recipe, state))))


def _precision_note(recipe: Recipe, graph: Graph, state: State) -> str:
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
