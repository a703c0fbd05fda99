"""Recorded demonstrations: episodes of a log, replayed in an environment and turned into teaching episodes of a run.

The labels from recording tell which steps are imitated. If an episode has no labels (because it comes from another
program, or from a player), success decides: all steps of a won episode are imitated, and no step of a lost episode. A
step of a lost episode would be a negative example if the right action were known. It is not, so nothing learns from the
step, unless `teach.outcomes` finds the right action by trying.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from reflectrl.core.envs.base import SPLITS, TextEnv
from reflectrl.core.episodes import ForeignEpisode, ForeignStep, as_foreign, read_episodes, task_key, to_line
from reflectrl.core.rollout import TimeStep, advance
from reflectrl.core.teach.record import Recording
from reflectrl.core.types import Choice, Episode, Observation, Task, UserError, named_seed

LOG = logging.getLogger(__name__)

# ---- replay ----------------------------------------------------------------------------------------------------------


def tasks_of(env: TextEnv) -> dict[str, Task]:
    """Return all tasks of an environment, both by the key of the instance (`task_key`) and by id.

    If two tasks have the same id, the task of the later stage is used.
    """
    tasks = [task for stage in env.stages for split in SPLITS for task in env.tasks(split, stage)]
    return {key: task for task in tasks for key in (task.id, task_key(task))}


def replayed(env: TextEnv, episode: ForeignEpisode, tasks: Mapping[str, Task]) -> Episode:
    """Replay an episode's actions in the environment.

    Args:
        tasks: result of `tasks_of`.

    Returns:
        An episode with task, observations, rewards and outcome from the environment. Turns, labels and provenance come
        from the given episode.

    Raises:
        ValueError: the environment has no such task, or its observations or rewards differ from the given ones. The
            message says so in a few words.
        UserError: the environment raised.
    """
    task = _task(env, episode.task, tasks)
    seed = named_seed("record", task.id) if episode.seed is None else episode.seed
    original = episode.whole
    recording = Recording(task, seed)
    chance = original.provenance.get("env_seed") if original else None
    now = advance(env, task, None, chance if isinstance(chance, int) else named_seed(seed, "env") % 2**32)
    for i, step in enumerate(episode.steps, start=1):
        if now.done:
            raise ValueError(f"step {i}: the episode is over after step {i - 1}")
        try:
            seen, now = now.observation, _taken(env, task, now.observation, step)
        except ValueError as error:
            raise ValueError(f"step {i}: {error}") from error
        _write(recording, seen, step, now, episode.player)
    _require_same_end(env, episode, now)
    finished = recording.finished(now.success, now.truncated)
    if original is None:
        return replace(finished, provenance={**finished.provenance, "player": episode.player})
    labelled = zip(finished.steps, original.steps, strict=True)
    steps = tuple(
        replace(step, target=original_step.target, label=original_step.label) for step, original_step in labelled
    )
    return replace(finished, steps=steps, truncated=original.truncated, provenance=original.provenance)


def unreplayed(episode: ForeignEpisode) -> Episode:
    """Convert an episode without checking it in an environment.

    Raises:
        ValueError: something is missing that only an environment could add.
    """
    if episode.whole is not None:
        return episode.whole
    if isinstance(episode.task, str) or not episode.task.env:
        raise ValueError(
            '\'task\' names no environment; write {"id": ..., "env": ...}, or name one: '
            "`reflectrl import-episodes FILE --env ENV`"
        )
    seed = named_seed("record", episode.task.id) if episode.seed is None else episode.seed
    recording = Recording(episode.task, seed, player=episode.player)
    for i, step in enumerate(episode.steps, start=1):
        missing = [name for name in ("observation", "actions") if getattr(step, name) is None]
        if missing:
            raise ValueError(f"step {i}: {missing[0]!r} is missing; `reflectrl import-episodes FILE --env ENV` adds it")
        seen = step.observation if isinstance(step.observation, Observation) else Observation(
            "", step.observation or "", step.actions or ())  # fmt: skip
        now = TimeStep(seen, step.reward or 0.0, False, False, False, step.events or ())
        _write(recording, seen, step, now, episode.player)
    if episode.success is None:
        raise ValueError("'success' is missing; `reflectrl import-episodes FILE --env ENV` asks the environment")
    return recording.finished(episode.success, episode.truncated or False)


def _task(env: TextEnv, named: Task | str, tasks: Mapping[str, Task]) -> Task:
    first_task = next(iter(tasks.values()), None)
    if isinstance(named, Task) and first_task is not None and named.env not in ("", first_task.env):
        raise ValueError(f"an episode of {named.env!r}, but the environment is {first_task.env!r}")
    has_no_payload = isinstance(named, Task) and not named.payload
    key = (
        named
        if isinstance(named, str)
        else named.id
        if has_no_payload
        else task_key(replace(named, env=first_task.env if first_task else ""))
    )
    if key not in tasks:
        name = named if isinstance(named, str) else named.id
        raise ValueError(f"the environment {type(env).__name__} has no task {name!r:.80} with these settings")
    return tasks[key]


def _taken(env: TextEnv, task: Task, seen: Observation, step: ForeignStep) -> TimeStep:
    """Compare the given observation with the environment's, and take the given action."""
    recorded_text = step.observation.text if isinstance(step.observation, Observation) else step.observation
    if recorded_text is not None and recorded_text != seen.text:
        raise ValueError(f"the environment shows {_difference(recorded_text, seen.text)}")
    in_order = any(isinstance(turn, Choice) for turn in step.turns)  # choices are indices, so the order matters
    same_actions = step.actions == seen.actions if in_order else set(step.actions or seen.actions) == set(seen.actions)
    if not same_actions:
        raise ValueError(f"the legal actions are {', '.join(seen.actions)}, not {', '.join(step.actions or ())}")
    now = advance(env, task, _index(step, seen))
    if step.reward is not None and not math.isclose(step.reward, now.reward, rel_tol=1e-6, abs_tol=1e-6):
        raise ValueError(f"the environment pays {now.reward:g}, not {step.reward:g}")
    return now


