"""Artifact graph of a text task: samples, the reference that imitates them, its value, the arms, their completions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from reflectrl.core.config import Recipe
from reflectrl.core.plugins import names, suggestion
from reflectrl.core.types import UserError
from reflectrl.methods.offline.config import Algorithm
from reflectrl.runs.artifacts import Artifact, Graph, Stage, graph_of
from reflectrl.runs.graph import EXTENT, ends
from reflectrl.wings.text.config import text_settings

if TYPE_CHECKING:  # these bring torch, which a dry run does without
    from reflectrl.runs.folder import Context, RunFolder

SPLITS = ("train", "validation", "test")
DATA, REFERENCE, PPO, VALUE = "data", "reference", "ppo", "offline-value"
ARMS = {DATA: "the completions of the data", REFERENCE: "what the other arms start from"}
ARMS |= dict.fromkeys(get_args(Algorithm), "offline learning from the reference")
ARMS |= {PPO: "online learning from the reference: it writes, and is rewarded"}
"""Arms of text tasks, with their descriptions."""
ROOM = "reflectrl.wings.text.pipeline.training"
WRITTEN = ("text.top_p", "rl.temperature", "offline.prompt_tokens", "offline.completion_tokens")
"""Recipe keys that completions depend on."""


class TextPipeline:
    """Pipeline of a recipe with a text task."""

    @staticmethod
    def is_for(recipe: Recipe) -> bool:
        """Return whether the recipe has a text task."""
        return text_settings(recipe).task != "none"

    @staticmethod
    def graph(recipe: Recipe) -> Graph:
        """Return the graph of samples, reference, value, arms and completions.

        Raises:
            UserError: the recipe names an unknown arm, split or reward.
        """
        for arm in recipe.arms:
            if arm not in ARMS:
                raise UserError(f"arms: unknown arm of a text task {arm!r}{suggestion(arm, ARMS)}")
        for split in recipe.eval.splits:
            if split not in SPLITS:
                raise UserError(f"eval.splits: unknown split {split!r}{suggestion(split, SPLITS)}")
        for section in ("rewards", "test_rewards"):
            for name, value in recipe.sections[section].items():
                kind = value.get("use", name) if isinstance(value, Mapping) else name
                if ":" not in str(kind) and kind not in names("rewards"):
                    raise UserError(
                        f"{section}.{name}: unknown reward {kind!r}{suggestion(str(kind), names('rewards'))}"
                    )
        samples = Artifact("text", DATA, 0, "teach", f"{ROOM}:data", ("data/train.jsonl",), (), ("text", "rewards"))
        made = [samples, *(artifact for seed in recipe.seeds for artifact in _artifacts(recipe, seed, samples.key))]
        return graph_of([*made, *ends(recipe, made, "reflectrl.wings.text.pipeline.results")])

    @staticmethod
    def begin(recipe: Recipe, run: RunFolder) -> Context:
        """Check the recipe, and return the context of its builders.

        Raises:
            UserError: a setting that text tasks need is missing, or one is set that they do not support.
        """
        from reflectrl.models.checking import require_usable
        from reflectrl.wings.text.pipeline.task import TextContext

        if recipe.processes > 1:
            raise UserError("processes: a text task is run in one process")
        if not recipe.sections["rewards"]:
            raise UserError("a text task needs [rewards]: components by name with their weights")
        if recipe.rl.baseline == "gigpo" or recipe.rl.refills:
            key = "rl.refills" if recipe.rl.refills else "rl.baseline: gigpo"
            raise UserError(f"{key} is for agents, who play episodes; a text task has completions")
        if recipe.model.policy or recipe.model.reflector:
            raise UserError("model.policy and model.reflector are for agents; a text task has one model, model.source")
        if recipe.model.source != "scratch":
            require_usable(recipe.model.source, replace(recipe.model, chat="off"), labelled=False)
        return TextContext(recipe, run)

    @staticmethod
    def show(context: Context) -> None:
        """Print the table of arms."""
        from reflectrl.core.terminal import console
        from reflectrl.wings.text.pipeline.results import show

        show(console(160), context.run.path)

    @staticmethod
    def compare(folders: Sequence[Path]) -> None:
        """Print one table of several runs, pooled over seeds, for `reflectrl compare`."""
        from reflectrl.core.terminal import console
        from reflectrl.wings.text.pipeline.results import show

        show(console(160), *folders)


def _artifacts(recipe: Recipe, seed: int, samples: str) -> Iterator[Artifact]:
    """Yield the artifacts of a training seed."""
    folder, start = f"checkpoints/seed{seed}", [samples]

    def made(name: str, stage: Stage, outputs: tuple[str, ...], inputs: Sequence[str], *settings: str) -> Artifact:
        build = {"base": "base", REFERENCE: "reference", VALUE: "value"}.get(name, "arm")
        return Artifact("text", name, seed, stage, f"{ROOM}:{build}", outputs, tuple(inputs), settings)

    if recipe.model.source == "scratch":
        base = made("base", "sft", (f"{folder}/base/config.json",), start, "model")
        yield base
        start.append(base.key)
    reference = made(REFERENCE, "sft", (f"{folder}/{REFERENCE}/reflectrl.json",), start, "model", "sft", "offline")
    yield replace(reference, training=f"{folder}/{REFERENCE}.learner")
    value = made(VALUE, "rl", (f"{folder}/{VALUE}*/reference_cache.json",), [reference.key], "offline")
    if any(arm in get_args(Algorithm) for arm in recipe.arms):
        yield replace(value, remaining=f"{ROOM}:remaining_values")
    trained = {REFERENCE: reference.key}
    for arm in recipe.arms:
        if arm not in (DATA, REFERENCE):
            outputs = tuple(f"{folder}/{name}/reflectrl.json" for name in (arm, last(arm)))
            offline = ([value.key], ("offline", "rl.eval_sampling"))
            start, settings = ([reference.key], ("rl",)) if arm == PPO else offline
            learned = made(arm, "rl", outputs, start, *settings)
            yield replace(learned, training=f"{folder}/{arm}.learner")
            trained[arm] = learned.key
    for arm in recipe.arms:
        if arm in trained:
            outputs, inputs = (f"completions/{arm}-seed{seed}-*.jsonl",), (trained[arm],)
            writing = Artifact("eval", arm, seed, "eval", f"{ROOM}:writing", outputs, inputs, WRITTEN, EXTENT)
            yield replace(writing, remaining=f"{ROOM}:remaining_writing")


def places(recipe: Recipe, seed: int, arm: str, samples: Callable[[str], Sequence[Any]]) -> list[dict[str, Any]]:
    """List an arm's sets of completions: best and last checkpoint, on every split, with every kind of sampling.

    Args:
        samples: returns the samples of a split. Splits without samples are left out.

    Returns:
        Task, arm, seed, checkpoint, split and sampling of each set.
    """
    checkpoints = ("",) if arm in (DATA, REFERENCE) else ("best", "last")
    ways = ("",) if arm == DATA else recipe.eval.sampling
    shared = {"task": task_name(recipe), "arm": arm, "seed": seed}
    return [
        {**shared, "checkpoint": checkpoint, "split": split, "sampling": sampling}
        for split in recipe.eval.splits
        if samples(split)
        for sampling in ways
        for checkpoint in checkpoints
    ]


def task_name(recipe: Recipe) -> str:
    """Return the name of the task in tables, with its subset."""
    settings = text_settings(recipe)
    name = recipe.name if settings.task == "own" else settings.task
    return f"{name}-{settings.subset}" if settings.subset else name


def last(arm: str) -> str:
    """Return the name of an arm's last checkpoint. The best checkpoint has the name of the arm."""
    return f"{arm}-last"
