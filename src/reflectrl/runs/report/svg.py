"""Matplotlib figures as inline SVG. Colours become CSS variables, so that plots fit a light and a dark page.

Figures are made without pyplot, which has global state. While drawing, a colour is a placeholder such as "#fe0003"; in
the SVG it becomes `var(--series-3)`. Text stays text, in the page's font.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reflectrl.runs.report.data import ARMS, SHARED

SERIES = 13
"""Number of colours, `--series-0` to `--series-12`: for the usual arms, other arms, and shared curves."""
DASHES = ("2 2", "8 3", "6 2 2 2", "1 3", "4 2", "10 2", "2 3", "6 2 2 2 2 2", "", "5 5", "9 2 2 2", "3 3", "")
"""Dash patterns in points ("" is solid), so that colour is never the only difference between two arms."""
INK, MUTED, GRID = "#fe00f0", "#fe00f1", "#fe00f2"
VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--line)"} | {
    f"#fe{i:04x}": f"var(--series-{i})" for i in range(SERIES)
}
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "reflectrl",
    "text.parse_math": False,  # a "$" in somebody's name is a dollar
    "font.size": 8.0,
    "text.color": MUTED,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
}
CONSOLE = {"backend", "backend_fallback", "interactive", "toolbar", "timezone"}
"""Settings of matplotlib that do not concern figures without a window."""


@dataclass(frozen=True)
class Look:
    """Line style of an arm: its colour and dashes."""

    series: int

    @property
    def dashes(self) -> str:
        """Dashes as SVG's stroke-dasharray; "" is solid."""
        return DASHES[self.series]

    @property
    def colour(self) -> str:
        """Placeholder for the colour while drawing."""
        return f"#fe{self.series:04x}"


def looks(arms: Iterable[str]) -> dict[str, Look]:
    """Return a look per arm: fixed for the usual arms, in order of appearance for others."""
    ordered = list(arms)
    others = [arm for arm in dict.fromkeys(ordered) if arm not in ARMS and arm != SHARED]
    numbers = {arm: i for i, arm in enumerate(ARMS)} | {SHARED: SERIES - 1}
    numbers |= {arm: len(ARMS) + i % (SERIES - 1 - len(ARMS)) for i, arm in enumerate(others)}
    return {arm: Look(numbers[arm]) for arm in ordered}


@contextmanager
def drawing(width: float, height: float) -> Iterator[tuple[Figure, Axes]]:
    """Open a figure of this size (in inches) with one pair of axes. Within the block, the page's style applies.

    A file `matplotlibrc` in the current folder, which may be a stranger's, has no effect. It could start LaTeX.
    """
    with matplotlib.rc_context():
        matplotlib.rcParams.update(
            {key: matplotlib.rcParamsDefault[key] for key in matplotlib.rcParamsDefault.keys() - CONSOLE}
        )
        matplotlib.rcParams.update(STYLE)
        figure = Figure(figsize=(width, height))
        yield figure, figure.add_subplot()


def _leave_room(figure: Figure) -> None:
    """Leave margins for the labels of the axes, by their numbers of characters.

    How wide a label really is depends on the page's font. Matplotlib's constrained layout would measure labels in
    another font and draw each plot twice, and a report has dozens of plots.
    """
    (axes,), (width, height) = figure.axes, figure.get_size_inches()
    line, character = 0.16, 0.065  # inches at a font size of 8 points
    longest = max((len(label.get_text()) for label in axes.get_yticklabels()), default=0)
    left = 0.1 + longest * character + (line if axes.get_ylabel() else 0)
    bottom = 0.1 + line + (line if axes.get_xlabel() else 0)
    figure.subplots_adjust(min(left / width, 0.6), bottom / height, 1 - 0.12 / width, 1 - line / height)


def to_svg(figure: Figure, prefix: str, label: str) -> str:
    """Return the figure as an `<svg>` element that refers to nothing outside the page and shares no id with other
    figures.
    """
    _leave_room(figure)
    buffer = io.StringIO()
    figure.savefig(
        buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
    )
    text = buffer.getvalue()
    head, body = text[text.index("<svg") :].strip().split(">", 1)
    viewbox = re.search(r'viewBox="[^"]*"', head)
    body = re.sub(r"<metadata>(?:(?!<metadata>).)*?</metadata>", "", body, flags=re.DOTALL)
    body = _own_ids(body, prefix)
    for placeholder, variable in VARIABLES.items():
        body = body.replace(placeholder, variable)
    return f'<svg class="plot" role="img" aria-label="{escape(label)}" {viewbox[0] if viewbox else ""}>{body}'


def _own_ids(text: str, prefix: str) -> str:
    """Remove unused ids, and put a prefix before the others."""
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    text = re.sub(r'\sid="([^"]+)"', lambda match: f' id="{prefix}{match[1]}"' if match[1] in used else "", text)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}", text)
