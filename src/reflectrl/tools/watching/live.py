"""`reflectrl watch RUN`: the finished, current and missing artifacts of a run, with each training's latest numbers."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.live import Live
from rich.table import Table

from reflectrl.core.config import Recipe, read_recipe
from reflectrl.core.config.folders import locked, no_link
from reflectrl.core.digests import unseal
from reflectrl.core.json_lines import parse_shown, read_json_lines
from reflectrl.core.terminal import console
from reflectrl.core.types import UserError
from reflectrl.runs.artifact import STAGES, Artifact
from reflectrl.runs.graph import planned
from reflectrl.runs.progress import duration
from reflectrl.runs.state import State

BARS = "▁▂▃▄▅▆▇█"
POINTS = 16
"""Largest number of bars of a curve."""
SHOWN = {"entropy": "entropy", "kl": "kl", "approx_kl": "moved", "clip_fraction": "clipped", "loss": "loss"}
"""Metrics with columns of their own, and the headings of these columns."""
HEADINGS = ("artifact", "state", "step", "left", "validation", "", *SHOWN.values(), "steps/s")
"""Headings of all columns. "validation" has the curve of success or loss, the column after it the latest value."""
NEEDED = 4
"""Number of columns that stay even where they do not fit."""


@dataclass(frozen=True)
class Watch:
    """Watch a run from another terminal while it goes on: what is done, what is missing, and the latest numbers."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder."""
    once: bool = False
    """Print the state once, and exit."""
    every: Annotated[float, tyro.conf.arg(metavar="SECONDS")] = 2.0
    """Seconds between updates."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Update until the run is complete, or until Ctrl-C."""
        if settings:
            raise UserError(f"unknown option {settings[0].partition('=')[0]!r}; watch has --once and --every")
        if self.every <= 0:
            raise UserError(f"--every must be above 0, not {self.every:g}")
        out = console(160)
        if self.once:
            out.print(table(self.run, out.width))
            return
        with suppress(KeyboardInterrupt), Live(table(self.run, out.width), console=out, auto_refresh=False) as live:
            while not is_complete(self.run):
                time.sleep(self.every)
                live.update(table(self.run, out.width), refresh=True)


def is_complete(folder: Path) -> bool:
    """Tell whether a run has completed its last stage."""
    return STAGES[-1] in State.read(folder).complete


def table(folder: Path, width: int) -> Table:
    """Return a line per training of a run, and per artifact that is being made. The others are only counted.

    Args:
        width: number of characters of a line.

    Raises:
        UserError: the folder is not a run folder.
    """
    if not (folder / "recipe.toml").is_file():
        raise UserError(f"{folder} is not a run folder (it has no recipe.toml)")
    recipe, state = read_recipe(folder / "recipe.toml"), State.read(folder)
    graph, settings = planned(recipe), recipe.plain()
    states = {key: state.says(artifact, settings) for key, artifact in graph.items() if not artifact.always}
    counts = []
    for stage in STAGES:
        counts.append(counted(stage, [state for key, state in states.items() if graph[key].stage == stage]))
    title = f"{recipe.name}: {', '.join(filter(None, counts))}; {condition(folder)}"
    rows, alarms = list[list[str]](), list[str]()
    timings = lines(folder / "timings.jsonl")
    for key, status in states.items():
        artifact = graph[key]
        if not artifact.training and status != "begun":
            continue
        name = Path(artifact.training).stem if artifact.training else ""
        logged = lines(folder / "metrics" / f"seed{artifact.seed}-{name}.jsonl") if name else []
        last = steps_of(recipe, artifact)
        left = ""
        if status == "begun" and is_running(folder):
            left = time_left(logged, timings, last)
            if artifact.kind == "rl" and recipe.rl.minutes and logged:
                left = duration(60 * max(0.0, recipe.rl.minutes - logged[-1].get("minutes", 0.0)))
        rows.append([key, status, *cells(logged, speed(logged, timings), last, left)])
        raised = [line for line in logged if "alarm" in line]
        if raised:
            alarms.append(f"{key}: alarm at step {raised[-1]['step']}: {raised[-1]['alarm']}")
    return fitting(title, rows, alarms, width)


def fitting(title: str, rows: Sequence[Sequence[str]], alarms: Sequence[str], width: int) -> Table:
    """Return the table without empty columns, and without the last columns if they do not fit the width.

    Args:
        rows: cells in the order of `HEADINGS`; missing ones at the end are empty.
        alarms: lines below the table.
        width: number of characters of a line.
    """
    padded, columns, widest = list[list[str]](), list[int](), dict[int, int]()
    for row in rows:
        padded.append([*row, *[""] * (len(HEADINGS) - len(row))])
    for i, heading in enumerate(HEADINGS):
        longest = max((len(row[i]) for row in padded), default=0)
        if longest or i < 2:  # the first two name the training and its state
            columns.append(i)
            widest[i] = max(longest, len(heading))
    while len(columns) > NEEDED and sum(widest[i] + 3 for i in columns) + 1 > width:
        columns.pop()
    rich_table = Table(title=title, title_justify="left", caption="\n".join(alarms), caption_justify="left")
    for i in columns:
        rich_table.add_column(HEADINGS[i], no_wrap=True, justify="left" if i < 2 else "right")
    for row in padded:
        rich_table.add_row(*(row[i] for i in columns))
    return rich_table


