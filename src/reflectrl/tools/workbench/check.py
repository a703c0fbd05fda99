"""`check_text_env`: test the rules on which players, teachers and learners of an environment rely.

Each rule is tried on real episodes, and gymnasium's own checker runs last. The first broken rule is named.
"""

from __future__ import annotations

import json
import math
import pickle
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import check_env

from reflectrl.core.envs.base import SPLITS, Snapshot, TextEnv
from reflectrl.core.envs.contract import ContractError, problem_of_observation
from reflectrl.core.envs.teacher import ABILITIES, Teacher
from reflectrl.core.plugins import one_line
from reflectrl.core.types import Observation, Task, named_seed

HARMLESS = re.compile(r"not having a spec|different from the unwrapped version")
EXPERT_TASKS = 20
ALIKE_WALKS, ALIKE_STEPS = 4, 30
"""Number and length of the walks that compare tasks which begin with the same text."""
SAME = "the same seed, task and actions give the same episode"


class EnvCheckError(AssertionError):
    """A rule is broken. The message is one line that names it."""


def require(condition: object, rule: str) -> None:
    """Raise `EnvCheckError` with the rule, on one line, unless the condition holds."""
    if not condition:
        raise EnvCheckError(" ".join(rule.split()))


def check_text_env(env_or_factory: TextEnv | Callable[[], TextEnv], *, episodes: int = 3, seed: int = 0) -> list[str]:
    """Test an environment's rules, and return if all of them hold.

    Args:
        env_or_factory: an environment, or (stricter) a callable that makes one: the class itself, or a `partial` of it.
            Only with a callable are two independent instances compared. Otherwise, the second is a pickled copy.
        episodes: walks per stage and split. Every other walk follows the expert, where there is one, half of the time.
        seed: seed of the walks.

    Returns:
        Abilities of its teacher: some of "expert", "analyst", "oracle" and "baseline".

    Raises:
        EnvCheckError: names the first broken rule. Errors of the environment's own code are passed on as they are.
    """
    if isinstance(env_or_factory, TextEnv):
        return _checked(env_or_factory, None, episodes, seed)
    env = env_or_factory()
    require(isinstance(env, TextEnv), f"an environment is a TextEnv, not {type(env).__name__}")
    with closing(env):
        return _checked(env, env_or_factory, episodes, seed)


def _checked(env: TextEnv, make_env: Callable[[], TextEnv] | None, episodes: int, seed: int) -> list[str]:
    """Test an environment. All others that are made for comparison are closed again."""
    require(isinstance(env.teacher, Teacher), f"a teacher is a Teacher, not {env.teacher!r:.60}")
    for method in ABILITIES.values():
        require(not hasattr(env, method), f"{method}() belongs to the environment's teacher")
    try:
        copy = _copier(env)
        fresh = make_env or copy
        with closing(fresh()) as other:
            _check_tasks(env, other)
        for stage in env.stages:
            for split in SPLITS:
                tasks = env.tasks(split, stage)
                for walk_index in range(episodes if tasks else 0):
                    rng = np.random.default_rng(named_seed(seed, stage, split, walk_index))
                    task = tasks[int(rng.integers(len(tasks)))]
                    with closing(fresh()) as other:
                        _check_episode(env, other, task, rng, follow=0.5 * (walk_index % 2))
            _check_expert(env, stage, seed)
        with closing(_copier(env)()) as late_copy, closing(copy()) as early_copy:
            _check_episode(late_copy, early_copy, env.tasks("train")[0], np.random.default_rng(seed), follow=0.0)
        _check_with_gymnasium(env)
    except ContractError as error:
        raise EnvCheckError(error.promise) from error
    return env.teacher.abilities()


def _copier(env: TextEnv) -> Callable[[], TextEnv]:
    """Return a function that copies an environment through pickle, as on its way to other processes."""
    try:
        data = pickle.dumps(env)
        pickle.loads(data).close()  # noqa: S301 -- bytes made on the line above
    except Exception as error:  # pickling runs the author's code, which may raise anything
        raise EnvCheckError(f"an environment can be pickled: {one_line(error)}") from error
    return lambda: pickle.loads(data)  # noqa: S301 -- the same bytes


