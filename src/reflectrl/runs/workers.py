"""Production of artifacts: one after another, or in parallel in separate processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
import transformers

from reflectrl.core.config import Recipe
from reflectrl.core.envs.workers import PATIENCE, deaf_children, portable
from reflectrl.core.local_modules import allowed_modules, begin_worker, without_current_folder
from reflectrl.core.open_environments import closing_environments
from reflectrl.core.plugins import one_line, resolve_engine
from reflectrl.core.types import UserError, named_seed
from reflectrl.learn.checkpoint import keeping
from reflectrl.models.memory import out_of_memory_told
from reflectrl.runs.artifact import Artifact, Build
from reflectrl.runs.folder import Context
from reflectrl.runs.metrics import listening
from reflectrl.runs.precision import with_threads
from reflectrl.runs.progress import ProgressBars, ProgressCallback

if TYPE_CHECKING:
    from reflectrl.runs.ranks import Ranks

AGAIN = "run the same command again to continue"
"""Ending of messages about interruptions and about errors that are not the user's."""

Timings = list[dict[str, Any]]
Told = Callable[[Artifact], None]


class Engine(Protocol):
    """Engine that makes artifacts in parallel: on this machine, or elsewhere (entry points "reflectrl.engines")."""

    def submit(self, context: Context, artifact: Artifact) -> Future[Timings]:
        """Make an artifact elsewhere, as `make` does. The future raises UserError if the process was killed."""

    def news(self) -> Iterable[tuple[str, int, int, str]]:
        """Return progress since the last call, as tuples of key, done, total and note."""

    def close(self) -> None:
        """Stop all work at once. Nothing finished is lost, since artifacts are files."""


class Workers:
    """Makes artifacts one after another, or in parallel on an engine that lasts for the whole run.

    Args:
        ranks: the processes that make an artifact together, if there are several.
    """

    def __init__(self, context: Context, bars: ProgressBars, ranks: Ranks | None = None) -> None:
        self.context, self.bars = context, bars
        self._make = make if ranks is None else ranks.make
        self._engine: Engine | None = None

    def make(self, artifacts: Sequence[Artifact], begin: Told, finish: Told) -> None:
        """Make all artifacts, each after its inputs. If one fails, the finished ones are kept.

        Args:
            begin: called before an artifact is made.
            finish: called when it is complete.
        """
        recipe = self.context.recipe
        if recipe.engine != "local" or (recipe.processes > 1 and len(artifacts) > 1):
            self._side_by_side(list(artifacts), begin, finish)
            return
        for artifact in artifacts:
            begin(artifact)
            self.note_timings(self._make(self.context, artifact, partial(self.bars.update, artifact.key)))
            finish(artifact)

    def _side_by_side(self, waiting: list[Artifact], begin: Told, finish: Told) -> None:
        engine = self._engine = self._engine or self._open()
        futures: dict[Future[Timings], Artifact] = {}
        while waiting or futures:
            unmade = {artifact.key for artifact in (*waiting, *futures.values())}
            ready = [candidate for candidate in waiting if unmade.isdisjoint(needed.key for needed in candidate.needs)]
            for artifact in ready:
                begin(artifact)
                futures[engine.submit(self.context, artifact)] = artifact
                waiting.remove(artifact)
            done, _ = wait(futures, timeout=0.5, return_when=FIRST_COMPLETED)
            for news in engine.news():
                self.bars.update(*news)
            for future in done:
                artifact = futures.pop(future)
                self.note_timings(result_of(future))
                finish(artifact)

    def note_timings(self, timings: Timings) -> None:
        """Append lines to the run's timings."""
        with self.context.run.timings.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(timing) + "\n" for timing in timings)

    def _open(self) -> Engine:
        recipe = self.context.recipe
        if recipe.engine == "local":
            return Processes(recipe)
        engine_class = resolve_engine(recipe.engine)
        try:
            return engine_class(recipe)
        except UserError:
            raise
        except Exception as error:  # a plug-in may raise anything
            raise UserError(f"engine {recipe.engine!r} cannot be started: {one_line(error)}") from error

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._engine is not None:
            self._engine.close()


