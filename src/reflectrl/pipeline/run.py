"""Running a recipe: plan the parts that are missing, make them (side by side if asked), collect, report."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import platform
import queue
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console

from reflectrl.config import Recipe, load_recipe, to_toml
from reflectrl.envs import make
from reflectrl.episodes import read_episodes
from reflectrl.evaluate import rows_of, summarise
from reflectrl.learn.checkpoint import write_text
from reflectrl.pipeline import parts, show
from reflectrl.pipeline.arms import chosen
from reflectrl.pipeline.layout import RunFolder
from reflectrl.pipeline.progress import Board
from reflectrl.plugins import suggestion
from reflectrl.report import write_report
from reflectrl.types import UserError

FREE = ("name", "seeds", "arms", "threads", "processes", "eval")
"""Settings that may change between two calls on one run folder, since nothing already trained depends on them."""


@dataclass(frozen=True)
class Unit:
    """A part to be made: `stage` says by which function, `seed` and `name` which one."""

    stage: str
    seed: int
    name: str

    def __str__(self) -> str:
        return f"{self.stage} {self.name} (seed {self.seed})"


def run(recipe: Recipe, folder: Path, until: str) -> None:
    """Make what is missing, stage by stage, through `until`."""
    console = Console(emoji=False)
    arms = chosen(recipe.arms)
    _check_env(recipe)
    _claim(recipe, folder)
    place = RunFolder(folder)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    with Board(console) as board:
        for stage in ("teach", "base", "sft", "rl", "eval"):
            units = [unit for unit in _plan(recipe, place, stage) if not _complete(recipe, place, unit)]
            _make_all(recipe, folder, units, board)
            _collect_metrics(recipe, place)
            _mark(folder, stage)
            if stage == until:
                return
    write_results(recipe, place)
    page = write_report(folder)
    _mark(folder, "report")
    show.results(console, folder, arms)
    show.one_episode(console, place, recipe)
    console.print(f"\nreport: {page}", highlight=False, soft_wrap=True)


# ---- the plan ------------------------------------------------------------------------------------------------------


def _plan(recipe: Recipe, run: RunFolder, stage: str) -> list[Unit]:
    """Every unit of a stage, in a fixed order."""
    arms = chosen(recipe.arms)
    trained = {name: arm for name, arm in arms.items() if arm.player == "policy"}
    names: dict[str, list[str]] = {
        "teach": ["train", "validation"] if trained else [],
        "base": ["model"] if trained else [],
        "sft": list(dict.fromkeys(part for arm in trained.values() for part in arm.sft_parts)),
        "rl": [name for name, arm in trained.items() if arm.rl],
        "eval": list(arms),
    }
    return [Unit(stage, seed, name) for seed in recipe.seeds for name in names[stage]]


def _complete(recipe: Recipe, run: RunFolder, unit: Unit) -> bool:
    """Whether a unit needs no further work. Logs (teach, eval) are looked into by the unit itself."""
    if unit.stage == "sft":
        return run.trained(unit.seed, unit.name)
    return unit.stage == "rl" and run.trained(unit.seed, f"rl-{unit.name}")


def make_unit(recipe: Recipe, folder: Path, unit: Unit, tick: parts.Tick) -> list[dict[str, Any]]:
    """Make one part in this process; returns timings for the log."""
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    run, start = RunFolder(folder), time.perf_counter()
    if unit.stage == "eval":
        return parts.eval_part(recipe, run, unit.seed, unit.name, tick)
    if unit.stage == "base":
        parts.base_part(recipe, run, unit.seed)
    else:
        making = {"teach": parts.teach_part, "sft": parts.sft_part, "rl": parts.rl_part}
        making[unit.stage](recipe, run, unit.seed, unit.name, tick)
    seconds = round(time.perf_counter() - start, 2)
    return [{"stage": unit.stage, "part": unit.name, "seed": unit.seed, "seconds": seconds}]


def _make_all(recipe: Recipe, folder: Path, units: list[Unit], board: Board) -> None:
    """Make units one after another, or in several processes; what is finished when one fails is kept."""
    if recipe.processes == 1 or len(units) < 2:
        for unit in units:
            _note_timings(folder, make_unit(recipe, folder, unit, _ticker(board, unit)))
        return
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        ticks = manager.Queue()
        pool = ProcessPoolExecutor(min(recipe.processes, len(units)), context, _quiet_child)
        try:
            futures = {pool.submit(_in_child, recipe, folder, unit, ticks) for unit in units}
            while futures:
                done, futures = wait(futures, timeout=0.5, return_when=FIRST_COMPLETED)
                _drain(ticks, board)
                for future in done:
                    _note_timings(folder, future.result())
        except BaseException:
            for child in list((pool._processes or {}).values()):
                child.terminate()  # a part is made from files to files, so nothing finished is lost
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        pool.shutdown()


def _in_child(recipe: Recipe, folder: Path, unit: Unit, ticks: Any) -> list[dict[str, Any]]:
    said = 0.0

    def tick(done: int, total: int, note: str) -> None:
        nonlocal said
        if done == total or time.monotonic() - said > 0.5:
            ticks.put((str(unit), done, total, note))
            said = time.monotonic()

    return make_unit(recipe, folder, unit, tick)


def _quiet_child() -> None:
    """Children leave Ctrl-C to the parent, and say nothing themselves."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def _drain(ticks: Any, board: Board) -> None:
    while True:
        try:
            board.tick(*ticks.get_nowait())
        except queue.Empty:
            return


