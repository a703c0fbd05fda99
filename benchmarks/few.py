"""Value of each part of the method when demonstrations are few: reflections, negatives, RL, and their combinations.

    python -m benchmarks.few --demonstrations 0 4 16 64 --seeds 0 1 2 --out runs/few

This runs the recipe `taxi-few` once for each number of demonstrated starts, in folders of `--out`. An interrupted run
is continued by the same command. It prints success on held-out starts by arm and number, then the effect of each part:
the difference in success between arms that differ in this part alone, over all numbers of demonstrations. The effect is
an interquartile mean with a stratified bootstrap interval. Beside it stands the probability that a run with the part
beats a run without it. `few.svg` shows the same. With 0 demonstrations no expert is needed, and there are no
reflections or negatives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import tyro
from matplotlib.figure import Figure

from reflectrl.api import make_env, train
from reflectrl.cli.run import find_recipe
from reflectrl.core.config import load_recipe
from reflectrl.core.statistics import mean_interval

from .intervals import interquartile_mean, probability_of_improvement, stratified_bootstrap

TAUGHT = ("sft-neither", "sft-no-reflection", "sft-no-negatives", "sft")
LEARNED = ("neither", "no-reflection", "no-negatives", "reflect-rl")
EFFECTS: dict[str, Sequence[tuple[str, str]]] = {
    "RL": list(zip(LEARNED, TAUGHT, strict=True)),
    "reflections, before RL": [("sft", "sft-no-reflection"), ("sft-no-negatives", "sft-neither")],
    "reflections, after RL": [("reflect-rl", "no-reflection"), ("no-negatives", "neither")],
    "negatives, before RL": [("sft", "sft-no-negatives"), ("sft-no-reflection", "sft-neither")],
    "negatives, after RL": [("reflect-rl", "no-negatives"), ("no-reflection", "neither")],
}
"""Effects by part: pairs of arms with and without the part that are otherwise the same."""
Scores = Mapping[tuple[str, int], Sequence[float]]
"""Success on held-out starts by (arm, number of demonstrations), one number per seed."""


@dataclass(frozen=True)
class Settings:
    """Settings of the comparison."""

    demonstrations: tuple[int, ...] = (0, 4, 16, 64)
    """Numbers of demonstrated starts."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the trainings of each arm."""
    recipe: str = "taxi-few"
    """Name or file of the recipe."""
    out: Path = Path("runs/few")
    """Folder for the runs, the figure and `few.json`."""
    sampling: str = "greedy"
    """Evaluation to compare, "greedy" or "sampled"."""
    change: tuple[str, ...] = ()
    """Further keys of the recipe, such as `rl.updates=10`."""


def main(settings: Settings) -> None:
    """Run, print and draw."""
    scores: dict[tuple[str, int], list[float]] = {}
    for count in settings.demonstrations:
        arms = [*TAUGHT, *LEARNED] if count else ["random", "rl-only"]
        words = [f"arms={json.dumps(arms)}", f"seeds={json.dumps(settings.seeds)}", *settings.change]
        if count:
            words += [f"teach.tasks={count}", f"teach.validation_tasks={max(2, count // 4)}"]
        recipe = load_recipe(find_recipe(settings.recipe), words)
        run = train(recipe, settings.out / f"demonstrations-{count}")
        whole = make_env(recipe.env).stages[-1]
        for row in run.results["rows"]:
            if (row["split"], row["stage"], row["sampling"]) == ("test", whole, settings.sampling):
                scores.setdefault((row["arm"], count), []).append(row["success"])
    numbers = [count for count in settings.demonstrations if count]
    print("\n".join([*success_table(scores), "", *effects_table(scores, numbers)]))
    rows = [{"arm": arm, "demonstrations": count, "success": values} for (arm, count), values in scores.items()]
    (settings.out / "few.json").write_text(json.dumps(rows, indent=1))
    draw(scores, numbers).savefig(settings.out / "few.svg")


def success_table(scores: Scores) -> list[str]:
    """Return the lines of a table: mean success over seeds and its interval in per cent, by arm and number."""
    numbers = sorted({count for _, count in scores})
    lines = [f"| arm | {' | '.join(f'{count} demonstrated' for count in numbers)} |", "|---" * (len(numbers) + 1) + "|"]
    for arm in dict.fromkeys(arm for arm, _ in scores):
        cells = [percent(scores[arm, count]) if (arm, count) in scores else "" for count in numbers]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return lines


def percent(values: Sequence[float]) -> str:
    """Format the mean and interval of success rates over seeds."""
    interval = mean_interval(values, 0.95)
    about = f" [{100 * max(0, interval[0]):.0f}, {100 * min(1, interval[1]):.0f}]" if interval else ""
    return f"{100 * fmean(values):.1f}{about}"


def effects_table(scores: Scores, numbers: Sequence[int]) -> list[str]:
    """Return the lines of a table: the change by each part, in points of success. A task is a number and a pair."""
    lines = ["| part | points of success | 95 % | probability of improvement | 95 % |", "|---|---|---|---|---|"]
    rng = np.random.default_rng(0)
    for part, pairs in EFFECTS.items():
        known = [(one, n) for one in pairs for n in numbers if all((arm, n) in scores for arm in one)]
        ours, theirs = ([scores[one[side], n] for one, n in known] for side in (0, 1))
        if not known:
            continue
        cells = []
        for statistic, scale in ((gain, 100), (probability_of_improvement, 1)):
            low, high = stratified_bootstrap(statistic, [ours, theirs], 0.95, rng)
            digits = 1 if scale == 100 else 2
            found = [f"{scale * value:.{digits}f}" for value in (statistic(ours, theirs), low, high)]
            cells.append(f"{found[0]} | {found[1]} to {found[2]}")
        lines.append(f"| {part} | {' | '.join(cells)} |")
    return lines


def gain(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float:
    """Return the interquartile mean of all our runs minus the interquartile mean of all their runs."""
    return interquartile_mean(np.concatenate(ours).tolist()) - interquartile_mean(np.concatenate(theirs).tolist())


def draw(scores: Scores, numbers: Sequence[int]) -> Figure:
    """Draw success over the number of demonstrations, with a line per arm: dashed before RL, solid after it."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for colour, (before, after) in enumerate(zip(TAUGHT, LEARNED, strict=True)):
        for arm, style in ((before, "--"), (after, "-")):
            known = [n for n in numbers if (arm, n) in scores]
            means = [100 * fmean(scores[arm, n]) for n in known]
            axes.plot(known, means, style, color=f"C{colour}", marker="o", label=arm)
    if ("rl-only", 0) in scores:
        axes.axhline(100 * fmean(scores["rl-only", 0]), color="0.5", linestyle=":", label="rl-only, none demonstrated")
    axes.set(xscale="log", xticks=numbers, xticklabels=numbers, ylim=(0, 102))
    axes.set(xlabel="demonstrated starts", ylabel="success on held-out starts, %")
    axes.legend(fontsize="small", ncols=2)
    return figure


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
