"""`run --fork RUN`: a new run that copies another run's artifacts with the same settings, and makes the rest."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from reflectrl.cli.run import RunOption
from reflectrl.core.config import Recipe
from reflectrl.core.config.folders import writing
from reflectrl.core.terminal import console
from reflectrl.core.types import UserError
from reflectrl.runs.artifact import Artifact
from reflectrl.runs.graph import planned
from reflectrl.runs.state import State, fingerprint


@dataclass(frozen=True)
class Fork(RunOption):
    """The option `--fork` of `reflectrl run`."""

    fork: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """Copy the artifacts of this run folder that the changed recipe leaves as they are. The folder itself is not
    changed."""

    def changed(self, recipe: Recipe, folder: Path) -> Recipe:
        """Return the recipe unchanged. Refuses a fork of a folder into itself, or of a folder without a run."""
        if self.fork is not None:
            if not (self.fork / "recipe.toml").is_file():
                raise UserError(f"--fork: {self.fork} is not a run folder")
            if self.fork.resolve() == folder.resolve():
                raise UserError(f"--fork: {folder} is the run itself; name the new one: --name NEW, or --folder")
        return recipe

    def prepare(self, recipe: Recipe, folder: Path) -> None:
        """Copy the artifacts that can be reused, unless the new run has begun already."""
        if self.fork is not None and not (folder / "recipe.toml").is_file():
            copied_keys = take_over(recipe, self.fork, folder)
            console(120).print(f"copied from {self.fork}: {len(copied_keys)} artifacts", soft_wrap=True)


def take_over(recipe: Recipe, source: Path, folder: Path) -> list[str]:
    """Copy the complete artifacts of a run that were made with the same settings as in `recipe`.

    Returns:
        Their keys.
    """
    from reflectrl.runs.report.data import ANCESTORS  # brings matplotlib

    graph, settings = planned(recipe), recipe.plain()
    source_state, new_state = State.read(source), State.read(folder)
    for key, artifact in graph.items():
        record = source_state.made.get(key, {})
        agrees = record.get("fingerprint") == fingerprint(artifact, settings)
        if artifact.always or not agrees or "extent" not in record or not artifact.exists(source):
            continue
        for path in sorted(set(_files(artifact, source))):
            _copy(path, folder / path.relative_to(source))
        new_state.made[key] = dict(record)
    if (source / ANCESTORS).is_file():  # the report checks that they are about the policy of the new run
        _copy(source / ANCESTORS, folder / ANCESTORS)
    if new_state.made:
        new_state.auto_precision = source_state.auto_precision  # a copied training keeps its precision and threads
        new_state.threads = source_state.threads
        new_state.write()
    return list(new_state.made)


def _files(artifact: Artifact, run: Path) -> Iterator[Path]:
    """Yield the files and folders of an artifact, with the metrics of its training or the temperature of its play."""
    for pattern in artifact.outputs:
        for path in run.glob(pattern):
            parts = path.relative_to(run).parts
            is_model = parts[0] == "checkpoints" and len(parts) > 3  # of a model, the whole folder
            yield run.joinpath(*parts[:3]) if is_model else path
    if artifact.training:
        name = Path(artifact.training).stem
        yield from (run / "metrics").glob(f"seed{artifact.seed}-{name}.jsonl")
        yield from (run / "metrics").glob(f"seed{artifact.seed}-{name}.sha256")
    if artifact.kind == "eval":
        yield from run.glob(f"calibration/{artifact.name}-seed{artifact.seed}.json")


def _copy(path: Path, to: Path) -> None:
    """Copy a file, or a folder with its files, atomically. A file that exists stays."""
    if to.exists():
        return
    part = to.with_name(f"{to.name}.{os.getpid()}.part")
    with writing(to, part):
        to.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, part, dirs_exist_ok=True)
        else:
            shutil.copy2(path, part)
        part.replace(to)
