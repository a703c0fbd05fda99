"""The metrics of a run: a file per part while it trains, one file for all of them afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reflectrl.episodes import drop_half_line
from reflectrl.learn.checkpoint import load_meta, write_text
from reflectrl.pipeline.layout import RunFolder


class MetricsFile:
    """The metrics of one part, a JSON line each. What was logged after the learner's saved state is written anew.

    Args:
        learner: the folder of the learner's state, which says from where it goes on.
        shared: what every line says beside its metrics.
    """

    def __init__(self, path: Path, learner: Path, shared: dict[str, Any]) -> None:
        self.shared = shared
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "".join(_before(path, _saved_step(learner))))
        self._file = path.open("a", encoding="utf-8")

    def write(self, metrics: dict[str, Any]) -> None:
        self._file.write(json.dumps({**self.shared, **metrics}) + "\n")
        self._file.flush()

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def collect(run: RunFolder) -> None:
    """All parts' metrics in one file, in a fixed order."""
    files = sorted((run.path / "metrics").glob("*.jsonl"))
    write_text(run.path / "metrics.jsonl", "".join(file.read_text(encoding="utf-8") for file in files))


def _before(path: Path, step: int) -> list[str]:
    drop_half_line(path)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if json.loads(line)["step"] < step]


def _saved_step(learner: Path) -> int:
    """The step from which a saved learner goes on: SFT has finished it, RL is about to do it."""
    meta = load_meta(learner)
    if meta is None:
        return 0
    return int(meta["step"]) + 1 if "step" in meta else int(meta["update"])
