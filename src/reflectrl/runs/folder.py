"""A run folder: its paths, the recipe it belongs to, and the lock that keeps other processes out."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from reflectrl.core.advice import option
from reflectrl.core.config import Recipe, read_recipe, to_toml
from reflectrl.core.config.folders import locked, no_link, refuse_links
from reflectrl.core.config.trust import needing_trust, remember
from reflectrl.core.plugins import one_line
from reflectrl.core.terminal import printable_line
from reflectrl.core.types import UserError
from reflectrl.learn.checkpoint import recover, write_text
from reflectrl.runs.artifact import Graph
from reflectrl.runs.precision import decide, decided_recipe, threads_kept
from reflectrl.runs.state import STATE, State, is_of_another_source, refuse_other_settings

LOG = logging.getLogger(__name__)
OUTDATED = "outdated"
"""Folder, in a run folder, that keeps what was made before the environment was edited: a run folder per edit."""
LOCK = ".lock"


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run. A checkpoint's folder exists only if it is complete."""

    path: Path

    def teach(self, seed: int, split: str) -> Path:
        return self.path / "episodes" / f"teach-seed{seed}-{split}.jsonl"

    def evaluation(self, arm: str, seed: int, split: str, stage: str, sampling: str) -> Path:
        return self.path / "episodes" / f"eval-{arm}-seed{seed}-{split}-{stage}-{sampling}.jsonl"

    def checkpoint(self, seed: int, name: str) -> Path:
        return self.path / "checkpoints" / f"seed{seed}" / name

    def learner(self, seed: int, name: str) -> Path:
        """State of an unfinished training."""
        return self.path / "checkpoints" / f"seed{seed}" / f"{name}.learner"

    def metrics(self, seed: int, name: str) -> Path:
        """Metrics of a single training; `metrics.jsonl` has the metrics of all trainings."""
        return self.path / "metrics" / f"seed{seed}-{name}.jsonl"

    @property
    def timings(self) -> Path:
        """Wall-clock times. They are kept apart from the results, which are identical for two runs of a recipe."""
        return self.path / "timings.jsonl"


OTHER_TASKS = (
    "its tasks are not those with which the run began; they must be the same in every process (does their order "
    "depend on a set or hash()?)"
)


@dataclass(frozen=True)
class Context:
    """The recipe and the run folder, as builders of artifacts get them.

    Attributes:
        tasks: the digest of the environment's tasks; "" if there is no environment.
        source: the digest of the environment's source; "" if there is none.
    """

    recipe: Recipe
    run: RunFolder
    tasks: str = ""
    source: str = ""

    def with_decisions(self, precision: str, threads: int) -> Self:
        """Return the same context, with "on" or "off" where [model] says "auto", and with the run's threads."""
        return replace(self, recipe=decided_recipe(self.recipe, precision, threads))


def unusable(folder: Path, error: OSError) -> UserError:
    """Turn an operating system's error about a file of the run into a one-line UserError."""
    about = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else one_line(error)
    return UserError(f"run folder {folder}: {about}")


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock the run folder within the block. The lock ends with the process, even if the process is killed.

    Raises:
        UserError: another process holds the lock, or the folder contains symbolic links, through which a run would
            write elsewhere.
    """
    folder.mkdir(parents=True, exist_ok=True)
    refuse_links(folder)
    with open(folder / LOCK, "a+", encoding="utf-8", opener=no_link) as file:
        if not locked(file):
            file.seek(0)
            who = file.read().strip() or "unknown"
            raise UserError(
                f"another process ({who}) is at work in {folder}; wait for it, or use another {option('folder')}"
            )
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def acquire(recipe: Recipe, folder: Path, graph: Graph, tasks: str = "") -> State:
    """Write the recipe into the run folder, unless the folder's content was made with other settings.

    From now on, the code and addresses that the recipe names are trusted in this folder, since they were trusted before
    the run began.

    Args:
        tasks: the digest of the environment's tasks, which must not change.

    Returns:
        The state of the folder.

    Raises:
        UserError: the folder holds another training. The message names the first key that differs, or the tasks.

    If the environment was edited, what the folder holds is set aside.
    """
    for old in folder.glob("checkpoints/*/*.old"):  # left by a process that was killed while replacing a checkpoint
        if old.suffixes != [".learner", ".old"]:
            recover(old.with_suffix(""))
    path = folder / "recipe.toml"
    before = read_recipe(path).plain() if path.is_file() else None
    state = State.read(folder)
    if is_of_another_source(graph, state, recipe.plain()):
        former = set_aside(folder)
        LOG.warning(
            "reflectrl: the source of environment %r has changed since %s was last used, so everything is made anew; "
            "what was made before is kept in %s",
            recipe.env["name"],
            folder,
            former,
        )
        state, before = State(folder / STATE), None
    refuse_other_settings(graph, state, before, recipe.plain())
    if state.tasks and tasks and state.tasks != tasks:
        raise UserError(f"{folder}: environment {recipe.env['name']!r}: {OTHER_TASKS}; use another {option('folder')}")
    state.tasks = tasks or state.tasks
    threads = recipe.threads
    if any(artifact.is_begun(folder) for artifact in graph.values() if not artifact.always):
        threads = int(before["threads"]) if before else 0  # the recipe goes on saying how this content was made
        state.threads = state.threads or threads  # earlier versions noted none
        if words := threads_kept(recipe, state):
            sys.stderr.write(f"reflectrl: {printable_line(words)}\n")
    else:
        state.threads = 0
    decide(state, recipe.model, graph, recipe.threads)
    write_text(path, to_toml(replace(recipe, threads=threads)))
    remember(path, needing_trust(recipe.plain()))
    return state


def set_aside(folder: Path) -> Path:
    """Move everything in a run folder into a run folder of its own below it, and return that folder.

    The state is moved last, so that after a kill in between, the next run sets the rest aside.
    """
    parent = folder / OUTDATED
    parent.mkdir(exist_ok=True)
    number = 1 + max((int(path.name) for path in parent.iterdir() if path.name.isdecimal()), default=0)
    former = parent / str(number)
    former.mkdir()
    stays = (OUTDATED, LOCK)
    for path in sorted(folder.iterdir(), key=lambda path: path.name == STATE):
        if path.name in stays:
            continue
        if path.name == "recipe.toml":  # also read by the next run, if this one is killed before it writes its own
            shutil.copy2(path, former / path.name)
        else:
            path.rename(former / path.name)
    return former