def _index(step: ForeignStep, seen: Observation) -> int:
    """Return the index of a step's action among the legal actions."""
    action = step.action
    if isinstance(action, int) and step.actions is not None:
        action = step.actions[action]
    if isinstance(action, str) and action in seen.actions:
        return seen.actions.index(action)
    if isinstance(action, int) and 0 <= action < len(seen.actions):
        return action
    raise ValueError(f"action {action!r:.60} is not legal (legal: {', '.join(seen.actions)})")


def _write(recording: Recording, seen: Observation, step: ForeignStep, now: TimeStep, player: str) -> None:
    action = _index(step, seen)
    has_choice = any(isinstance(turn, Choice) for turn in step.turns)
    turns = step.turns if has_choice else (*step.turns, Choice(player, seen.actions[action], choice=action))
    recording.step(seen, action, now.reward, now.events, turns=turns)
    if step.mistake:
        recording.mistake()


def _require_same_end(env: TextEnv, episode: ForeignEpisode, now: TimeStep) -> None:
    if episode.success is not None and episode.success != now.success:
        rule = f" (success means that {env.success_rule})" if env.success_rule else ""
        raise ValueError(f"'success' is {str(episode.success).lower()}, but the environment says the opposite{rule}")
    if not now.done and not episode.truncated and episode.whole is None:
        raise ValueError('the episode is not over after its last step; write "truncated": true if it was stopped early')


def _difference(logged: str, shown: str) -> str:
    """Describe the first line in which two texts differ."""
    pairs = zip([*logged.splitlines(), "nothing"], [*shown.splitlines(), "nothing"], strict=False)
    before, now = next(((a, b) for a, b in pairs if a != b), (logged, shown))
    return f"{now!r:.80} where the episode has {before!r:.80}"


# ---- demonstrations of a run -----------------------------------------------------------------------------------------


