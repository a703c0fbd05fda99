"""Success over processor minutes of training, as an SVG picture.

    python -m benchmarks.minutes_picture cells runs/reflection.jsonl --out docs/images/ice-minutes.svg
    python -m benchmarks.minutes_picture run runs/hindsight_alfworld --out docs/images/alfworld-minutes.svg

"cells" draws the results of `benchmarks.reflection`, in which each point is a training of its own. "run" draws the
evaluations on validation tasks during the online RL of a run; its time includes the SFT of what an arm starts from.
Lines are means over seeds. Each seed is a dot.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, NamedTuple

import matplotlib
import tyro
from matplotlib.figure import Figure

COLORS = ("#1f5fa8", "#c2571a", "#2f7d4f", "#6b4fa0")
MARKERS = ("o", "s", "^", "D")
STARTS = ("reflector", "policy")
"""Models of a pair, whose SFT comes before the online RL of the arms."""


class Point(NamedTuple):
    """A seed's success after some minutes. `step` says which points of several seeds belong together."""

    step: float
    minutes: float
    success: float


Lines = Mapping[str, Sequence[Point]]
"""Name of a line → the points of all its seeds."""


@dataclass(frozen=True)
class Cells:
    """Draw the results of `benchmarks.reflection`."""

    results: tyro.conf.Positional[Path]
    """File of results, a line per cell."""
    out: Path
    """The picture, an SVG file."""
    world: str = "lake"
    """World whose cells are drawn."""
    title: str = ""
    """Title above the picture."""


@dataclass(frozen=True)
class Run:
    """Draw the validation success of a run's arms during online RL."""

    folder: tyro.conf.Positional[Path]
    """Run folder."""
    out: Path
    """The picture, an SVG file."""
    title: str = ""
    """Title above the picture."""


def main(
    settings: Annotated[Cells, tyro.conf.subcommand("cells")] | Annotated[Run, tyro.conf.subcommand("run")],
) -> None:
    """Draw a picture and write it."""
    lines = of_cells(settings) if isinstance(settings, Cells) else of_run(settings.folder)
    draw(lines, settings.title, settings.out)


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file as dictionaries."""
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def of_cells(settings: Cells) -> Lines:
    """Return the points of a world by arm. Cells that were trained for equal times belong together."""
    lines = defaultdict[str, list[Point]](list)
    for cell in json_lines(settings.results):
        if cell["world"] == settings.world:
            lines[cell["arm"]].append(Point(cell["seconds"], cell["seconds"] / 60, 100 * cell["success"]))
    return lines


def of_run(folder: Path) -> Lines:
    """Return the validation success of each arm over the processor minutes of its training."""
    timings = list(json_lines(folder / "timings.jsonl"))
    starts = defaultdict[int, float](float)  # seed → seconds of SFT
    for line in timings:
        if line.get("stage") == "sft" and line["artifact"] in STARTS:
            starts[line["seed"]] += line["cpu_seconds"]
    seconds = defaultdict[tuple[str, int], dict[int, float]](dict)
    for line in timings:
        if line.get("kind") == "rl":
            seconds[line["arm"], line["seed"]][line["step"]] = line["cpu_seconds"]
    lines = defaultdict[str, list[Point]](list)
    for (arm, seed), taken in seconds.items():
        # The line of an evaluation includes the update that followed it, so the time is at most one update too long.
        spent = dict(zip(taken, accumulate(taken.values()), strict=True))
        for metrics in json_lines(folder / "metrics" / f"seed{seed}-{arm}.jsonl"):
            if "eval_success" in metrics and metrics["step"] in spent:
                step = metrics["step"]
                minutes = (starts[seed] + spent[step]) / 60
                lines[arm].append(Point(step, minutes, 100 * metrics["eval_success"]))
    return lines


def means(points: Iterable[Point]) -> list[Point]:
    """Return the means over seeds, in the order of steps."""
    by_step = defaultdict[float, list[Point]](list)
    for point in points:
        by_step[point.step].append(point)
    return [
        Point(step, fmean(point.minutes for point in by_step[step]), fmean(point.success for point in by_step[step]))
        for step in sorted(by_step)
    ]


def draw(lines: Lines, title: str, out: Path) -> None:
    """Write a picture with a line per arm."""
    # Text stays text, and equal data give equal bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "reflectrl", "font.size": 10}):
        figure = Figure(figsize=(6.4, 3.4), layout="constrained")
        axes = figure.subplots()
        for index, (name, points) in enumerate(lines.items()):
            color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
            middle = means(points)
            axes.scatter([p.minutes for p in points], [p.success for p in points], s=12, color=color, alpha=0.35)
            axes.plot([p.minutes for p in middle], [p.success for p in middle], color=color, marker=marker, label=name)
        axes.set(xlabel="processor minutes of training", ylabel="tasks won, %", ylim=(0, 102), title=title)
        axes.grid(color="#dddddd")
        axes.legend(frameon=False, loc="lower right")
        figure.savefig(out, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main(
        tyro.cli(
            Annotated[Cells, tyro.conf.subcommand("cells")] | Annotated[Run, tyro.conf.subcommand("run")],
            description=__doc__,
        )
    )