def condition(folder: Path) -> str:
    """Return whether a run is complete, running, or interrupted (with the command that continues it)."""
    if is_complete(folder):
        return "complete"
    return "running" if is_running(folder) else f"interrupted; continue with: reflectrl run {folder / 'recipe.toml'}"


def is_running(folder: Path) -> bool:
    """Tell whether a process holds the lock of a run folder."""
    try:
        with open(folder / ".lock", "a+", encoding="utf-8", opener=no_link) as file:
            return not locked(file)
    except OSError:
        return False


def steps_of(recipe: Recipe, artifact: Artifact) -> int:
    """Return the largest number of steps of a training; 0 if it is not known, or if minutes limit it instead."""
    if artifact.kind == "sft":
        return recipe.sft_budget(str(artifact.given("player"))).steps
    if artifact.kind == "rl" and not recipe.rl.minutes:
        return replace(recipe.rl, **artifact.given("changes")).updates
    return 0


def time_left(logged: Sequence[Mapping[str, Any]], timings: Sequence[Mapping[str, Any]], last: int) -> str:
    """Return the time that a training still takes at its mean pace, in words; "" if it is not known."""
    own_timings = timings_of(logged, timings)
    if not last or not own_timings or not own_timings[-1]["step"]:
        return ""
    return duration(
        sum(line["seconds"] for line in own_timings) / own_timings[-1]["step"] * (last - logged[-1]["step"])
    )


def timings_of(logged: Sequence[Mapping[str, Any]], timings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the timings that belong to a training's metrics."""
    kind = {(line.get("kind"), line.get("seed"), line.get("arm")) for line in logged}
    return [
        line for line in timings if (line.get("kind"), line.get("seed"), line.get("arm")) in kind and "step" in line
    ]


def counted(stage: str, states: Sequence[str]) -> str:
    """Return the number of finished artifacts of a stage, in words; "" if it has none."""
    return f"{stage} {states.count('done')} of {len(states)}" if states else ""


def cells(logged: Sequence[Mapping[str, Any]], rate: float | None, last: int, left: str) -> list[str]:
    """Return the cells of a training: step, time left, validation curve, its latest value, the latest other metrics."""
    if not logged:
        return []
    scores = next(
        (points for name in ("eval_success", "eval_reward", "eval_loss") if (points := curve(logged, name))), []
    )
    latest: dict[str, Any] = {}
    for line in logged:
        latest.update(line)
    other_cells = [number(latest.get(name)) for name in SHOWN]
    step = f"{latest['step']} of {last}" if last else str(latest["step"])
    return [step, left, bars(scores), number(scores[-1]) if scores else "", *other_cells, number(rate)]


def curve(logged: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Return the finite values of a metric, in order."""
    values = (line.get(name) for line in logged)
    return [float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]


def bars(values: Sequence[float]) -> str:
    """Draw the last `POINTS` values as a row of bars, from lowest to highest value. Shares are drawn from 0 to 1."""
    recent = values[-POINTS:]
    low, high = (0.0, 1.0) if all(0 <= value <= 1 for value in recent) else (min(recent), max(recent))
    span = (high - low) or 1.0
    return "".join(BARS[min(len(BARS) - 1, int((value - low) / span * len(BARS)))] for value in recent)


def number(value: Any) -> str:
    """Format a number in few characters; "" for None."""
    return f"{value:.3g}" if isinstance(value, int | float) and not isinstance(value, bool) else ""


def speed(logged: Sequence[Mapping[str, Any]], timings: Sequence[Mapping[str, Any]]) -> float | None:
    """Return environment steps per second between the last two evaluations of an online training."""
    steps = {line["step"]: line["env_steps"] for line in logged if "env_steps" in line}
    own_timings = timings_of(logged, timings)
    if len(own_timings) < 2 or not own_timings[-1].get("seconds"):
        return None
    # A timing covers the time since the previous one, so its seconds go with the steps between the two.
    up_to_last = sorted(step for step in steps if step <= own_timings[-1]["step"])
    up_to_previous = sorted(step for step in steps if step <= own_timings[-2]["step"])
    if not up_to_last or not up_to_previous:
        return None
    return float(steps[up_to_last[-1]] - steps[up_to_previous[-1]]) / float(own_timings[-1]["seconds"]) or None


def lines(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a file that may be written at this moment. Unreadable lines are skipped."""
    if not path.is_file():
        return []
    rows = read_json_lines(path, lambda line: parse_shown(unseal(line)), half_written="skip", damaged="skip")
    return [row for _, row in rows if isinstance(row, dict)]
