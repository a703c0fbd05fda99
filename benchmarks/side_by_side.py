"""Play, update and SFT of a model beside Hugging Face, and the most expensive operations of each, in one process.

    python -m benchmarks.side_by_side --programs update sft --model FOLDER --device cuda --batches 16 64

Loading torch and a model takes longer than a GPU needs for a row, so `gpu.py` measures all batch sizes of a program in
one process. If a row fails (for lack of memory, say), the error is printed and the others are measured.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import tyro

from . import play, profiled, sft, update
from .settings import Settings, begin


def rows_of(program: str, rows: Callable[[Settings], list[dict[str, Any]]], settings: Settings) -> None:
    """Print the rows of a program as JSON lines, or a line with the error if there are none."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # `note` prints rows there, without their program's name
            program_rows = rows(settings)
        for row in program_rows:
            print(json.dumps({"program": program, **row}), flush=True)
    except Exception as error:
        traceback.print_exc()
        cell = {"batch": settings.batches[0]}
        print(json.dumps({"program": program, **cell, "error": f"{type(error).__name__}: {error}"[:300]}), flush=True)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


PROGRAMS = {"update": update.rows, "sft": sft.rows, "play": play.rows, "profile": profiled.rows}


@dataclass(frozen=True)
class SeveralSettings(Settings):
    """Settings of the benchmarks, and the names of those to run."""

    programs: tuple[Literal["update", "sft", "play", "profile"], ...] = ("update", "sft", "play", "profile")
    """Programs to run."""


def main(settings: SeveralSettings) -> None:
    """Measure every batch size with each program."""
    begin(settings)
    for batch in settings.batches:
        for program in settings.programs:
            rows_of(program, PROGRAMS[program], replace(settings, batches=(batch,)))


if __name__ == "__main__":
    main(tyro.cli(SeveralSettings, description=(__doc__ or "").split("\n\n")[0]))
