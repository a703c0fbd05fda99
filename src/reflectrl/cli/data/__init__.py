"""`data`: getting the data of a benchmark, or saying what is there. Each benchmark has its own options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reflectrl.cli.data.alfworld import ALFWorldData
from reflectrl.cli.data.autoexplore import AutoExploreData
from reflectrl.cli.data.base import Data as _Data
from reflectrl.cli.data.text import TEXT
from reflectrl.plugins import suggestion
from reflectrl.types import UserError

BENCHMARKS: dict[str, type[_Data]] = {"alfworld": ALFWorldData, "autoexplore": AutoExploreData, **TEXT}


@dataclass(frozen=True)
class Data(_Data):
    """Get the data of a benchmark, or say what is there: `data alfworld --help`, `data hha --help` and so on."""

    @classmethod
    def narrowed(cls, words: Sequence[str]) -> type[_Data]:
        """The verb of the benchmark that is named first among the words; this one if none is."""
        return next((BENCHMARKS[word] for word in words if word in BENCHMARKS), cls)

    def __call__(self, settings: Sequence[str]) -> None:
        """Refuse: no benchmark was named that there is."""
        raise UserError(f"unknown benchmark {self.name!r}{suggestion(self.name, list(BENCHMARKS))}")


__all__ = ["BENCHMARKS", "Data"]
