"""Trackers: TensorBoard, trackio, Weights & Biases and MLflow receive every line of metrics, through accelerate.

The last logged step is noted in the run folder, so that a killed run that continues logs no step twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectrl.core.plugins import one_line
from reflectrl.core.types import UserError
from reflectrl.learn.trainer import Verdict
from reflectrl.tools.watching.config import WatchConfig

if TYPE_CHECKING:
    from accelerate.tracking import GeneralTracker

FOLDER = "trackers"
"""Folder of a run for the last step that each tracker received, and for TensorBoard's files."""


class Trackers:
    """Sends the metrics of a single training to all trackers that the recipe names.

    Args:
        path: file of the training's metrics, in the run folder.
        settings: the whole recipe, for trackers that show it.

    Raises:
        UserError: a tracker cannot be reached.
    """

    def __init__(self, config: WatchConfig, path: Path, run: str, settings: Mapping[str, Any]) -> None:
        self.config, self.training, self.run, self.settings = config, path.stem, run, settings
        self.folder = path.parents[1] / FOLDER
        self._open: dict[str, GeneralTracker] = {}

    def on_metrics(self, metrics: Mapping[str, Any]) -> tuple[Verdict, str]:
        """Log the metrics with each tracker, except for steps that it has already."""
        step = int(metrics["step"])
        for kind in self.config.trackers:
            note = self.folder / f"{self.training}.{kind}"
            if step <= (int(note.read_text(encoding="ascii")) if note.is_file() else -1):
                continue
            try:
                if kind not in self._open:
                    self._open[kind] = self._opened(kind)
                self._open[kind].log(numbers(metrics), step=step)
            except Exception as error:  # of any kind: accounts, addresses, versions
                raise UserError(f"tracker {kind}: {one_line(error)}; run the same command again to continue") from error
            note.write_text(str(step), encoding="ascii")
        return "", ""

    def close(self) -> None:
        """Close all trackers."""
        for tracker in self._open.values():
            tracker.finish()

    def _opened(self, kind: str) -> GeneralTracker:
        """Open a tracker. A run that it has already under this training's name, or number, is continued."""
        from accelerate.state import PartialState
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        PartialState(cpu=True)  # accelerate's log needs it, and no GPU
        self.folder.mkdir(parents=True, exist_ok=True)
        project, name = self.config.project, f"{self.run}-{self.training}"
        note = self.folder / f"{self.training}.mlflow-run"  # MLflow chooses the number of a run itself
        known_run = note.read_text(encoding="ascii") if note.is_file() else None
        session = {"run_name": project, "name": name, "resume": "allow", "config": dict(self.settings)}
        arguments: dict[str, dict[str, Any]] = {
            "tensorboard": {"run_name": self.training, "logging_dir": self.folder / "tensorboard"},
            "trackio": session,
            "wandb": {**session, "id": name, "dir": str(self.folder)},
            "mlflow": {"experiment_name": project, "run_name": name, "run_id": known_run, "nested_run": True},
        }
        tracker: GeneralTracker = LOGGER_TYPE_TO_CLASS[kind](**arguments[kind])
        tracker.main_process_only = False  # only the first rank has trackers; accelerate need not look for others
        tracker.start()
        if kind == "mlflow":
            note.write_text(tracker.tracker.info.run_id, encoding="ascii")
        return tracker


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a line of metrics."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if name not in ("step", "seed")
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
    }