def _ticker(board: Board, unit: Unit) -> parts.Tick:
    return lambda done, total, note: board.tick(str(unit), done, total, note)


# ---- what the run folder says about itself ---------------------------------------------------------------------------


def _check_env(recipe: Recipe) -> None:
    """Refuse splits and stages that the environment does not have before anything is made."""
    env = make(recipe.env)
    for stage in recipe.eval.stages:
        if stage not in env.stages:
            raise UserError(f"eval.stages: unknown stage {stage!r}{suggestion(stage, env.stages)}")
    for split in recipe.eval.splits:
        env.tasks(split)


def _claim(recipe: Recipe, folder: Path) -> None:
    """Write the recipe into the run folder, or check that the one in it asks for the same training."""
    path = folder / "recipe.toml"
    if path.is_file():
        before, now = (dataclasses.asdict(one) for one in (load_recipe(path), recipe))
        for key in before.keys() - FREE:
            if json.dumps(before[key], sort_keys=True) != json.dumps(now[key], sort_keys=True):
                detail = _first_difference(key, before[key], now[key])
                raise UserError(f"{folder} holds a run with {detail}; use another --folder, or remove this one")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, to_toml(recipe))


def _first_difference(key: str, before: Any, now: Any) -> str:
    if isinstance(before, Mapping):
        for name in {**before, **now}:
            if before.get(name) != now.get(name):
                return _first_difference(f"{key}.{name}", before.get(name), now.get(name))
    return f"{key} = {before!r}, not {now!r}"


def _mark(folder: Path, stage: str) -> None:
    path = folder / "state.json"
    state = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"complete": []}
    state["complete"] = [*dict.fromkeys([*state["complete"], stage])]
    write_text(path, json.dumps(state))


def _note_timings(folder: Path, timings: list[dict[str, Any]]) -> None:
    """Wall-clock times are kept apart from the results, which are the same for two runs of one recipe."""
    if timings:
        with (folder / "timings.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(timing) + "\n" for timing in timings)


def _collect_metrics(recipe: Recipe, run: RunFolder) -> None:
    """All parts' metrics in one file, in a fixed order."""
    files = sorted((run.path / "metrics").glob("*.jsonl")) if (run.path / "metrics").is_dir() else []
    write_text(run.path / "metrics.jsonl", "".join(file.read_text(encoding="utf-8") for file in files))


def write_results(recipe: Recipe, run: RunFolder) -> None:
    """`results.json` from the evaluation episodes."""
    env = make(recipe.env)
    rows: list[dict[str, Any]] = []
    for name in recipe.arms:
        for seed in recipe.seeds:
            for path, tasks in _judged(recipe, run, env, name, seed):
                ordered = {episode.task.id: episode for episode in read_episodes(path)}
                rows += rows_of([ordered[task.id] for task in tasks], env, recipe.eval.confidence)
    results = {
        "recipe": recipe.name,
        "commit": _commit(),
        "hardware": _hardware(),
        "env": {**recipe.env, "horizon": env.horizon},
        "confidence": recipe.eval.confidence,
        "rows": rows,
        "summary": summarise(rows, recipe.eval.confidence),
    }
    write_text(run.path / "results.json", json.dumps(results, indent=1) + "\n")
    _note_timings(run.path, [{"finished": datetime.now(UTC).isoformat(timespec="seconds")}])


def _judged(recipe: Recipe, run: RunFolder, env: Any, name: str, seed: int) -> Iterator[tuple[Path, list[Any]]]:
    for split in recipe.eval.splits:
        for stage in recipe.eval.stages or (env.stages[-1],):
            tasks = parts.eval_tasks(recipe, env, split, stage)
            for sampling in recipe.eval.sampling:
                yield run.evaluation(name, seed, split, stage, sampling), tasks


def _commit() -> str:
    """The checkout's commit, "+" for uncommitted changes; the package's version where there is no checkout."""
    from reflectrl import __version__

    def git(*words: str) -> str:
        here = Path(__file__).resolve().parent
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return f"version {__version__}"


def _hardware() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
