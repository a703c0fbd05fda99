"""Trackers: TensorBoard, trackio, Weights & Biases and MLflow receive every line of metrics.

Each is imported only if a recipe names it. The last logged step is noted in the run folder, so that a killed run that
continues logs no step twice.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from reflectrl.core.plugins import one_line
from reflectrl.core.types import UserError
from reflectrl.learn.trainer import Verdict
from reflectrl.tools.watching.config import WatchConfig

FOLDER = "trackers"
"""Folder of a run for the last step that each tracker received, and for TensorBoard's files."""


class Tracker(Protocol):
    """A receiver of numbers."""

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Log the numbers of a step."""

    def close(self) -> None:
        """Close the tracker."""


class Trackers:
    """Sends the metrics of a single training to all trackers that the recipe names.

    Args:
        path: file of the training's metrics, in the run folder.
        settings: the whole recipe, for trackers that show it.

    Raises:
        UserError: a tracker cannot be reached.
    """

    def __init__(self, config: WatchConfig, path: Path, run: str, settings: Mapping[str, Any]) -> None:
        self.config, self.name, self.run, self.settings = config, path.stem, run, settings
        self.folder = path.parents[1] / FOLDER
        self._open: dict[str, Tracker] = {}

    def heard(self, metrics: Mapping[str, Any]) -> tuple[Verdict, str]:
        """Log the metrics with each tracker, except for steps that it has already."""
        step, shown = int(metrics["step"]), numbers(metrics)
        for kind in self.config.trackers:
            noted = self.folder / f"{self.name}.{kind}"
            if step <= (int(noted.read_text(encoding="ascii")) if noted.is_file() else -1):
                continue
            if kind not in self._open:
                self._open[kind] = opened(kind, self)
            try:
                self._open[kind].log(shown, step)
            except Exception as error:  # of any kind: it speaks to a server
                raise UserError(f"tracker {kind}: {one_line(error)}; the same command goes on") from error
            noted.write_text(str(step), encoding="ascii")
        return "", ""

    def close(self) -> None:
        """Close all trackers."""
        for tracker in self._open.values():
            tracker.close()


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a line of metrics."""
    found = {name: value for name, value in metrics.items() if name not in ("step", "seed")}
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def opened(kind: str, of: Trackers) -> Tracker:
    """Open a tracker. Raises UserError if that fails."""
    of.folder.mkdir(parents=True, exist_ok=True)
    try:
        return TRACKERS[kind](of)
    except Exception as error:  # of any kind: accounts, addresses, versions
        raise UserError(f"tracker {kind}: {one_line(error)}") from error


class TensorBoard:
    """Event files in the run folder: `tensorboard --logdir runs`."""

    def __init__(self, of: Trackers) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(of.folder / "tensorboard" / of.name))

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Write the numbers, and flush, so that a kill loses nothing that was noted as logged."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class MLflow:
    """MLflow: a run per training, in an experiment. The address is MLFLOW_TRACKING_URI, or the folder mlruns here."""

    def __init__(self, of: Trackers) -> None:
        self._mlflow: Any = importlib.import_module("mlflow")
        self._mlflow.set_experiment(of.config.project)
        noted = of.folder / f"{of.name}.mlflow-run"
        known = noted.read_text(encoding="ascii") if noted.is_file() else None
        self._client = self._mlflow.MlflowClient()
        if known is None:
            experiment = self._mlflow.get_experiment_by_name(of.config.project).experiment_id
            known = self._client.create_run(experiment, run_name=f"{of.run} {of.name}").info.run_id
            noted.write_text(known, encoding="ascii")
        self._run = known

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Send the numbers."""
        for name, value in numbers.items():
            self._client.log_metric(self._run, name, value, step=step)

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run)


class Session:
    """A run of trackio or Weights & Biases, whose interfaces are alike.

    A run that exists already is continued by its name.
    """

    def __init__(self, of: Trackers, module: str, **options: Any) -> None:
        package: Any = importlib.import_module(module)
        name = f"{of.run}-{of.name}"
        self._run: Any = package.init(project=of.config.project, name=name, config=dict(of.settings), **options)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Send the numbers."""
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Mark the run as finished."""
        self._run.finish()


def trackio(of: Trackers) -> Session:
    """Open trackio, which keeps its data on this machine unless its own settings say otherwise."""
    return Session(of, "trackio", resume="allow")


def wandb(of: Trackers) -> Session:
    """Open Weights & Biases. With WANDB_MODE=offline, everything stays on this machine."""
    return Session(of, "wandb", resume="allow", id=f"{of.run}-{of.name}", dir=str(of.folder))


TRACKERS: dict[str, Callable[[Trackers], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "trackio": trackio,
    "wandb": wandb,
}
