"""Compare players with and without a reflector that keeps notes, where the observation shows no history.

    python -m benchmarks.remembering --worlds lights --seeds 0 1 2 --out runs/remembering

The environment shows only the latest reply. The arms differ in what a player knows of the past:

- none: a policy alone.
- fresh: a pair. Its reflector is taught the same notes, but never reads what it has written before.
- carried: the same pair, whose reflector reads its previous reflection (`play.reflection = "carried"`).
- written: a policy alone that reads the environment's own notes, written by hand. ALFWorld has such notes.

All arms imitate the same demonstrations for the same number of optimiser steps: a pair splits them between its players.
With `--updates`, the policy then learns by PPO from its own play, with the notes that its reflector writes there.
Every finished cell is a line of OUT.jsonl, and the same command continues an interrupted series.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import tyro

import reflectrl
from benchmarks.portals import interval, run_missing

Arm = Literal["none", "fresh", "carried", "written"]
World = Literal["lights", "fusebox", "alfworld"]
ARMS: tuple[Arm, ...] = ("none", "fresh", "carried", "written")

LIGHTS: Mapping[str, Any] = {
    "env": {"name": "reflectrl.examples.lights:LightsEnv"},
    "model": {"family": "llama", "layers": 2, "width": 64, "heads": 4},
    "play": {"scoring": "trie", "reflection_tokens": 24},
    "teach": {"noise": [0.0], "negatives": 0},
    "sft": {"optimizer": "muon", "steps": 200, "policy_steps": 60, "policy_from": "reflector", "eval_every": 20},
}
FUSEBOX: Mapping[str, Any] = {
    **LIGHTS,
    "env": {"name": "benchmarks.hidden_fusebox:HiddenFusebox"},
    "play": {"scoring": "trie", "reflection_tokens": 48},
    "sft": {**LIGHTS["sft"], "policy_steps": 300},
}
ALFWORLD: Mapping[str, Any] = {
    "env": {"name": "alfworld", "recall": 1, "status": False, "analysis": "belief"},
    "model": {"family": "llama", "layers": 2, "width": 96, "heads": 4, "vocab": 1024, "context": 1024},
    "play": {"scoring": "trie", "reflection_tokens": 120},
    "teach": {"tasks": 600, "validation_tasks": 30, "noise": [0.0, 0.3], "negatives": 0},
    "sft": {
        "optimizer": "muon", "text_coef": 0.5, "by_episode": True, "batch_size": 32, "steps": 500, "policy_steps": 150,
        "policy_from": "reflector", "eval_every": 100, "eval_rows": 128,
    },
}  # fmt: skip
WORLDS: Mapping[World, Mapping[str, Any]] = {"lights": LIGHTS, "fusebox": FUSEBOX, "alfworld": ALFWORLD}
RL: Mapping[str, Any] = {
    "algorithm": "ppo", "baseline": "critic", "hold": 0, "episodes": 64, "temperature": 2.0, "update_epochs": 2,
    "steps_per_epoch": 4, "deal": "prompts", "clip_coef": 0.2, "kl_coef": 0.0, "curriculum": "none", "lr": 3e-4,
    "schedule": "linear", "critic_warmup": 3, "critic_lr": 1e-3, "gamma": 0.98, "max_grad_norm": 0.5, "eval_every": 10,
    "eval_episodes": 60, "eval_sampling": "sampled",
}  # fmt: skip
"""Settings of online RL in all worlds, as in the recipe alfworld-few."""
WRITTEN: Mapping[World, Mapping[str, Any]] = {"alfworld": {"status": True, "guide": True}}
"""Settings with which an environment shows its own notes."""


@dataclass(frozen=True)
class Settings:
    """Settings of the comparison."""

    worlds: tuple[World, ...] = ("lights",)
    """Environments to play."""
    arms: tuple[Arm, ...] = ARMS
    """Arms to run. An environment without notes of its own skips "written"."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of weights and batches."""
    split: str = "test"
    """Split that is played in the end."""
    episodes: int = 0
    """Number of its tasks; 0 takes all."""
    games: str = ""
    """Folder of ALFWorld's games; "" is the default."""
    longer: int = 1
    """Factor by which the optimiser steps of all arms are multiplied."""
    updates: int = 0
    """Updates of online RL after imitation. Different numbers need different `out` folders."""
    out: Path = Path("runs/remembering")
    """Folder of the runs. The results are in a file of this name with the ending .jsonl."""