def recorded(
    env: TextEnv, paths: Sequence[Path], seed: int, share: float = 0.2, check: bool = True
) -> dict[str, list[Episode]]:
    """Read teaching episodes from logs, split into training and validation. No task is in both.

    Args:
        seed: seed of the choice of validation tasks. It is used only if the logs hold no task of the environment's own
            validation split.
        share: share of the tasks used for validation, but at least one task.
        check: replay every episode, and refuse an episode that goes differently here.

    Returns:
        Episodes by "train" and "validation". An episode that occurs twice (same task, same steps) is kept once, with a
        warning.

    Raises:
        UserError: a file is missing, empty or damaged, or an episode belongs to another environment. Names file and
            line.
    """
    episodes = _each_once((path, labelled(episode)) for path in paths for episode in _read(env, path, check))
    validation_keys = sorted({task_key(demo.task) for demo in episodes if demo.task.split == "validation"})
    keys = sorted({task_key(demo.task) for demo in episodes} - set(validation_keys))
    if len(keys) + bool(validation_keys) < 2:
        raise UserError(
            f"teach.log: {_names(paths)} has episodes of one task; at least two are needed, one to validate"
        )
    if not validation_keys:
        order = np.random.default_rng(named_seed(seed, "demonstrations")).permutation(len(keys))
        validation_keys = [keys[i] for i in order[: min(len(keys) - 1, max(1, round(share * len(keys))))]]
    return {
        "train": [demo for demo in episodes if task_key(demo.task) not in validation_keys],
        "validation": [demo for demo in episodes if task_key(demo.task) in validation_keys],
    }


def _each_once(episodes: Iterable[tuple[Path, Episode]]) -> list[Episode]:
    """Drop repeated episodes, which would count a demonstration twice, and warn about them."""
    first, repeated = dict[str, Episode](), Counter[Path]()
    for path, episode in episodes:
        # Player and seed do not matter, because a learner sees only the steps.
        line = to_line(replace(episode, task=replace(episode.task, id=task_key(episode.task)), seed=0, provenance={}))
        if line in first:
            repeated[path] += 1
        first.setdefault(line, episode)
    for path, count in repeated.items():
        LOG.warning("reflectrl: %s: %d episodes repeat an earlier one step for step; each counts once", path, count)
    return list(first.values())


def require_lessons(parts: Mapping[str, Iterable[Episode]], paths: Sequence[Path], rule: str = "") -> None:
    """Refuse demonstrations from which nothing can be imitated. The error names what is missing.

    Args:
        rule: the environment's `TextEnv.success_rule`, for the error.
    """
    hint = f" (success means that {rule})" if rule else ""
    for part, episodes in parts.items():
        if not any(step.label for episode in episodes for step in episode.steps):
            raise UserError(
                f"teach.log: {_names(paths)}: no episode for {part} is won, so there is nothing to imitate{hint}"
            )


def has_reflections(parts: Mapping[str, Iterable[Episode]]) -> bool:
    """Return whether imitated steps have reflections, in both training and validation."""
    for episodes in parts.values():
        steps = chain.from_iterable(episode.steps for episode in episodes)
        if not any(step.label and step.reflection is not None for step in steps):
            return False
    return True


def labelled(episode: Episode) -> Episode:
    """Label all steps of a won episode as positive if it has no labels. Other episodes are returned unchanged."""
    if not episode.success or any(step.label for step in episode.steps):
        return episode
    return replace(episode, steps=tuple(replace(s, target=s.action, label="positive") for s in episode.steps))


def _read(env: TextEnv, path: Path, check: bool) -> Iterator[Episode]:
    """Read the episodes of a log. Replay them in this environment, or only replace their tasks by its own."""
    tasks, count = tasks_of(env), 0
    for count, episode in enumerate(read_episodes(path), start=1):
        try:
            task = _task(env, episode.task, tasks)
            if task.split not in ("train", "validation"):
                raise ValueError(f"task {task.id!r} is one of the {task.split} tasks, on which players are evaluated")
            yield replayed(env, as_foreign(episode), tasks) if check else replace(episode, task=task)
        except ValueError as error:
            raise UserError(f"{path}:{count}: {error}") from error
    if not count:
        raise UserError(f"{path} holds no episodes; record some: reflectrl play ENV --record {path}")


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))
