"""Recorded demonstrations as teaching episodes, and reflections that name the tried actions that won."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path

from reflectrl.core.advice import option
from reflectrl.core.config import Recipe
from reflectrl.core.envs import make
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.episodes import EpisodeLog, drop_half_line, read_episodes, task_key
from reflectrl.core.teach import Demonstration, demonstrations
from reflectrl.core.teach.outcomes import Tried, outcome_text, with_outcomes
from reflectrl.core.teach.recorded import has_reflections, labelled, recorded, require_lessons
from reflectrl.core.types import Episode, UserError, named_seed
from reflectrl.learn.validation import evenly
from reflectrl.models.players import Policy
from reflectrl.runs.arms import select_arms
from reflectrl.runs.folder import RunFolder
from reflectrl.runs.progress import ProgressCallback

SAMPLES = 500
"""Number of made-up reflections for training a scratch tokenizer, before real ones exist."""


def finished_lines(path: Path) -> int:
    """Count the complete lines of a log, after cutting off a half-written last line that a kill has left."""
    drop_half_line(path)
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        return sum(1 for _ in file)


def demonstrated(recipe: Recipe, env: TextEnv, seed: int, check: bool = False) -> dict[str, list[Episode]]:
    """Return the recorded teaching episodes of a run, by split.

    Args:
        check: replay them in the environment.

    Raises:
        UserError: a log is missing, empty or damaged, or an episode does not fit the environment.
    """
    config, paths = recipe.teach, [Path(name) for name in recipe.teach.log]
    parts = recorded(env, paths, seed, config.validation, check)
    if config.tasks:
        keys = list(dict.fromkeys(task_key(episode.task) for episode in parts["train"]))[: config.tasks]
        parts["train"] = [episode for episode in parts["train"] if task_key(episode.task) in keys]
    return parts


def planned_demonstrations(recipe: Recipe, env: TextEnv, seed: int, split: str) -> Sequence[Demonstration | Episode]:
    """Return the teaching episodes of a split, in order: the teacher's plans, or the recorded episodes themselves."""
    if recipe.teach.by == "log":
        return demonstrated(recipe, env, seed)[split]
    tasks = env.tasks(split)
    most = recipe.teach.tasks if split == "train" else recipe.teach.validation_tasks
    return demonstrations(evenly(tasks, most or len(tasks)), recipe.teach, seed, env)


def best_taught(recipe: Recipe) -> str:
    """Return the arm that makes the most of a recipe's demonstrations.

    It is the full method if reflections come from outcomes, or if all won episodes have reflections. Only the log is
    read, so that no environment's code runs.

    Raises:
        UserError: a log is missing or damaged.
    """
    reflected = list[bool]()  # for each won episode
    for name in recipe.teach.log:
        for episode in map(labelled, read_episodes(Path(name))):
            if episode.success:
                reflected.append(any(step.label and step.reflection is not None for step in episode.steps))
    if recipe.teach.reflections == "outcomes" or (reflected and all(reflected)):
        return "reflect-rl"
    return "no-reflection"


def check_log(recipe: Recipe, run: RunFolder) -> None:
    """Refuse demonstrations that do not fit the environment, or lack something that an arm needs.

    If the run has already made its teaching episodes, they were checked at that time and are not replayed: the
    fingerprint shows that the file is still the same.

    Raises:
        UserError: names the file and the line, or the arms.
    """
    arms = {name: arm for name, arm in select_arms(recipe.arms, recipe).items() if arm.is_taught}
    if recipe.teach.by != "log" or not arms:
        return
    env, paths = make(recipe.env), [Path(name) for name in recipe.teach.log]
    for seed in recipe.seeds:
        begun = all(run.teach(seed, split).is_file() for split in ("train", "validation"))
        parts = demonstrated(recipe, env, seed, check=recipe.teach.check_log and not begun)
        require_lessons(parts, paths, env.success_rule)
        reading = [name for name, arm in arms.items() if arm.reflector]
        if reading and recipe.teach.reflections == "given" and not has_reflections(parts):
            names = f"arm{'s' * (len(reading) > 1)} {', '.join(map(repr, reading))}"
            raise UserError(
                f"{names} would need reflections for both training and validation, and {', '.join(recipe.teach.log)} "
                "lacks some: type some (/reflect in `reflectrl play ENV --record FILE`), derive them from outcomes "
                f"({option('teach.reflections', 'outcomes')}), or choose arms without a reflector: "
                f"{option('arms', ['no-reflection'])}"
            )


# ---- reflections from outcomes ---------------------------------------------------------------------------------------


def write_outcomes(
    recipe: Recipe, episodes: Path, policy: Policy, out: Path, seed: int, progress: ProgressCallback
) -> None:
    """Try actions in the steps of a log, and write its episodes with reflections that name the winning actions.

    After each tried action, the policy plays to the end. An unfinished log is continued.
    """
    taught = list(read_episodes(episodes))
    done, count, most = finished_lines(out), recipe.teach.outcome_episodes, recipe.teach.outcome_actions
    with ExitStack() as stack:
        envs = [stack.enter_context(closing(make(recipe.env))) for _ in range(recipe.eval.batch)]
        log = stack.enter_context(EpisodeLog(out))
        for i, episode in islice(enumerate(taught), done, None):
            policy.clear_cache()  # so that a continued log computes in the same batches as an uninterrupted one
            log.append(with_outcomes(episode, envs, policy, count, most, named_seed(seed, "outcomes", i)))
            progress(i + 1, len(taught), "")


def sample_outcomes(recipe: Recipe, path: Path) -> list[str]:
    """Return reflections in the form of `write_outcomes`, with made-up numbers: text for a scratch tokenizer."""

    def sampled() -> Iterator[str]:
        count, most = recipe.teach.outcome_episodes, recipe.teach.outcome_actions
        for index, step in enumerate(step for episode in read_episodes(path) for step in episode.steps):
            listed = step.observation.actions
            start = index % len(listed)
            options = sorted({(start + k) % len(listed) for k in range(most or len(listed))})
            tried = [Tried(action, (index + action) % (count + 1), count, 0.0) for action in options]
            yield outcome_text(listed, tried, options[0])

    return list(islice(sampled(), SAMPLES))
