"""Execution of a recipe: make the missing artifacts of its graph, stage by stage, and show the outcome."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reflectrl.core.config import Recipe
from reflectrl.core.open_environments import closing_environments
from reflectrl.core.terminal import console
from reflectrl.learn.checkpoint import drop_state
from reflectrl.runs import metrics
from reflectrl.runs.artifact import STAGES, Artifact, Build, Graph
from reflectrl.runs.folder import Context, RunFolder, acquire, folder_lock, unusable
from reflectrl.runs.graph import kind_of, planned
from reflectrl.runs.progress import ProgressBars, silently
from reflectrl.runs.ranks import joined
from reflectrl.runs.results import commit
from reflectrl.runs.state import State
from reflectrl.runs.workers import Workers, silence

LOG = logging.getLogger(__name__)


def run_recipe(recipe: Recipe, folder: Path, until: str) -> None:
    """Make the missing artifacts of a run folder, up to and including the stage `until`. Complete artifacts are kept.

    Raises:
        UserError: the folder belongs to another training, or some of the user's input is wrong.
    """
    with joined(recipe) as ranks:
        kind = kind_of(recipe)
        graph = planned(recipe)
        with closing_environments():
            context = kind.begin(recipe, RunFolder(folder))
        silence()
        if ranks is not None and ranks.team.rank > 0:
            ranks.follow(context, graph)
            return
        try:
            with folder_lock(folder):
                state = acquire(recipe, folder, graph, context.tasks)
                if ranks is not None:
                    ranks.lead(state.auto_precision, state.threads)
                context = context.with_decisions(state.auto_precision, state.threads)
                with ProgressBars(console(120)) as bars, Workers(context, bars, ranks) as workers:
                    run = _Run(context, graph, state, workers, recipe.plain())
                    for stage in STAGES[: STAGES.index(until) + 1]:
                        run.through(stage)
                if until == STAGES[-1]:
                    with closing_environments():
                        kind.show(context)
                    console(120).print(f"\nreport: {folder / 'report.html'}", soft_wrap=True)
        except OSError as error:
            raise unusable(folder, error) from error


class _Run:
    """A run in progress: its graph, and the state of its folder. The state is written whenever it changes.

    Args:
        settings: the recipe as the user wrote it, on which fingerprints are based.
    """

    def __init__(
        self, context: Context, graph: Graph, state: State, workers: Workers, settings: Mapping[str, Any]
    ) -> None:
        self.context, self.graph, self.state, self.workers = context, graph, state, workers
        self.settings = settings
        self.version, self._has_begun = commit(), False
        if state.damaged:
            # The files alone show what is complete, so nothing has to be made again for a damaged state.
            state.complete = [stage for stage in STAGES[:-1] if not self.missing(stage)]
            self._note_complete()

    def through(self, stage: str) -> None:
        """Make the missing artifacts of a stage."""
        missing = self.missing(stage)
        if missing:
            self.state.complete = list(STAGES[: STAGES.index(stage)])
            self.state.write()
            self.workers.make(missing, self._begin, self._finish)
        if missing or stage == "eval":  # before the report even if nothing was missing, since a file may be damaged
            metrics.collect(self.context.run)
        for artifact in self._of(stage):
            if artifact.always:
                progress = partial(self.workers.bars.update, artifact.key)
                self.workers.note_timings(Build(self.context, artifact, progress)() or [])
        self._note_complete(stage)

    def missing(self, stage: str) -> list[Artifact]:
        """Return the artifacts of a stage that are not complete."""
        folder, missing = self.context.run.path, []
        for artifact in self._of(stage):
            if artifact.always:
                continue
            changed = self.state.has_other_logs(artifact, self.settings)
            if changed and artifact.maker.unfinished is None:  # it cannot be continued, so it is begun anew
                for path in artifact.logs(folder):
                    path.replace(path.with_name(f"{path.name}.changed"))  # it may have been changed on purpose
            if not artifact.exists(folder) or Build(self.context, artifact, silently).is_unfinished():
                missing.append(artifact)
                if changed:
                    LOG.warning("reflectrl: %s is not as it was written; it is made again", folder / artifact.path)
            elif artifact.training:
                drop_state(folder / artifact.training)  # left if a process was killed after saving the model
        return missing

    def _of(self, stage: str) -> list[Artifact]:
        return [artifact for artifact in self.graph.values() if artifact.stage == stage]

    def _begin(self, artifact: Artifact) -> None:
        earlier = [version for version in self.state.versions(self.graph.values()) if version != self.version]
        if earlier and not self._has_begun:
            about = "reflectrl: %s was begun by %s and is continued by %s; its results name both"
            LOG.warning(about, self.context.run.path, ", ".join(earlier), self.version)
        self._has_begun = True
        self.state.begin(artifact, self.settings, self.version)
        self.state.write()

    def _finish(self, artifact: Artifact) -> None:
        self.state.finish(artifact, self.settings, self.version)
        self.state.write()

    def _note_complete(self, *stages: str) -> None:
        """Record that stages are complete, and with them all their artifacts."""
        before = self.state.complete, dict(self.state.made)
        self.state.complete = list(dict.fromkeys([*self.state.complete, *stages]))
        for stage in self.state.complete:
            for artifact in self._of(stage):
                if not artifact.always:
                    logs = self.state.made.get(artifact.key, {}).get("logs")
                    self.state.finish(artifact, self.settings, self.version)
                    if logs and stage not in stages:  # `missing` has not compared them yet
                        self.state.made[artifact.key]["logs"] = logs
        if before != (self.state.complete, self.state.made):
            self.state.write()
