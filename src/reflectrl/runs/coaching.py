"""The coach at the end of a run: its comments on each training by reward, from the metrics in the run folder."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from statistics import fmean
from typing import Any

from reflectrl.core.config import Recipe
from reflectrl.core.envs import make
from reflectrl.core.episodes import read_episodes
from reflectrl.core.json_lines import parse_json, read_json_lines
from reflectrl.core.terminal import printable_line
from reflectrl.learn.online import after_imitation
from reflectrl.learn.reward_check import luck_decides
from reflectrl.runs.arms import Arm, base, imitation_of_wins, select_arms
from reflectrl.runs.coach import Course, OwnWins, advice, course_of
from reflectrl.runs.folder import RunFolder
from reflectrl.runs.projects import project_recipe

Lines = Mapping[tuple[str, str, int], Sequence[Mapping[str, Any]]]
"""Lines of metrics of each training, as `metrics_by_training` returns them."""


def courses(recipe: Recipe, run: RunFolder, metrics: Lines) -> Iterator[tuple[str, int, Course]]:
    """Yield each arm that learned by reward, with the seed and course of the training that ended lowest."""
    for name, arm in select_arms(recipe.arms, recipe).items():
        if arm.rl is None:
            continue
        trained = {
            seed: course_of(metrics["rl", name, seed], warmup_of(recipe, run, arm, seed)) for seed in recipe.seeds
        }
        pairs = [(seed, course) for seed, course in trained.items() if course is not None]
        if pairs:
            yield name, *min(pairs, key=lambda pair: pair[1].best)


def metrics_by_training(run: RunFolder) -> Lines:
    """Return the lines of metrics of each training, by (kind, arm or else artifact, seed).

    A training without lines has an empty list.
    """
    lines: dict[tuple[str, str, int], list[dict[str, Any]]] = defaultdict(list)
    path = run.path / "metrics.jsonl"
    for _, line in read_json_lines(path, parse_json) if path.is_file() else ():
        lines[line.get("kind", ""), line.get("arm") or line.get("artifact", ""), line.get("seed", 0)].append(line)
    return lines


def own_wins_of(
    recipe: Recipe, run: RunFolder, losses: Sequence[Mapping[str, Any]], seed: int, tasks: int
) -> OwnWins | None:
    """Return what a run's search for wins found, and how its imitation went; None if nothing was searched.

    Args:
        losses: lines of metrics of the imitation.
        tasks: number of training tasks of the environment.
    """
    paths = [run.path / "episodes" / f"wins-seed{seed}-{split}.jsonl" for split in ("train", "validation")]
    if not all(path.is_file() for path in paths):
        return None
    by_split = [list(read_episodes(path)) for path in paths]
    wins = {episode.task.id for episodes in by_split for episode in episodes}  # a single win stands in both files
    steps = chain.from_iterable(episode.steps for episode in by_split[0])
    counts = [len(step.observation.actions) for step in steps if step.label is not None]
    return OwnWins(
        wins=len(wins),
        searched=min(recipe.rl.own_wins, tasks),
        steps=recipe.rl.own_wins_steps,
        tasks=tasks,
        scoring=recipe.play.scoring,
        chance=fmean(math.log(count) for count in counts) if counts else 0.0,
        losses=tuple((line["loss"], line["eval_loss"]) for line in losses),
    )


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
    metrics = metrics_by_training(run)
    trained = list(courses(recipe, run, metrics))
    if not trained:
        return
    make_env = partial(make, recipe.env)
    tasks = make_env().tasks("train")
    luck = luck_decides(make_env, tasks)
    for arm, seed, course in trained:
        definition = select_arms([arm], recipe)[arm]
        if course.is_from_before and definition.policy is not base:
            yield (
                f"coach: {arm}: no later weights did better on validation tasks than those from before RL, so its row "
                "is that of the policy before RL"
            )
        own, imitation = None, imitation_of_wins(recipe, definition)
        if imitation and not luck:  # with luck there was no search, and the files of wins are empty
            own = own_wins_of(recipe, run, metrics["sft", imitation, seed], seed, len(tasks))
        if sentences := advice(replace(course, own_wins=own), name, luck):
            for title, words in zip(("seen", "likely", "next"), sentences, strict=True):
                yield f"coach: {arm}: {title}: {printable_line(words)}"
