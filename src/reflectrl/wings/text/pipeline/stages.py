"""Running a recipe of a text task, stage by stage; what is complete in the run folder is kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from reflectrl.config import Recipe
from reflectrl.learn.checkpoint import recover
from reflectrl.learn.reference_cache import CARD as REFERENCE_CACHE
from reflectrl.pipeline import metrics
from reflectrl.pipeline.claim import alone, claim
from reflectrl.pipeline.layout import RunFolder, unusable
from reflectrl.pipeline.progress import Board, Tick
from reflectrl.pipeline.workers import note_timings, silence
from reflectrl.terminal import console
from reflectrl.types import named_seed
from reflectrl.wings.text.pipeline import parts
from reflectrl.wings.text.pipeline.place import REFERENCE, SPLITS, TextRun
from reflectrl.wings.text.pipeline.results import write_part, write_results
from reflectrl.wings.text.pipeline.show import show
from reflectrl.wings.text.report import write_text_report

UNTIL = {"teach": 1, "sft": 2, "rl": 4, "eval": 5, "report": 6}
"""How many of the stages each verb goes through."""


def run(recipe: Recipe, folder: Path, until: str) -> None:
    """Make what is missing, through the stage of the verb `until`.

    Raises:
        UserError: the folder belongs to another recipe, data are missing, or something the user gave is wrong.
    """
    text = TextRun(recipe, RunFolder(folder))
    text.check()
    silence()
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    try:
        with alone(folder):
            claim(recipe, folder)
            _stages(text, console(160), UNTIL[until])
    except OSError as error:
        raise unusable(folder, error) from error


def _stages(text: TextRun, screen: Console, count: int) -> None:
    steps = (_samples, _references, _values, _arms, _evaluation)
    with Board(screen) as board:
        for step in steps[:count]:
            step(text, board)
            metrics.collect(text.run)
    if count > len(steps):
        page = write_text_report(text.run.path)
        show(screen, text.run.path)
        screen.print(f"\nreport: {page}", soft_wrap=True)


def _samples(text: TextRun, board: Board) -> None:
    if not text.data(SPLITS[0]).is_file():  # it is written last
        _timed(text, board, 0, "data", lambda tick: parts.data_part(text, tick))


def _references(text: TextRun, board: Board) -> None:
    for seed in text.recipe.seeds:
        base = text.run.checkpoint(seed, "base")
        recover(base)
        if text.recipe.model.source == "scratch" and not base.is_dir():
            parts.base_part(text, seed)
        if not text.run.trained(seed, REFERENCE):
            _timed(text, board, seed, REFERENCE, partial(parts.reference_part, text, seed))


def _values(text: TextRun, board: Board) -> None:
    for seed in text.recipe.seeds if text.offline else ():
        if not _has_caches(text, seed):
            _timed(text, board, seed, parts.VALUE, partial(parts.value_part, text, seed))


def _has_caches(text: TextRun, seed: int) -> bool:
    """Whether every reference cache that the arms need is there; an arm that reads it refuses a stale one."""
    folders = [parts.cache_folder(text, seed, arm) for arm in text.offline]
    for folder in folders:
        recover(folder)
    return all((folder / REFERENCE_CACHE).is_file() for folder in folders)


def _arms(text: TextRun, board: Board) -> None:
    for seed in text.recipe.seeds:
        for arm in text.learned:
            if not text.run.trained(seed, parts.last(arm)):
                _timed(text, board, seed, arm, partial(parts.arm_part, text, seed, arm))


def _evaluation(text: TextRun, board: Board) -> None:
    for seed in text.recipe.seeds:
        for arm in text.recipe.arms:
            write_part(text, seed, arm, partial(board.tick, f"eval {arm} (seed {seed})"))
    write_results(text)


def _timed(text: TextRun, board: Board, seed: int, part: str, make: Callable[[Tick], None]) -> None:
    """Make a part; its randomness depends on its name only."""
    torch.manual_seed(named_seed(seed, "text", part))
    start = time.perf_counter()
    make(partial(board.tick, f"{part} (seed {seed})"))
    seconds = round(time.perf_counter() - start, 2)
    note_timings(text.run, [{"stage": "text", "part": part, "seed": seed, "seconds": seconds}])
