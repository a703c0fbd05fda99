"""`results.json`: every arm's rows and their summary, from the evaluation episodes.

It holds no times, so that two runs of one recipe write the same bytes; those are in `timings.jsonl`.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from reflectrl.config import Recipe
from reflectrl.envs import make
from reflectrl.envs.base import TextEnv
from reflectrl.episodes import read_episodes
from reflectrl.evaluation import Row, rows_of, summarise
from reflectrl.learn.checkpoint import write_text
from reflectrl.pipeline.judging import evaluations
from reflectrl.pipeline.layout import RunFolder
from reflectrl.pipeline.workers import note_timings

ORIGIN = ("commit", "hardware")
"""What says where results were made; results that come out the same again keep theirs."""


def write_results(recipe: Recipe, run: RunFolder) -> None:
    """Write `results.json`, unless what is there already says the same."""
    env = make(recipe.env)
    rows = list(_rows(recipe, run, env))
    found = {
        "recipe": recipe.name,
        "commit": commit(),
        "hardware": hardware(),
        "env": {**recipe.env, "horizon": env.horizon},
        "confidence": recipe.eval.confidence,
        "rows": rows,
        "summary": summarise(rows, recipe.eval.confidence),
    }
    path = run.path / "results.json"
    if _essence(_read(path)) != _essence(json.loads(json.dumps(found))):
        write_text(path, json.dumps(found, indent=1) + "\n")
        note_timings(run, [{"finished": datetime.now(UTC).isoformat(timespec="seconds")}])


def _rows(recipe: Recipe, run: RunFolder, env: TextEnv) -> Iterator[Row]:
    """Rows of every arm and seed; a milestone gives one only where its stage is not played itself."""
    for name in recipe.arms:
        for seed in recipe.seeds:
            for part in evaluations(recipe, run, env, seed, name):
                played = {episode.task.id: episode for episode in read_episodes(part.path)}
                episodes = [played[task.id] for task in part.tasks]
                for row in rows_of(episodes, env, recipe.eval.confidence):
                    if row["stage"] == part.stage or row["stage"] not in recipe.eval.stages:
                        yield row


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _essence(results: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in results.items() if key not in ORIGIN}


def commit() -> str:
    """The checkout's commit, "+" for uncommitted changes; the package's version where there is no checkout."""
    from reflectrl import __version__

    def git(*words: str) -> str:
        here = Path(__file__).resolve().parent
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return f"version {__version__}"


def hardware() -> str:
    """The processor or GPU, and torch's version."""
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
