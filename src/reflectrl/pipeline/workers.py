"""Making the parts of a stage one after another, or side by side in processes of their own."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
import warnings
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any

import torch
import transformers

from reflectrl.config import Recipe
from reflectrl.envs.workers import deaf_children, portable
from reflectrl.pipeline import offline, parts
from reflectrl.pipeline.judging import Timings, eval_part
from reflectrl.pipeline.layout import RunFolder
from reflectrl.pipeline.plan import Unit
from reflectrl.pipeline.progress import Board, Tick
from reflectrl.types import UserError, named_seed


class Workers:
    """Makes units one after another, or in processes that are started once and stay for the whole run."""

    def __init__(self, recipe: Recipe, run: RunFolder, board: Board) -> None:
        self.recipe, self.run, self.board = recipe, run, board
        self._pool: ProcessPoolExecutor | None = None
        self._news: Any = None

    def make(self, units: list[Unit]) -> None:
        """Make all units; what is finished when one of them fails is kept."""
        if self.recipe.processes == 1 or len(units) < 2:
            for unit in units:
                tick = partial(self.board.tick, str(unit))
                note_timings(self.run, _make(self.recipe, self.run, unit, tick))
            return
        with deaf_children():
            pool = self._pool or self._open()
            futures = {pool.submit(_make_in_child, self.recipe, self.run, unit) for unit in units}
        try:
            while futures:
                done, futures = wait(futures, timeout=0.5, return_when=FIRST_COMPLETED)
                while not self._news.empty():
                    self.board.tick(*self._news.get())
                for future in done:
                    note_timings(self.run, future.result())
        except BrokenProcessPool as error:
            raise UserError(
                "a process that made a part was killed (out of memory?); the same command goes on"
            ) from error

    def _open(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        self._news = context.SimpleQueue()
        self._pool = ProcessPoolExecutor(self.recipe.processes, context, prepare_child, (self._news,))
        return self._pool

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop at once: a part is made from files to files, so nothing finished is lost."""
        if self._pool is not None:
            for child in list((self._pool._processes or {}).values()):
                child.kill()  # it cannot be put off
            self._pool.shutdown(wait=True, cancel_futures=True)


def _make(recipe: Recipe, run: RunFolder, unit: Unit, tick: Tick) -> Timings:
    """Make one part in this process. Its randomness depends on its name only, not on what was made before it."""
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    torch.manual_seed(named_seed(unit.seed, unit.stage, unit.name))
    start = time.perf_counter()
    making = {
        "teach": parts.teach_part,
        "base": parts.base_part,
        "sft": parts.sft_part,
        "log": offline.log_part,
        "offline": offline.offline_part,
        "rl": parts.rl_part,
        "eval": eval_part,
    }
    timings = making[unit.stage](recipe, run, unit.seed, unit.name, tick)
    seconds = round(time.perf_counter() - start, 2)
    return [*(timings or ()), {"stage": unit.stage, "part": unit.name, "seed": unit.seed, "seconds": seconds}]


_news: Any = None
"""In a child: the queue that tells the parent how parts go on."""


def _make_in_child(recipe: Recipe, run: RunFolder, unit: Unit) -> Timings:
    said = 0.0

    def tick(done: int, total: int, note: str) -> None:
        nonlocal said
        if done == total or time.monotonic() - said > 0.5:
            _news.put((str(unit), done, total, note))
            said = time.monotonic()

    try:
        return _make(recipe, run, unit, tick)
    except BaseException as error:  # one that the parent cannot read would look like a process that was killed
        raise portable(error) from None


def prepare_child(news: Any) -> None:
    """Children leave Ctrl-C to the parent, say nothing themselves, and do not outlive the parent."""
    global _news
    _news = news
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    silence()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # the parent was killed: its next call must find nobody at work in the run folder


def silence() -> None:
    """Keep what libraries say to their developers out of a user's terminal."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    warnings.filterwarnings("ignore", module="(torch|transformers|peft)")


def note_timings(run: RunFolder, timings: Timings) -> None:
    """Add lines to the run's timings."""
    with run.timings.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(timing) + "\n" for timing in timings)
