"""Check of learning: `init`'s recipe trains a small model for a hundred updates, or as long as the budget allows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reflectrl.core.json_lines import read_json
from reflectrl.tools.certify.headroom import percent
from reflectrl.tools.certify.verdict import Finding

UPDATES = 100
TASKS = 100
"""Number of test tasks that are played."""
ARM = "rl-only"
SETTINGS: dict[str, Any] = {
    "arms": ["random", ARM],
    "rl": {"updates": UPDATES, "eval_every": 10, "own_wins": 60},
    "eval": {"splits": ["test"], "episodes": TASKS, "calibration": False},
}
PROGRAM = "import sys; from reflectrl.tools.certify.learnable import main; main(*sys.argv[1:])"


def check_learning(section: dict[str, Any], minutes: float, changes: Mapping[str, Any] | None = None) -> Finding:
    """Train by reward alone, and compare success on test tasks with chance.

    Args:
        section: `env` section of JSON values.
        minutes: time limit of the training.
        changes: settings of the recipe to change, by section.
    """
    settings = dict(SETTINGS)
    for name, change in {"rl": {"minutes": minutes}, "env": section, **(changes or {})}.items():
        settings[name] = settings.get(name, {}) | change
    with tempfile.TemporaryDirectory(prefix="reflectrl-certify-") as folder:
        command = [sys.executable, "-P", "-c", PROGRAM, json.dumps(settings), folder]
        surroundings = os.environ | {"TERM": "dumb"}
        completed = subprocess.run(command, capture_output=True, text=True, env=surroundings, check=False)
        path = Path(folder) / "run" / "results.json"
        if completed.returncode or not path.is_file():
            last = (completed.stderr.strip().splitlines() or ["no message"])[-1]
            return Finding("learnable", "unknown", f"the training ended early: {last:.300}")
        rows = {row["arm"]: row for row in read_json(path)["summary"] if _is_whole(row)}
        coach_lines = [line.partition(": ")[2] for line in completed.stdout.splitlines() if line.startswith("coach: ")]
    learned, chance = _success(rows[ARM]), _success(rows["random"])
    figures = {"learned": learned, "random": chance, "minutes": minutes, "updates": UPDATES, "coach": coach_lines}
    figures |= {"learned_return": rows[ARM].get("mean_return"), "random_return": rows["random"].get("mean_return")}
    words = f"{percent(learned)} of the test tasks, by chance {percent(chance)}"
    if learned[1] > chance[2]:
        return Finding("learnable", "ok", f"yes: {words}", figures)
    return Finding("learnable", "note", f"not within {UPDATES} updates and {minutes:g} minutes: {words}", figures)


def _success(row: dict[str, Any]) -> list[float]:
    """Return the success rate of a row of results, and the ends of its interval."""
    return [row["success"], row["low"], row["high"]]


def _is_whole(row: dict[str, Any]) -> bool:
    """Return whether a row of results is about whole test tasks, played greedily."""
    return row["split"] == "test" and row["sampling"] == "greedy"


def main(settings: str, folder: str) -> None:
    """Train in a folder, in this process, and print what the coach says. No report is written."""
    from reflectrl.core.config import read_recipe
    from reflectrl.runs.coaching import coach_lines
    from reflectrl.runs.folder import RunFolder
    from reflectrl.runs.runner import run_recipe
    from reflectrl.tools.workbench.init import raw

    path = Path(folder) / "recipe.toml"
    path.write_text(raw("recipe.toml.txt"), encoding="utf-8")
    recipe, run = read_recipe(path, json.loads(settings)), RunFolder(Path(folder) / "run")
    run_recipe(recipe, run.path, "eval")
    for line in coach_lines(recipe, run):
        print(line)