class _AnyIndex(gym.Wrapper[str, int, str, int]):
    """Wraps indices around: gymnasium's checker keeps an action across a reset, after which fewer may be legal."""

    def step(self, action: int) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        return self.env.step(int(action) % int(self.action_space.n))  # type: ignore[attr-defined]


def _check_with_gymnasium(env: TextEnv) -> None:
    """Run gymnasium's `check_env`. Its warnings are passed on, except two about being wrapped and unregistered."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(_AnyIndex(env))
        except (AssertionError, gym.error.Error, TypeError) as error:
            raise EnvCheckError(f"gymnasium's check_env: {one_line(error)}") from error
    for warning in caught:
        if not HARMLESS.search(str(warning.message)):
            warnings.warn(warning.message, warning.category, stacklevel=3)


# ---- tasks -----------------------------------------------------------------------------------------------------------


def _check_tasks(env: TextEnv, twin: TextEnv) -> None:
    """Check that tasks are stable, self-describing, and distinct within a split and across splits."""
    require(env.stages, "stages are not empty")
    require(env.tasks("train"), "there is at least one training task")
    for stage in env.stages:
        split_of_key: dict[str, str] = {}
        for split in SPLITS:
            tasks = list(env.tasks(split, stage))
            again, other = list(env.tasks(split, stage)), list(twin.tasks(split, stage))
            require(tasks == again, f"tasks are stable: a second call for {split}/{stage} gave another list")
            require(tasks == other, f"tasks are stable: a second instance gave another list for {split}/{stage}")
            for task in tasks:
                require(isinstance(task, Task), f"tasks are Task objects, not {type(task).__name__}")
                is_consistent = (task.split, task.stage) == (split, stage)
                require(is_consistent, f"a task knows its split and stage: {task.id} does not")
                try:
                    is_json = json.loads(json.dumps(dict(task.payload))) == dict(task.payload)
                except (TypeError, ValueError) as error:
                    raise EnvCheckError(f"a payload holds JSON values only: {task.id}: {one_line(error)}") from error
                require(is_json, f"a payload holds JSON values only (lists, not tuples; text keys): {task.id} does not")
            [(most, count)] = Counter(task.id for task in tasks).most_common(1) or [("", 1)]
            require(count == 1, f"task ids are unique: {split}/{stage} has {most!r} twice")
            for task in tasks:
                for part, key in (("id", f"id {task.id}"), ("payload", json.dumps(task.payload, sort_keys=True))):
                    first_split = split_of_key.setdefault(key, split)
                    require(first_split == split, f"splits are disjoint: {part} of {task.id} is also in {first_split}")
        require(env.tasks("train", env.stages[-1]) == env.tasks("train"), "stage None means the last stage")
    for arguments in (("no such split", None), ("train", "no such stage")):
        try:
            env.tasks(*arguments)
        except Exception:  # a KeyError or a ValueError says it as clearly as a UserError
            continue
        raise EnvCheckError(f"an unknown split or stage raises an exception: tasks{arguments} did not")
    sample = [task for split in SPLITS for task in env.tasks(split)[:20]]
    starts = {env.reset(options={"task": task})[0] for task in sample}
    if len(starts) == 1 and len(sample) > 1 and _are_alike(env, sample):  # no error: longer play may tell them apart
        about = "all tasks begin with the same text, and the same actions then lead to the same episode"
        warnings.warn(f"{about}; is {sample[-1].split} really unseen?", stacklevel=4)


def _are_alike(env: TextEnv, tasks: Sequence[Task]) -> bool:
    """Tell whether tasks that begin with the same text also continue alike, as far as a few walks show.

    Hidden parts of a task (a number to guess, a deck of cards) show in the results of the same actions.
    """
    for walk_index in range(ALIKE_WALKS):
        courses = set()
        for task in tasks:
            courses.add(_course(env, task, walk_index))
            if len(courses) > 1:
                return False
    return True


def _course(env: TextEnv, task: Task, number: int) -> tuple[Any, ...]:
    """Return the texts, rewards and ends that a walk's actions lead to in a task.

    The walk is the same in every task.
    """
    rng = np.random.default_rng(named_seed("alike", number))
    env.reset(seed=number, options={"task": task})
    course: list[Any] = []
    while not env.done and len(course) < ALIKE_STEPS:
        text, reward, terminated, truncated, _ = env.step(int(rng.integers(2**31)) % len(env.legal_actions()))
        course.append((text, reward, terminated, truncated, env.success))
    return tuple(course)


# ---- episodes --------------------------------------------------------------------------------------------------------


class _Frame(NamedTuple):
    """Everything that a player sees of a `reset` or `step`."""

    observation: Observation
    text: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    success: bool


def _check_episode(env: TextEnv, fresh: TextEnv, task: Task, rng: np.random.Generator, follow: float) -> None:
    """Check one walk, and the same walk again: here, from points saved on the way, and on a fresh instance."""
    seed = int(rng.integers(2**31))
    actions: list[int] = []
    frames = list(_walk(env, task, seed, rng, follow, actions))
    _check_end(env)
    snapshots: list[Snapshot] = []
    _require_equal(frames, list(_replay(env, actions, SAME, task, seed, snapshots)), SAME)
    last = len(actions) - 1
    for point in dict.fromkeys((last // 2, 0, last)):  # the middle first, into an instance that has not played
        for which, player in (("a fresh", fresh), ("this", env)):
            rule = f"what follows a restored point replays identically (step {point}, {which} instance)"
            try:
                player.restore(snapshots[point])
                rest = list(_replay(player, actions[point:], rule))
            except EnvCheckError:
                raise
            except Exception as error:  # the author's code, where something was not saved, may raise anything
                raise EnvCheckError(f"{rule}: {one_line(error)}") from error
            _require_equal(frames[point + 1 :], rest, rule)
    again = list(_replay(fresh, actions, SAME, task, seed))
    _require_equal(frames, again, "another instance gives the same episode")


def _walk(
    env: TextEnv, task: Task, seed: int, rng: np.random.Generator, follow: float, actions: list[int]
) -> Iterator[_Frame]:
    """Play a task at random, or by the expert with probability `follow`. Every frame is checked as it comes."""
    frame = _started(env, task, seed)
    history = ""
    while True:
        _check_frame(env, frame, history, len(actions))
        yield frame
        if frame.terminated or frame.truncated:
            return
        history, legal = frame.observation.history, len(frame.observation.actions)
        _check_refusals(env, legal)
        advice = _advice(env, task)
        actions.append(advice if advice is not None and rng.random() < follow else int(rng.integers(legal)))
        frame = _seen(env, *env.step(actions[-1]))


def _replay(
    env: TextEnv,
    actions: Sequence[int],
    rule: str,
    task: Task | None = None,
    seed: int = 0,
    snapshots: list[Snapshot] | None = None,
) -> Iterator[_Frame]:
    """Take the same actions again, from the start of the task or (without a task) from the environment's present state.

    Actions that were legal once have to be legal again. Before each of them, the point is saved in `snapshots`.
    """
    if task is not None:
        yield _started(env, task, seed)
    for action in actions:
        if snapshots is not None:
            snapshots.append(env.save())
        require(not env.done, f"{rule}: it ended earlier")
        require(action < len(env.legal_actions()), f"{rule}: other actions were legal")
        yield _seen(env, *env.step(action))


def _started(env: TextEnv, task: Task, seed: int) -> _Frame:
    text, info = env.reset(seed=seed, options={"task": task})
    return _seen(env, text, 0.0, False, False, info)


def _seen(env: TextEnv, text: str, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]) -> _Frame:
    return _Frame(env.observe(), text, reward, terminated, truncated, info, env.success)


def _require_equal(first: Sequence[_Frame], second: Sequence[_Frame], rule: str) -> None:
    for step, (a, b) in enumerate(zip(first, second, strict=False)):
        for name, value, other in zip(_Frame._fields, a, b, strict=True):
            require(value == other, f"{rule}: {name} differs at step {step}")
    require(len(first) == len(second), f"{rule}: {len(first)} steps and {len(second)}")


def _check_frame(env: TextEnv, frame: _Frame, history: str, elapsed: int) -> None:
    """Check the rules that every observation and reward obeys."""
    text, legal, over = frame.observation.text, frame.observation.actions, frame.terminated or frame.truncated
    require(env.observe() == frame.observation, "observing changes nothing: two observations in a row differ")
    require(frame.observation.history.startswith(history), f"history only grows: step {elapsed} rewrote it")
    require(frame.text == text == env.render(), "the observation is history + state")
    require(math.isfinite(frame.reward), f"rewards are finite, not {frame.reward}")
    require(env.done == over, "done says whether the episode is over")
    require(elapsed < env.horizon or over, f"the horizon ends an episode: step {elapsed} of {env.horizon} did not")
    seen = frame.observation
    problem = problem_of_observation(seen.history, seen.state, legal, over)  # the rules that a run holds it to as well
    require(problem is None, problem or "")
    require(frame.info.get("actions") == list(legal), "info['actions'] lists the legal actions")
    require(frame.info.get("observation") == frame.observation, "info['observation'] is the observation")
    require(over or env.action_space.n == len(legal), "the action space counts the legal actions")


def _check_refusals(env: TextEnv, legal: int) -> None:
    """Check that an index out of range raises ValueError and changes nothing."""
    before = env.observe()
    for index in (legal, -1):
        try:
            env.step(index)
        except ValueError:
            require(env.observe() == before and not env.done, f"a refused action changes nothing: {index} did")
            continue
        raise EnvCheckError(f"an index out of range raises ValueError: {index} of {legal} actions did not")


def _check_end(env: TextEnv) -> None:
    try:
        env.step(0)
    except RuntimeError:
        return
    except Exception as error:  # anything else is the wrong answer, whatever it is
        raise EnvCheckError(f"a step after the end raises RuntimeError, not {one_line(error)}") from error
    raise EnvCheckError("a step after the end raises RuntimeError: it was carried out")


def _advice(env: TextEnv, task: Task) -> int | None:
    """Return the expert's checked advice; None without an expert, or if it does not know tasks of this split.

    Teaching data comes from training and validation tasks, so an expert that fails in others is no broken rule.
    """
    if not env.teacher.teaches(task.split):
        return None
    try:
        return _check_teacher(env)
    except EnvCheckError:
        raise
    except Exception as error:  # an author's code may raise anything
        if task.split in ("train", "validation"):
            raise
        about = f"the teacher does not know {task.split} tasks ({type(error).__name__})"
        warnings.warn(f"{about}; its teaches() may say so: results there have no calibration", stacklevel=2)
        return None


def _check_teacher(env: TextEnv) -> int | None:
    """Return the expert's advice (None without an expert), and check that expert and analyst change nothing."""
    before = env.observe()
    try:
        line = env.teacher.analyse(env)
    except NotImplementedError:
        line = "none"
    require(isinstance(line, str) and line.strip() and "\n" not in line, f"analyse() is one line, not {line!r}")
    try:
        advice = env.teacher.expert_action(env)
    except NotImplementedError:
        return None
    legal = len(before.actions)
    require(0 <= advice < legal, f"the expert's index is legal: it said {advice} of {legal} actions")
    require(env.observe() == before, "expert_action() and analyse() change nothing: the observation differs")
    return int(advice)


def _check_expert(env: TextEnv, stage: str, seed: int) -> None:
    """Check that the expert wins more than half of up to 20 training tasks."""
    tasks = list(env.tasks("train", stage))
    indices = np.random.default_rng(named_seed(seed, "expert", stage)).permutation(len(tasks))[:EXPERT_TASKS]
    wins = 0
    for index in indices:
        env.reset(seed=int(index), options={"task": tasks[index]})
        while not env.done:
            advice = _check_teacher(env)
            if advice is None:
                return
            env.step(advice)
        wins += env.success
    require(2 * wins > len(indices), f"the expert wins most tasks: {wins} of {len(indices)} at stage {stage!r}")
