"""What `data` has for every benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Annotated

import tyro

from reflectrl.plugins import suggestion
from reflectrl.terminal import console
from reflectrl.types import UserError

Tick = Callable[[int, int, str], None]
"""Called with (done, total, what) as the work goes on."""


@dataclass(frozen=True)
class Data:
    """Get the data of a benchmark."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="BENCHMARK")]
    """alfworld, autoexplore, hha, comet, reddit, knowledge; or convert, for files of samples."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Get the data, then say what is there."""
        raise NotImplementedError


def refuse_unknown(settings: Sequence[str], verb: type) -> None:
    """Refuse words that are no options of a verb, with the nearest one that is."""
    if settings:
        option = settings[0].partition("=")[0]
        known = [f"--{field.name.rstrip('_').replace('_', '-')}" for field in fields(verb) if field.name != "name"]
        raise UserError(f"unknown option {option!r}{suggestion(option, known)}")


@contextmanager
def bar(part: str) -> Iterator[Tick]:
    """Shows on a terminal how far a part is; elsewhere, a plain line now and then."""
    from reflectrl.pipeline.progress import Board

    with Board(console(120)) as board:
        yield lambda done, total, note: board.tick(part, done, total or done, note)
