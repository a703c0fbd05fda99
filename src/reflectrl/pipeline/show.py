"""The end of a run on the terminal: the table of arms and one played episode."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from reflectrl.config import Recipe
from reflectrl.episodes import read_episodes
from reflectrl.pipeline.arms import Arm
from reflectrl.pipeline.layout import RunFolder
from reflectrl.terminal import printable_line
from reflectrl.types import Episode, Step


def results(console: Console, folder: Path, arms: Mapping[str, Arm]) -> None:
    """Success of every arm: a table per split and sampling, a column per stage."""
    data = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    for split, sampling in dict.fromkeys((row["split"], row["sampling"]) for row in data["summary"]):
        rows = [row for row in data["summary"] if (row["split"], row["sampling"]) == (split, sampling)]
        horizon, level = data["env"]["horizon"], data["confidence"]
        title = f"{data['recipe']}, {split} tasks, {sampling}: success and {level:.0%} interval (horizon {horizon})"
        console.print(_table(title, rows, arms))


def _table(title: str, rows: Sequence[Mapping[str, Any]], arms: Mapping[str, Arm]) -> Table:
    stages = list(dict.fromkeys(row["stage"] for row in rows))
    cells = {(row["arm"], row["stage"]): row for row in rows}
    table = Table(title=title, title_justify="left")
    table.add_column("arm", no_wrap=True)
    for stage in stages:
        table.add_column(stage, justify="right", no_wrap=True)
    table.add_column("what it is")
    for name, arm in arms.items():
        table.add_row(name, *(_cell(cells.get((name, stage))) for stage in stages), arm.about)
    return table


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    return f"{100 * row['success']:.1f} % [{100 * row['low']:.0f}, {100 * row['high']:.0f}]"


def one_episode(console: Console, run: RunFolder, recipe: Recipe) -> None:
    """The shortest won held-out episode of the last arm that reflects, or of the last arm."""
    logs = [run.evaluation(arm, seed, split, "*", "*").name for arm in reversed(recipe.arms)
            for seed in recipe.seeds[:1] for split in recipe.eval.splits[::-1]]  # fmt: skip
    for pattern in logs:
        for path in sorted((run.path / "episodes").glob(pattern)):
            won = [episode for episode in read_episodes(path) if episode.success]
            if won:
                _print_episode(console, min(won, key=lambda episode: (abs(len(episode.steps) - 8), episode.task.id)))
                return


def _print_episode(console: Console, episode: Episode) -> None:
    console.rule(f"{episode.provenance.get('arm')} on {printable_line(episode.task.id)} ({episode.task.split})")
    shown = 0
    for number, step in enumerate(episode.steps, start=1):
        console.print(f"\nstep {number}", style="bold")
        console.print(step.observation.text[shown:].strip())  # the history grows
        shown = len(step.observation.history)
        if step.reflection is not None:
            console.print(f"reflector: {step.reflection}", style="cyan")
        console.print(_choice(step), style="green")
    end = "won" if episode.success else "lost"
    console.print(f"\n{end} in {len(episode.steps)} steps, return {episode.total_reward:+.2f}")


def _choice(step: Step) -> str:
    turn = step.choice
    chance = f" ({turn.probs[step.action]:.0%})" if turn is not None and turn.probs else ""
    events = f"  [{printable_line(', '.join(step.events))}]" if step.events else ""
    return f"policy: {printable_line(step.observation.actions[step.action])}{chance}, reward {step.reward:+.2f}{events}"
