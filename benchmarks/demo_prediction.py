"""Success of a recipe's next run, predicted from finished runs on several seeds, roundings and machines.

    reflectrl run taxi-demo --seeds 0,1,2 --folder runs/demo-here
    reflectrl run taxi-demo --seeds 0,1,2 --model.mixed_precision on --folder runs/demo-rounded
    python -m benchmarks.demo_prediction runs/demo-here runs/demo-rounded

Each seed of each folder counts as a run. A row gives the least and the largest rate that were seen, and the interval
from which one more run, on a new seed and a new machine, falls outside with 5 %
(`reflectrl.core.statistics.prediction_interval`). Give it runs of all roundings that readers may have: the prediction
holds for machines like those that the runs come from.
"""

from __future__ import annotations

import json
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from reflectrl.core.statistics import prediction_interval

MAY_DIFFER = {"name", "seeds", "threads", "processes", "engine", "rank_timeout", "keep_states", "env_workers"}
"""Keys of a recipe that do not change what is learned, but for seeds and rounding."""
ROUNDING = {"mixed_precision", "mixed_play", "device"}
"""Keys of [model] that change the rounding."""


class Column(NamedTuple):
    """An evaluation of an arm, which each run has."""

    arm: str
    split: str
    sampling: str
    stage: str


def settings_of(folder: Path) -> dict[str, Any]:
    """Return the recipe of a run without the keys that may differ between its runs."""
    recipe = tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))
    settings = {key: value for key, value in recipe.items() if key not in MAY_DIFFER}
    model = {key: value for key, value in recipe.get("model", {}).items() if key not in ROUNDING}
    return settings | {"model": model}


def wins_of(folders: Sequence[Path]) -> dict[Column, list[tuple[int, int]]]:
    """Return the wins and episodes of every run, by arm and evaluation.

    Raises:
        SystemExit: a folder has no results, or its run had other settings than the first folder's.
    """
    wins: dict[Column, list[tuple[int, int]]] = defaultdict(list)
    for folder in folders:
        path = folder / "results.json"
        if not path.is_file():
            raise SystemExit(f"{path}: there is no such file; give folders of finished runs")
        if settings_of(folder) != settings_of(folders[0]):
            raise SystemExit(f"{folder} is a run with other settings than {folders[0]}")
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            episodes = int(row["episodes"])
            column = Column(row["arm"], row["split"], row["sampling"], row["stage"])
            wins[column].append((round(row["success"] * episodes), episodes))
    return wins


def lines(wins: dict[Column, list[tuple[int, int]]], confidence: float) -> list[str]:
    """Return the table, a line for each arm and evaluation."""
    table = [f"{'arm':18} {'split':10} {'sampling':8} {'stage':8} runs  seen, %       one more run, %"]
    for column, runs in wins.items():
        rates = [100 * won / episodes for won, episodes in runs if episodes]
        sizes = {episodes for _, episodes in runs}
        one_size = sizes.pop() if len(sizes) == 1 else 0
        interval = prediction_interval([won for won, _ in runs], one_size, confidence)
        predicted = "needs two runs with equally many episodes"
        if interval is not None:
            predicted = f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}"
        seen = f"{min(rates):.1f} to {max(rates):.1f}" if rates else "none"
        about = f"{column.arm:18} {column.split:10} {column.sampling:8} {column.stage:8}"
        table.append(f"{about} {len(runs):4}  {seen:13} {predicted}")
    return table


@dataclass(frozen=True)
class Options:
    """Predict the success of a recipe's next run."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """Folders of finished runs with the same recipe."""
    confidence: float = 0.95
    """Probability with which the next run lies in the interval."""


def main(options: Options) -> None:
    """Read the results, and print the table."""
    print("\n".join(lines(wins_of(options.folders), options.confidence)))


if __name__ == "__main__":
    main(tyro.cli(Options))
