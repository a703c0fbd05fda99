"""Online RL with rollouts from a server, beside local rollouts: success, lag, and importance ratios.

    python -m benchmarks.served_rollouts --out runs/served-rollouts --updates 60

This teaches a pair by the recipe (`taxi-demo`). Its policy is then trained once with rollouts of its own, and once for
each number of `--every` with rollouts of `reflectrl serve-rollouts`. The server is a process of its own on this
machine's loopback, and gets new weights every so many updates. An interrupted comparison is continued by the same
command.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import tyro

from reflectrl.api import train
from reflectrl.cli.run import find_recipe
from reflectrl.core.config import Recipe, load_recipe
from reflectrl.core.envs import make
from reflectrl.core.statistics import wilson
from reflectrl.learn.checkpoint import write_text
from reflectrl.learn.online import train_online
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.runs.folder import RunFolder
from reflectrl.serving.remote.config import RolloutsConfig
from reflectrl.serving.remote.rollouts import ServedRollouts

from .fixed_pair import PAIR, played, players
from .fixed_pair import Settings as PairSettings

MEASURED = ("lag", "ratio_mean", "ratio_max", "ratio_clipped", "clip_fraction", "labels_missing", "requests_per_second")


@dataclass(frozen=True)
class Settings:
    """Settings of the comparison."""

    every: tuple[int, ...] = (1, 4)
    """Numbers of updates between two reloads of the server's weights; a training for each."""
    updates: int = 60
    """Updates per training."""
    recipe: str = "taxi-demo"
    """Name or file of the recipe."""
    out: Path = Path("runs/served-rollouts")
    """Folder for the pair, the learners' states and the rows."""
    change: tuple[str, ...] = ()
    """Further keys of the recipe, such as `rl.curriculum=none`."""


def main(settings: Settings) -> None:
    """Teach once, train once locally and once per `every`, and print."""
    changes = ['arms=["sft"]', "seeds=[0]", "threads=1", f"rl.updates={settings.updates}", *PAIR, *settings.change]
    recipe = load_recipe(find_recipe(settings.recipe), changes)
    torch.set_num_threads(1)
    run = RunFolder(train(recipe, settings.out / "pair", until="sft").folder)
    with serving(settings.out) as url:
        rows = [learned(recipe, run, settings, "here", None)]
        for every in settings.every:
            config = RolloutsConfig((url,), every=every)
            rows.append(learned(recipe, run, settings, f"served, every {every}", config))
    print("\n| rollouts | greedy | sampled | " + " | ".join(MEASURED) + " | same episodes | s |")
    print("|---" * (len(MEASURED) + 5) + "|")
    for row in rows:
        print(line(row, rows[0]))


@contextmanager
def serving(root: Path) -> Iterator[str]:
    """Serve a folder from a process of its own, and yield the server's address."""
    root.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "reflectrl", "serve-rollouts", str(root), "--port", "0", "--threads", "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split(" at ")[1].split()[0]
        finally:
            process.terminate()


def learned(
    recipe: Recipe, run: RunFolder, settings: Settings, name: str, config: RolloutsConfig | None
) -> dict[str, Any]:
    """Train the pair's policy, and play the test tasks. Finished rows are read from their files."""
    folder = settings.out / name.replace(", ", "-").replace(" ", "-")
    path = folder / "row.json"
    if path.is_file():
        return dict(json.loads(path.read_text()))
    policy, reflector = players(recipe, run, PairSettings())
    lines, episodes, began = list[dict[str, Any]](), list[str](), time.perf_counter()
    given = (policy, reflector, partial(make, recipe.env), recipe.rl, 0)
    rollouts = (
        EpisodeRollouts(*given) if config is None else ServedRollouts(config, folder.absolute() / "served", *given)
    )

    def note(metrics: dict[str, Any]) -> None:
        lines.append(metrics)
        if metrics["step"] < recipe.rl.updates:
            episodes.append(json.dumps([[step.action for step in one.steps] for one in rollouts.latest.played]))
        if "eval_success" in metrics:
            print(
                name,
                metrics["step"],
                f"{metrics['eval_success']:.2f}",
                f"{time.perf_counter() - began:.0f} s",
                flush=True,
            )

    train_online(rollouts, recipe.rl, 0, note)
    row: dict[str, Any] = {"row": name, "seconds": time.perf_counter() - began, "episodes": episodes}
    row |= played(policy, reflector, recipe, "test")
    row["tasks"] = len(make(recipe.env).tasks("test"))
    for key in MEASURED:
        values = [metrics[key] for metrics in lines if key in metrics]
        row[key] = (max if key.endswith("max") else lambda all_: sum(all_) / len(all_))(values) if values else None
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(row))
    return row


def line(row: dict[str, Any], first: dict[str, Any]) -> str:
    """Format a row of the table. Its episodes are compared, update by update, with the episodes of the first row."""
    cells = [row["row"]]
    for sampling in ("greedy", "sampled"):
        low, high = wilson(round(row[sampling] * row["tasks"]), row["tasks"], 0.95)
        cells.append(f"{100 * row[sampling]:.1f} % [{100 * low:.0f}, {100 * high:.0f}]")
    cells += ["" if row[key] is None else f"{row[key]:.4g}" for key in MEASURED]
    same = [one == other for one, other in zip(row["episodes"], first["episodes"], strict=True)]
    return f"| {' | '.join(cells)} | {sum(same)} of {len(same)} updates | {row['seconds']:.0f} |"


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
