"""The progress of a run: bars with the remaining time on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from reflectrl.core.terminal import harmless, printable_line

ProgressCallback = Callable[[int, int, str], None]
"""Function that is called with (done, total, note) while an artifact is made."""

QUIET_SECONDS = 15.0
"""Shortest time (s) between two plain lines about an artifact."""

WIDE = 100
"""Smallest width of a terminal, in characters, with room for a bar next to the count."""


def silently(done: int, total: int, note: str) -> None:
    """Show nothing."""


class ProgressBars:
    """One progress bar per artifact that is being made. `update` may be called at any rate."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bars: dict[str, TaskID] = {}
        self._said: dict[str, float] = {}
        self._began: dict[str, tuple[float, int]] = {}
        self._streams = ExitStack()
        bar: list[ProgressColumn] = [BarColumn(bar_width=16)] if console.width >= WIDE else []
        # Only the note may be cut: with a ratio it gets what the other columns leave.
        note = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            *bar,
            TextColumn("{task.completed:.0f}/{task.total:.0f}", markup=False, table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=7)),
            TextColumn("{task.fields[note]}", markup=False, table_column=note),
            console=console,
            disable=not console.is_terminal,
            expand=True,
        )

    def __enter__(self) -> ProgressBars:
        self._progress.start()
        self._streams.enter_context(harmless())  # rich redirects printed text, and would obey escape codes in it
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._streams.close()
        self._progress.stop()

    def update(self, artifact: str, done: int, total: int, note: str) -> None:
        """Show that `done` of `total` units of an artifact are finished."""
        name, note = printable_line(artifact), printable_line(note)
        if not self.console.is_terminal:
            self._plain(name, done, total, note)
        elif name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=total, completed=done, note=note)
        else:
            self._progress.update(self._bars[name], completed=done, total=total, note=note)

    def _plain(self, name: str, done: int, total: int, note: str) -> None:
        now = time.monotonic()
        began, first = self._began.setdefault(name, (now, done))
        if done < total and now - self._said.setdefault(name, now) < QUIET_SECONDS:
            return
        self._said[name] = now
        left = f", {duration((now - began) / (done - first) * (total - done))} left" if first < done < total else ""
        print(f"{name}: {done}/{total}{left} {note}".rstrip(), flush=True)


def duration(seconds: float) -> str:
    """Return a time in rounded words: "40 s", "12 min", "3.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
