"""A trained reflector against a frozen one at equal compute: should the policy or the reflector learn after SFT?

    python -m benchmarks.trained_reflector --seeds 0 1 2 --out runs/trained-reflector

This runs the recipe `taxi-reflector`. An interrupted run is continued by the same command. After each seed it prints
success on held-out starts with 95 % intervals (Student's t over seeds; for differences an interquartile mean with a
bootstrap), and the episodes, environment steps and CPU seconds of each training. Compute is equal in episodes and in
optimiser steps: each update plays as many episodes and takes as many steps, and in `both-rl` the players learn in turn.
Rejection sampling gets about as many episodes, including its continuations, and takes fewer optimiser steps. The
seconds show that episodes of a trained reflector cost more, since its samples cannot be cached.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import tyro

from benchmarks.few import gain, percent
from benchmarks.intervals import probability_of_improvement, stratified_bootstrap
from reflectrl.api import make_env, train
from reflectrl.cli.run import find_recipe
from reflectrl.core.config import Recipe, load_recipe

ARMS = ("sft", "reflect-rl", "reflector-rl", "both-rl", "reflector-rejection")
FROZEN = "reflect-rl"
"""Arm to compare others with: the policy learns, the reflector is frozen."""
Scores = Mapping[tuple[str, str], Sequence[float]]
"""Success on held-out starts by (arm, sampling), one number per seed."""


@dataclass(frozen=True)
class Settings:
    """Settings of the comparison."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the trainings of each arm."""
    arms: tuple[str, ...] = ARMS
    """Arms to run; "sft" and "reflect-rl" are the baselines of the differences."""
    recipe: str = "taxi-reflector"
    """Name or file of the recipe."""
    out: Path = Path("runs/trained-reflector")
    """Folder for the runs and `trained_reflector.json`."""
    change: tuple[str, ...] = ()
    """Further keys of the recipe, such as `rl.updates=10`."""


def main(settings: Settings) -> None:
    """Run, and print after each seed, so that an interrupted comparison has shown something."""
    words = [f"arms={json.dumps(settings.arms)}", "processes=1", *settings.change]
    scores: dict[tuple[str, str], list[float]] = {}
    costs: list[dict[str, Any]] = []
    for seed in settings.seeds:
        recipe, folder = (
            load_recipe(find_recipe(settings.recipe), [*words, f"seeds=[{seed}]"]),
            settings.out / f"seed-{seed}",
        )
        train(recipe, folder, until="sft")
        costs += [{"seed": seed, "arm": arm, **cost(recipe, folder, arm)} for arm in settings.arms]
        run = train(recipe, folder)
        whole = make_env(recipe.env).stages[-1]
        for row in run.results["rows"]:
            if (row["split"], row["stage"]) == ("test", whole):
                scores.setdefault((row["arm"], row["sampling"]), []).append(row["success"])
        print("\n".join(["", *table(scores, costs), "", *differences(scores)]), flush=True)
        found = {"success": [{"arm": a, "sampling": s, "success": v} for (a, s), v in scores.items()], "cost": costs}
        (settings.out / "trained_reflector.json").write_text(json.dumps(found, indent=1))


def cost(recipe: Recipe, folder: Path, arm: str) -> dict[str, float]:
    """Train what an arm still lacks after SFT. Return the episodes, environment steps and CPU seconds of this training.

    The result is empty if there is nothing to train. After an interruption, the seconds cover the last attempt only.
    """
    [seed], noted, found = recipe.seeds, folder / f"seconds-{arm}.json", dict[str, float]()
    before = time.process_time()
    train(replace(recipe, arms=(arm,)), folder, until="rl")
    if not noted.is_file():
        noted.write_text(json.dumps(time.process_time() - before))
    path = next(folder.glob(f"metrics/seed{seed}-*{arm}.jsonl"), None)
    for line in path.read_text(encoding="utf-8").splitlines() if path else ():
        found |= {key: value for key, value in json.loads(line).items() if key in ("episodes", "env_steps")}
    return found | ({"seconds": json.loads(noted.read_text())} if found else {})


def table(scores: Scores, costs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table, one per arm."""
    lines = [
        "| arm | greedy | each seed | sampled | episodes | environment steps | processor seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm in dict.fromkeys(arm for arm, _ in scores):
        greedy, sampled = (scores.get((arm, sampling), ()) for sampling in ("greedy", "sampled"))
        seeds = ", ".join(f"{100 * value:.1f}" for value in greedy)
        spent = [mean_of(costs, arm, key) for key in ("episodes", "env_steps", "seconds")]
        shown = [percent(greedy) if greedy else "", seeds, percent(sampled) if sampled else "", *spent]
        lines.append(f"| {arm} | {' | '.join(shown)} |")
    return lines


def mean_of(costs: Sequence[Mapping[str, Any]], arm: str, key: str) -> str:
    """Return the mean over seeds of a cost of an arm's training."""
    values = [one[key] for one in costs if one["arm"] == arm and key in one]
    return f"{fmean(values):,.0f}" if values else ""


def differences(scores: Scores) -> list[str]:
    """Return the lines of a table: gains of arms over SFT alone and over the frozen reflector, greedy, in points."""
    lines = ["| comparison | points of success | 95 % | probability of improvement |", "|---|---|---|---|"]
    rng = np.random.default_rng(0)
    for base in ("sft", FROZEN):
        for arm in dict.fromkeys(arm for arm, _ in scores):
            ours, theirs = scores.get((arm, "greedy"), ()), scores.get((base, "greedy"), ())
            if arm in ("sft", base) or len(ours) != len(theirs) or len(ours) < 2:
                continue
            low, high = stratified_bootstrap(gain, [[ours], [theirs]], 0.95, rng)
            better = probability_of_improvement([ours], [theirs])
            shown = f"{100 * gain([ours], [theirs]):.1f} | {100 * low:.1f} to {100 * high:.1f} | {better:.2f}"
            lines.append(f"| {arm} over {base} | {shown} |")
    return lines


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
