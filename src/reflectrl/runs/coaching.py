"""The coach at the end of a run: what its trainings by reward say, from the metrics in the run folder."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from reflectrl.core.config import Recipe
from reflectrl.core.envs import make
from reflectrl.core.terminal import printable_line
from reflectrl.learn.online import after_imitation
from reflectrl.learn.signal import luck_decides
from reflectrl.runs.arms import Arm, base, select_arms
from reflectrl.runs.coach import Course, advice, course_of
from reflectrl.runs.folder import RunFolder
from reflectrl.runs.projects import project_recipe


def courses(recipe: Recipe, run: RunFolder) -> Iterator[tuple[str, Course]]:
    """Yield each arm that learned by reward, with the course of its training that ended lowest."""
    lines = metrics_by_training(run)
    for name, arm in select_arms(recipe.arms, recipe).items():
        if arm.rl is None:
            continue
        trained = [course_of(lines[name, seed], warmup_of(recipe, run, arm, seed)) for seed in recipe.seeds]
        known = [course for course in trained if course is not None]
        if known:
            yield name, min(known, key=lambda course: course.best)


def metrics_by_training(run: RunFolder) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Return the lines of metrics of the trainings by reward, by arm and seed."""
    lines: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    path = run.path / "metrics.jsonl"
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        line = json.loads(text)
        if line.get("kind") == "rl" and line.get("arm"):
            lines[line["arm"], line["seed"]].append(line)
    return lines


def warmup_of(recipe: Recipe, run: RunFolder, arm: Arm, seed: int) -> int:
    """Return the number of updates after which an arm's policy begins to learn."""
    config = replace(recipe.rl, **(arm.rl or {}))
    if config.baseline != "critic":
        return 0
    own = run.path / "episodes" / f"wins-seed{seed}-train.jsonl"
    imitated = own.is_file() and own.stat().st_size > 0 if arm.policy is base else arm.policy is not None
    guarded = imitated and config.hold > 0
    return after_imitation(config).critic_warmup if guarded else config.critic_warmup


def coach_lines(recipe: Recipe, run: RunFolder) -> Iterator[str]:
    """Yield the coach's lines at the end of a run: three for each arm that ended low, one where RL changed nothing."""
    typed = recipe.env.get("name", "").partition(":")[0]
    name = typed if project_recipe(typed) else recipe.env.get("name", "ENV")
    luck: bool | None = None
    for arm, course in courses(recipe, run):
        if course.is_from_before and select_arms([arm], recipe)[arm].policy is not base:
            yield (
                f"coach: {arm}: no later weights did better on validation tasks than those from before RL, so its row "
                "is that of the policy before RL"
            )
        if luck is None:
            make_env = partial(make, recipe.env)
            luck = luck_decides(make_env, make_env().tasks("train"))
        if said := advice(course, name, luck):
            for title, words in zip(("seen", "likely", "next"), said, strict=True):
                yield f"coach: {arm}: {title}: {printable_line(words)}"