@dataclass(frozen=True)
class Cell:
    """An arm to train."""

    world: World
    arm: Arm
    seed: int
    split: str
    longer: int
    updates: int = 0


def main(settings: Settings) -> None:
    """Run the missing cells seed by seed, and print the table in the end."""
    results = settings.out.with_name(settings.out.name + ".jsonl")
    lines = run_missing(cells(settings), lambda cell: run_cell(settings, cell), results)
    print("\n".join(table(lines)))


def cells(settings: Settings) -> Iterator[Cell]:
    """Yield all cells, so that an interrupted series has all arms of its first seeds."""
    for seed in settings.seeds:
        for world in settings.worlds:
            for arm in settings.arms:
                if arm != "written" or world in WRITTEN:
                    yield Cell(world, arm, seed, settings.split, settings.longer, settings.updates)


def recipe_of(settings: Settings, world: World, arm: Arm, seed: int) -> dict[str, Any]:
    """Return the settings of a cell's run."""
    changed = json.loads(json.dumps(WORLDS[world]))
    if arm == "written":
        changed["env"] |= WRITTEN[world]
    if arm == "carried":
        changed["play"]["reflection"] = "carried"
    if settings.games and world == "alfworld":
        changed["env"]["games"] = settings.games
    for steps in ("steps", "policy_steps"):
        changed["sft"][steps] *= settings.longer
    arms = ["sft", "reflect-rl"] if arm in ("fresh", "carried") else ["sft-no-reflection", "no-reflection"]
    if settings.updates:
        changed["rl"] = {**RL, "updates": settings.updates}
    else:
        arms = arms[:1]
    return {**changed, "arms": arms, "seeds": [seed], "threads": 1}


def run_cell(settings: Settings, cell: Cell) -> dict[str, Any]:
    """Train the players of a cell, or continue, and play the held-out tasks.

    Returns:
        The number of tasks, the final success, the success before online RL ("imitated"), and processor seconds.
    """
    folder = settings.out / f"{cell.world}-{cell.arm}-{cell.seed}"
    recipe = recipe_of(settings, cell.world, cell.arm, cell.seed)
    recipe["eval"] = {"splits": [settings.split], "sampling": ["greedy"], "episodes": settings.episodes}
    env = recipe.pop("env")
    start = time.process_time()
    reflectrl.train(env, folder, until="rl", **recipe)
    trained = time.process_time()
    run = reflectrl.train(env, folder, until="eval", **recipe)
    rows = [row for row in run.results["rows"] if row["stage"] in ("full", "all") and row.get("group") is None]
    success = {row["arm"]: row["success"] for row in rows}
    return {
        "success": success[recipe["arms"][-1]],
        "imitated": success[recipe["arms"][0]],
        "tasks": rows[0]["episodes"],
        "train_seconds": round(trained - start, 1),
        "play_seconds": round(time.process_time() - trained, 1),
    }


def table(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table with a row per world and arm."""
    names = ("world", "arm", "seeds", "tasks won, %", "by seed", "before RL, %", "training, s", "play, s")
    table_lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["world"], line["arm"]), []).append(line)
    for (world, arm), members in sorted(groups.items(), key=lambda item: (item[0][0], ARMS.index(item[0][1]))):
        won = f"{100 * fmean(line['success'] for line in members):.1f} {interval(members)}"
        by_seed = ", ".join(f"{100 * line['success']:.1f}" for line in members)
        before = ", ".join(f"{100 * line['imitated']:.1f}" for line in members if line["updates"])
        times = [f"{fmean(line[key] for line in members):.0f}" for key in ("train_seconds", "play_seconds")]
        table_lines.append(
            f"| {world} | `{arm}` | {len(members)} | {won} | {by_seed} | {before} | {' | '.join(times)} |"
        )
    return table_lines


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
