"""Calibration of a run's arms: which decisions count, who judges them, and what is fitted to them.

Results judge the decisions of evaluation itself: the states that an arm reached in held-out tasks. If the environment's
teacher is an expert, it is asked again in each of these states, and a choice is right if it is one of the teacher's
best actions (`Teacher.preferences`, or the expert's action alone). Otherwise all choices of an episode count as right
if the episode was won.

A calibration (`core.calibration.Calibration`) is fitted to other decisions, which the arm makes in validation tasks. It
changes the probabilities that are reported and served, and no choice.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from reflectrl.core.calibration import UNCHANGED, Calibration, Decision, calibration_row, fit
from reflectrl.core.config import Recipe
from reflectrl.core.envs import make
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.envs.teacher import ask, ask_preferences
from reflectrl.core.evaluation import Row
from reflectrl.core.json_lines import read_json
from reflectrl.core.players import Player
from reflectrl.core.plugins import one_line
from reflectrl.core.rollout import Job, advance, rollout
from reflectrl.core.types import Episode, UserError, named_seed
from reflectrl.learn.checkpoint import write_text
from reflectrl.learn.validation import evenly
from reflectrl.runs.folder import RunFolder

LOG = logging.getLogger(__name__)
MOST_DECISIONS = 5000
"""Largest number of decisions that are judged per log, and that a calibration is fitted to."""
TASKS_AT_ONCE, ENOUGH_DECISIONS = 100, 1000
"""To fit a calibration, TASKS_AT_ONCE validation tasks at a time are played, until there are ENOUGH_DECISIONS."""


def row_of_decisions(episodes: Iterable[Episode], env: TextEnv) -> Row:
    """Return the calibration of the decisions in some episodes as keys of their row.

    It is empty without probabilities, and where the teacher does not know the tasks, since a teacher is not needed
    for the other results.

    Raises:
        UserError: the environment raised.
    """
    decisions, judge = list[Decision](), "teacher" if "expert" in env.teacher.abilities() else "outcome"
    for episode in episodes:
        if len(decisions) >= MOST_DECISIONS:
            break
        rights: Sequence[tuple[int, ...] | None] = [None] * len(episode.steps)
        if judge == "teacher":
            try:
                rights = list(best_actions(env, episode))
            except CannotJudgeError as error:
                LOG.warning("reflectrl: %s tasks have no figures of calibration: %s", episode.task.split, error)
                return {}
        for step, right in zip(episode.steps, rights, strict=True):
            turn = step.choice
            if turn is not None and len(turn.probs) > 1:
                correct = episode.success if right is None else turn.choice in right
                decisions.append(Decision(turn.probs[turn.choice], correct))
    return calibration_row(decisions, judge)


class CannotJudgeError(UserError):
    """Error for a teacher that cannot say which actions are right in a task."""


def best_actions(env: TextEnv, episode: Episode) -> Iterator[tuple[int, ...]]:
    """Play an episode again, and yield the teacher's best actions in each of its states.

    Raises:
        CannotJudgeError: the teacher does not know the task.
        UserError: the environment raised, or lists different actions from those in the episode.
    """
    task = episode.task
    if not env.teacher.teaches(task.split):
        raise CannotJudgeError(f"the teacher of {type(env).__name__} does not know them")
    now = advance(env, task, None, named_seed(episode.seed, "env") % 2**32)
    for index, step in enumerate(episode.steps):
        if now.observation.actions != step.observation.actions:
            raise UserError(f"task {task.id!r} cannot be replayed: step {index + 1} now lists different actions")
        count = len(step.observation.actions)
        try:
            expert = ask(env, task, "expert_action", count)
            preferences = ask_preferences(env, task, count)
        except (UserError, NotImplementedError) as error:
            raise CannotJudgeError(one_line(error) if isinstance(error, NotImplementedError) else str(error)) from error
        yield replace(step, target=expert, preferences=preferences).best
        now = advance(env, task, step.action)


# ---- fitting -------------------------------------------------------------------------------------------------


def calibration_file(run: RunFolder, arm: str, seed: int) -> Path:
    """Return the file that holds an arm's calibration."""
    return run.path / "calibration" / f"{arm}-seed{seed}.json"


def fit_arm(
    recipe: Recipe,
    run: RunFolder,
    arm: str,
    seed: int,
    players: tuple[Player, Player | None],
    make_env: Callable[[], TextEnv],
) -> Calibration:
    """Fit an arm's calibration, save it, and return it. Without an expert, it is the calibration that changes nothing.

    The arm plays validation tasks greedily, and the teacher judges its choices in the states that it reaches. States
    from the teacher's own play would not do: a policy is less sure, and wrong more often, where its own errors led it.

    Args:
        players: the arm's greedy players.
    """
    env = make(recipe.env)
    if "expert" not in env.teacher.abilities() or not env.teacher.teaches("validation"):
        return Calibration()
    left = list(env.tasks("validation"))
    probabilities, best = list[tuple[float, ...]](), list[tuple[int, ...]]()
    while left and len(best) < ENOUGH_DECISIONS:
        tasks = evenly(left, TASKS_AT_ONCE)
        left = [task for task in left if task not in tasks]
        jobs = [Job(task, named_seed(seed, "calibration", task.id), {}) for task in tasks]
        played = rollout(jobs, make_env, *players, min(recipe.eval.batch, len(jobs)))
        for episode in sorted(played, key=lambda episode: episode.task.id):
            try:
                rights = list(best_actions(env, episode))
            except CannotJudgeError as error:
                LOG.warning("reflectrl: the probabilities of %r are not fitted: %s", arm, error)
                return Calibration()
            for step, right in zip(episode.steps, rights, strict=True):
                if step.choice is not None and step.choice.probs:
                    probabilities.append(step.choice.probs)
                    best.append(right)
    del probabilities[MOST_DECISIONS:], best[MOST_DECISIONS:]
    calibration = fit(probabilities, best)
    file = calibration_file(run, arm, seed)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps({**asdict(calibration), "decisions": len(best)}, indent=1) + "\n")
    return calibration


def calibration_of(recipe: Recipe, run: RunFolder, arm: str, seed: int) -> Calibration:
    """Return an arm's calibration. It changes nothing unless the recipe asks for a fit and the fit exists.

    Raises:
        UserError: its file is damaged.
    """
    path = calibration_file(run, arm, seed)
    if recipe.eval.temperature != "fitted" or not path.is_file():
        return Calibration()
    try:
        stored = read_json(path)
        a, b, c = map(float, stored.get("beta", UNCHANGED))  # older files hold the temperature alone
        return Calibration(float(stored["temperature"]), (a, b, c))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} cannot be read; remove it, and the next evaluation fits it again") from error
