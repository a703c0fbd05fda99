"""The engine "ray": artifacts as tasks of a Ray cluster, which repeats tasks whose worker was killed.

Source: Ray (Moritz et al. 2018, "Ray: A Distributed Framework for Emerging AI Applications"). The run folder must be
on storage that all machines share. Results do not depend on the machine that makes an artifact: they are the same as
with local processes, and byte for byte identical on machines of one kind, since all compute with the run's number of
threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from reflectrl.core.config import Recipe
from reflectrl.core.envs.workers import MakeEnv, portable
from reflectrl.core.local_modules import allow_modules, allowed_modules
from reflectrl.core.plugins import one_line
from reflectrl.core.types import UserError
from reflectrl.runs.artifact import Artifact
from reflectrl.runs.cluster.connection import connected
from reflectrl.runs.folder import Context, RunFolder
from reflectrl.runs.workers import AGAIN, Timings, make, seldom, silence

RETRIES = 3
"""Number of restarts of an artifact whose worker or machine was lost. It continues from its last saved state."""

News = tuple[str, int, int, str]


class RayEngine:
    """Makes artifacts on the Ray cluster of `RAY_ADDRESS`, on a cluster that runs on this machine, or on a new one.

    Each artifact takes a core, and a GPU if the cluster has any. Ray decides how many fit.

    Raises:
        UserError: Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.ray = connected()
        gpus = 1 if self.ray.cluster_resources().get("GPU", 0) else 0
        self._task = self.ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_make_on_ray)
        self._inbox = self.ray.remote(num_cpus=0)(ProgressInbox).remote()
        self._threads = recipe.threads or torch.get_num_threads()
        self._refs: dict[Any, str] = {}

    def submit(self, context: Context, artifact: Artifact) -> Future[Timings]:
        """Make an artifact on the cluster. The future raises UserError if its workers were killed again and again."""
        context = replace(context, run=RunFolder(context.run.path.resolve()))
        ref = self._task.remote(context, artifact, self._inbox, self._threads, str(Path.cwd()), allowed_modules())
        self._refs[ref] = artifact.key
        answer: Future[Timings] = Future()
        ref.future().add_done_callback(partial(_settle, answer, artifact.key))
        return answer

    def news(self) -> Iterable[News]:
        """Return the tasks' progress since the last call; [] if the machine that collects it is gone."""
        try:
            news: list[News] = self.ray.get(self._inbox.take.remote(), timeout=5)
        except self.ray.exceptions.RayError:
            return []
        return news

    def close(self) -> None:
        """Stop the unfinished tasks."""
        for ref in self._refs:
            self.ray.cancel(ref, force=True)
        self.ray.kill(self._inbox)

    @staticmethod
    def env_worker(make_env: MakeEnv) -> Any:
        """Return a worker that hosts environments somewhere on the cluster."""
        from reflectrl.runs.cluster.env_workers import RayWorker

        return RayWorker(make_env)


class ProgressInbox:
    """An actor that keeps the tasks' progress until it is fetched."""

    def __init__(self) -> None:
        self._told: SimpleQueue[News] = SimpleQueue()

    def tell(self, news: News) -> None:
        """Add progress of an artifact."""
        self._told.put(news)

    def take(self) -> list[News]:
        """Return the progress since the last call."""
        return [self._told.get() for _ in range(self._told.qsize())]


def _make_on_ray(
    context: Context, artifact: Artifact, inbox: Any, threads: int, folder: str, modules: Mapping[str, str]
) -> tuple[Timings, BaseException | None]:
    """Make an artifact, in a worker. Errors are returned, because Ray would repeat the task or wrap the error."""
    silence()
    if Path(folder).is_dir():
        os.chdir(folder)
    allow_modules(modules)
    torch.set_num_threads(threads)

    def tell(done: int, total: int, note: str) -> None:
        inbox.tell.remote((artifact.key, done, total, note))

    try:
        return make(context, artifact, seldom(tell)), None
    except BaseException as error:
        return [], portable(error)


def _settle(answer: Future[Timings], key: str, done: Future[Any]) -> None:
    """Pass a task's result, or Ray's error, to the waiting future."""
    try:
        timings, error = done.result()
    except BaseException as lost:
        reason = type(lost).__name__ if not isinstance(lost, UserError) else one_line(lost)
        timings, error = [], UserError(f"{key}: its Ray worker was lost {RETRIES + 1} times ({reason}); {AGAIN}")
    if error is None:
        answer.set_result(timings)
    else:
        answer.set_exception(error)
