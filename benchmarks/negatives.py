"""When negatives pay: imitation of an expert that never leaves the best path, with and without mistakes, and then RL.

    python -m benchmarks.negatives --worlds taxi ice --seeds 0 1 2 3 4

The expert's demonstrations are optimal (`teach.noise = 0`), so only negatives show how to go on after a mistake. Each
cell imitates them with a policy alone and then learns by reward. Every finished cell is a line of the file of results,
and the same command continues an interrupted series.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import tyro

from benchmarks.portals import interval, run_missing
from reflectrl.cli.run import find_recipe
from reflectrl.core.config import load_recipe
from reflectrl.runs import run

World = Literal["taxi", "ice", "alfworld"]
Negatives = Literal["0", "2", "all"]

RECIPES: Mapping[World, tuple[str, tuple[str, ...]]] = {
    "taxi": ("taxi-few", ("rl.updates=40",)),
    "ice": (
        "frozenlake-rl",
        (
            "env.size=8", "env.train=500", "env.validation=50", "env.test=200", "env.horizon=32", "teach.tasks=200",
            "teach.validation_tasks=20", "sft.optimizer=muon", "sft.steps=400", "sft.policy_steps=200",
            "sft.eval_every=50", "rl.updates=60", "rl.critic_warmup=5", "rl.hold=0",
        ),
    ),
    "alfworld": ("alfworld-few", ("rl.updates=30",)),
}  # fmt: skip
"""Recipe of each world, and its changes."""
ARMS = {"sft": "sft-no-reflection", "rl": "no-reflection"}
"""Arms of a run by the stage that they end with."""


@dataclass(frozen=True)
class Settings:
    """Settings of the comparison."""

    worlds: tuple[World, ...] = ("taxi", "ice")
    """Environments to play."""
    negatives: tuple[Negatives, ...] = ("0", "2", "all")
    """Numbers of negatives per demonstration: none, two, or one at every step, as published."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds of weights and batches."""
    split: Literal["validation", "test"] = "test"
    """Split that is played in the end."""
    changes: tuple[str, ...] = ()
    """Further changes to all recipes, as KEY=VALUE."""
    out: Path = Path("runs/negatives.jsonl")
    """File of results, a line per cell. Runs are in a folder of this name without the ending."""


@dataclass(frozen=True)
class Cell:
    """A policy to train."""

    world: World
    negatives: Negatives
    seed: int
    split: str


def main(settings: Settings) -> None:
    """Run the missing cells seed by seed, and print the table."""
    lines = run_missing(cells(settings), lambda cell: run_cell(settings, cell), settings.out)
    print("\n".join(table(lines)))


def cells(settings: Settings) -> Iterator[Cell]:
    """Yield all cells, so that an interrupted series has all numbers of negatives of its first seeds."""
    for world in settings.worlds:
        for seed in settings.seeds:
            for negatives in settings.negatives:
                yield Cell(world, negatives, seed, settings.split)


def run_cell(settings: Settings, cell: Cell) -> dict[str, Any]:
    """Train a policy and play the held-out tasks.

    Returns:
        The number of tasks, and for each stage the greedy success.
    """
    name, changes = RECIPES[cell.world]
    own = (
        f"seeds={cell.seed}", "arms=" + ",".join(ARMS.values()), "threads=1", "processes=1",
        "teach.noise=0.0", f"teach.negatives={cell.negatives}", f"eval.splits={cell.split}", "eval.sampling=greedy",
    )  # fmt: skip
    folder = settings.out.with_suffix("") / f"{cell.world}-{cell.negatives}-{cell.seed}"
    run(load_recipe(find_recipe(name), [*changes, *own, *settings.changes]), folder)
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    rows = {row["arm"]: row for row in results["rows"] if row["stage"] in ("full", "all")}
    tasks = {row["episodes"] for row in rows.values()}
    return {"tasks": max(tasks), **{stage: rows[arm]["success"] for stage, arm in ARMS.items()}}


def table(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table with a row per world and number of negatives."""
    names = ("world", "negatives", "seeds", "after SFT, %", "after RL, %")
    rows = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["world"], line["negatives"]), []).append(line)
    for (world, negatives), members in groups.items():
        won = []
        for stage in ARMS:
            own = [{"tasks": line["tasks"], "success": line[stage]} for line in members]
            won.append(f"{100 * fmean(line['success'] for line in own):.1f} {interval(own)}")
        rows.append(f"| {world} | {negatives} | {len(members)} | {' | '.join(won)} |")
    return rows


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
