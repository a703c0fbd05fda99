"""What there is to make for a recipe, and what of it is missing in a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reflectrl.config import Recipe
from reflectrl.envs import make
from reflectrl.envs.base import TextEnv
from reflectrl.episodes import check_disjoint, drop_half_line
from reflectrl.learn.checkpoint import drop_state
from reflectrl.pipeline.arms import chosen
from reflectrl.pipeline.judging import evaluations
from reflectrl.pipeline.layout import RunFolder
from reflectrl.teach import Demonstration, demonstrations
from reflectrl.types import Episode

MADE = ("teach", "base", "sft", "log", "offline", "rl", "eval")
"""The stages that make parts, in order."""


@dataclass(frozen=True)
class Unit:
    """A part to be made: `stage` says by which function, `seed` and `name` which one."""

    stage: str
    seed: int
    name: str

    def __str__(self) -> str:
        return f"{self.stage} {self.name} (seed {self.seed})"


def missing(recipe: Recipe, run: RunFolder, stage: str) -> list[Unit]:
    """The units of a stage that are not complete, in a fixed order."""
    arms = chosen(recipe.arms)
    trained = {name: arm for name, arm in arms.items() if arm.player == "policy"}
    scratch = recipe.model.source == "scratch"
    logged = needs_log(recipe)
    plain = ["plain"] if logged and recipe.offline.log_episodes else []
    sft = [part for arm in trained.values() for part in arm.sft_parts]
    names: dict[str, list[str]] = {
        "teach": ["train", "validation"] if trained else [],
        "base": ["model"] if trained and scratch else [],
        "sft": list(dict.fromkeys([*sft, *plain])),
        "log": ["episodes"] if logged else [],
        "offline": list(dict.fromkeys(part for arm in trained.values() for part in arm.offline_parts)),
        "rl": [name for name, arm in trained.items() if arm.rl],
        "eval": list(arms),
    }
    env = make(recipe.env)
    units = [Unit(stage, seed, name) for seed in recipe.seeds for name in names[stage]]
    return [unit for unit in units if not _complete(recipe, run, env, unit)]


def needs_log(recipe: Recipe) -> bool:
    """Whether any arm learns from a log of episodes."""
    arms = chosen(recipe.arms).values()
    return any(arm.offline or (arm.rl and recipe.rl.replay_log) for arm in arms)


def rounds(recipe: Recipe, units: list[Unit]) -> list[list[Unit]]:
    """Units that may be made side by side, round after round: some wait for others."""
    waits = [_round(recipe, unit) for unit in units]
    return [[u for u, w in zip(units, waits, strict=True) if w == now] for now in sorted(set(waits))]


def _round(recipe: Recipe, unit: Unit) -> int:
    """A policy may start from a trained reflector; offline arms start from the reference and its view of the log."""
    if unit.stage == "sft":
        return int(starts_from_reflector(recipe, unit.name))
    return {"offline-reference": 0, "offline-value": 1}.get(unit.name, 2)


def starts_from_reflector(recipe: Recipe, part: str) -> bool:
    """Whether an SFT part begins with the weights of the trained reflector."""
    return part.startswith("policy") and recipe.sft.policy_from == "reflector"


def _complete(recipe: Recipe, run: RunFolder, env: TextEnv, unit: Unit) -> bool:
    if unit.stage == "teach":
        planned = planned_demonstrations(recipe, env, unit.seed, unit.name)
        return finished_lines(run.teach(unit.seed, unit.name)) >= len(planned)
    if unit.stage == "base":
        return run.checkpoint(unit.seed, "base").is_dir()
    if unit.stage == "log":
        return finished_lines(run.log(unit.seed)) >= planned_log(recipe, env, unit.seed)
    if unit.name == "offline-value":
        return run.has_reference_cache(unit.seed)
    if unit.stage == "eval":
        return all(not part.left() for part in evaluations(recipe, run, env, unit.seed, unit.name))
    part = f"rl-{unit.name}" if unit.stage == "rl" else unit.name
    if not run.trained(unit.seed, part):
        return False
    drop_state(run.learner(unit.seed, part))  # a kill may have come just before this
    return True


def planned_demonstrations(recipe: Recipe, env: TextEnv, seed: int, split: str) -> list[Demonstration]:
    """The demonstrations of a split, in the order of its log."""
    tasks = env.tasks(split)
    if split == "train" and recipe.teach.tasks:
        tasks = tasks[: recipe.teach.tasks]
    return demonstrations(tasks, recipe.teach, seed)


def planned_log(recipe: Recipe, env: TextEnv, seed: int) -> int:
    """How many episodes the log of offline arms has: the teacher's trajectories, and what the SFT policy plays."""
    taught = sum(one.kind == "trajectory" for one in planned_demonstrations(recipe, env, seed, "train"))
    return taught + recipe.offline.log_episodes * len(env.tasks("train"))


def finished_lines(path: Path) -> int:
    """Finished lines of a log."""
    drop_half_line(path)
    if not path.exists():
        return 0
    with path.open("rb") as file:
        return sum(1 for _ in file)


def refuse_leaks(env: TextEnv) -> None:
    """UserError if a task that is taught or trained on, at any stage, is one of those kept for judging."""
    for stage in env.stages:
        held = [task for split in ("validation", "test") for task in env.tasks(split, stage)]
        check_disjoint((Episode(task, (), False, False, 0) for task in env.tasks("train", stage)), held)
        validation = (Episode(task, (), False, False, 0) for task in env.tasks("validation", stage))
        check_disjoint(validation, env.tasks("test", stage))
