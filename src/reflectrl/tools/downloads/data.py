"""`data`: get the data of a benchmark, or show what is there. Each benchmark has its own options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Annotated

import tyro

from reflectrl.core.plugins import names, resolve, suggestion
from reflectrl.core.terminal import console
from reflectrl.core.types import UserError

ProgressCallback = Callable[[int, int, str], None]
"""Function that is called with (done, total, what) during the work."""


@dataclass(frozen=True)
class Data:
    """Get the data of a benchmark, or show what is there: `data alfworld --help`, `data hha --help` and so on."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="BENCHMARK")]
    """Name of a benchmark; or convert, for files of samples."""

    @classmethod
    def narrowed(cls, words: Sequence[str]) -> type[Data]:
        """Return the verb of the first benchmark that is named among the words; this verb if none is."""
        benchmarks = names("benchmarks")
        name = next((word for word in words if word in benchmarks), None)
        return cls if name is None else resolve("benchmarks", name)

    def __call__(self, settings: Sequence[str]) -> None:
        """Refuse an unknown benchmark. (A benchmark's own class gets its data here.)"""
        raise UserError(f"unknown benchmark {self.name!r}{suggestion(self.name, names('benchmarks'))}")


def refuse_unknown(settings: Sequence[str], verb: type) -> None:
    """Refuse words that are not options of a verb, and suggest the nearest option."""
    if settings:
        option = settings[0].partition("=")[0]
        options = [f"--{field.name.rstrip('_').replace('_', '-')}" for field in fields(verb) if field.name != "name"]
        raise UserError(f"unknown option {option!r}{suggestion(option, options)}")


@contextmanager
def bar(name: str) -> Iterator[ProgressCallback]:
    """Show progress as a bar on a terminal, and as a plain line now and then elsewhere."""
    from reflectrl.runs.progress import ProgressBars

    with ProgressBars(console(120)) as bars:
        yield lambda done, total, note: bars.update(name, done, total or done, note)