class Processes:
    """The engine "local": `recipe.processes` processes on this machine."""

    def __init__(self, recipe: Recipe) -> None:
        context = multiprocessing.get_context("spawn")
        with without_current_folder():  # queues may start a process of Python's own
            self._news: Any = context.SimpleQueue()
            arguments = (self._news, allowed_modules())
            self._pool = ProcessPoolExecutor(recipe.processes, context, prepare_child, arguments)

    def submit(self, context: Context, artifact: Artifact) -> Future[Timings]:
        """Make an artifact in one of the processes."""
        with deaf_children(), without_current_folder():
            return self._pool.submit(_make_in_child, context, artifact)

    def news(self) -> Iterable[tuple[str, int, int, str]]:
        """Yield the processes' progress since the last call."""
        while not self._news.empty():
            yield self._news.get()

    def close(self) -> None:
        """End the processes. They may close their environments, and are killed if that takes too long."""
        children = list((self._pool._processes or {}).values())
        for child in children:
            child.terminate()
        end = time.monotonic() + PATIENCE
        for child in children:
            child.join(max(0.0, end - time.monotonic()))
            child.kill()  # unlike SIGTERM, it cannot be ignored
        self._pool.shutdown(wait=True, cancel_futures=True)


def result_of(future: Future[Timings]) -> Timings:
    """Return the result of a process. Raises UserError if the process was killed."""
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise UserError(f"a process that made an artifact was killed (out of memory?); {AGAIN}") from error


def make(context: Context, artifact: Artifact, progress: ProgressCallback) -> Timings:
    """Make one artifact in this process. Its randomness depends on its name, not on what was made before it."""
    torch.manual_seed(named_seed(artifact.seed, artifact.kind, artifact.name))
    start, busy = time.perf_counter(), time.process_time()
    states = keeping(context.recipe.keep_states)
    with with_threads(context.recipe.threads), listening(context), states, out_of_memory_told():
        timings = Build(context, artifact, progress)()
    seconds = round(time.perf_counter() - start, 2)
    # A busy machine stretches wall-clock time but not CPU time, so only CPU time can be compared between runs.
    busy = round(time.process_time() - busy, 2)
    about = {"stage": artifact.kind, "artifact": artifact.name, "seed": artifact.seed}
    return [*(timings or ()), {**about, "seconds": seconds, "cpu_seconds": busy}]


_news: Any = None
"""Queue that carries progress to the parent, in a child process."""


def _make_in_child(context: Context, artifact: Artifact) -> Timings:
    global _is_making
    _is_making = True
    try:
        from reflectrl.core.envs import make_unchanged
        from reflectrl.runs.evaluation import require_same_tasks

        with closing_environments():
            if context.source:
                make_unchanged(context.recipe.env, context.source)
            require_same_tasks(context.recipe, context.tasks)
        return make(context, artifact, seldom(partial(_tell, artifact.key)))
    except BaseException as error:  # an error that the parent cannot unpickle would look like a killed process
        raise portable(error) from None
    finally:
        _is_making = False


_is_making = False
"""True while a child process makes an artifact."""


def _end_child(*_: Any) -> None:
    """End a child process that is told to, with time to close its environments."""
    if _is_making:
        raise KeyboardInterrupt
    os._exit(1)


def _tell(*news: Any) -> None:
    _news.put(news)


def seldom(progress: ProgressCallback, seconds: float = 0.5) -> ProgressCallback:
    """Return a `progress` that passes on at most one call per this many seconds, and always the last one."""
    last_call = 0.0

    def throttled(done: int, total: int, note: str) -> None:
        nonlocal last_call
        if done == total or time.monotonic() - last_call > seconds:
            progress(done, total, note)
            last_call = time.monotonic()

    return throttled


def prepare_child(news: Any, modules: Mapping[str, str]) -> None:
    """Prepare a child process: it leaves Ctrl-C to the parent, prints nothing, and ends when the parent ends."""
    global _news
    begin_worker(modules)
    _news = news
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_child)
    silence()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # the parent was killed, and its next start must not find this process at work in the run folder


def silence() -> None:
    """Keep the libraries' messages to developers out of the user's terminal."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    warnings.filterwarnings("ignore", module="(torch|transformers|peft)")
