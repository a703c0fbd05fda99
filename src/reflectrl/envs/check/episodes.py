"""The rules of an episode: what is seen, what is refused, what repeats, and what expert and analyst say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from reflectrl.envs.base import Snapshot, TextEnv
from reflectrl.envs.check.rules import EnvCheckError, require
from reflectrl.plugins import one_line
from reflectrl.types import Observation, Task, named_seed

EXPERT_TASKS = 20
SAME = "the same seed, task and actions give the same episode"


class Frame(NamedTuple):
    """Everything that one `reset` or `step` let a player see."""

    observation: Observation
    text: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    success: bool


def check_episode(env: TextEnv, fresh: TextEnv, task: Task, rng: np.random.Generator, follow: float) -> None:
    """One walk, then the same walk again: here, from points saved on the way, and on a fresh instance."""
    seed = int(rng.integers(2**31))
    actions: list[int] = []
    frames = list(_walk(env, task, seed, rng, follow, actions))
    _check_end(env)
    snapshots: list[Snapshot] = []
    _require_equal(frames, list(_replay(env, task, seed, actions, snapshots)), SAME)
    last = len(actions) - 1
    for point in dict.fromkeys((last // 2, 0, last)):  # the middle first, into an instance that has not played
        for who, player in (("a fresh", fresh), ("this", env)):
            rule = f"what follows a restored point replays identically (step {point}, {who} instance)"
            try:
                player.restore(snapshots[point])
                rest = list(_follow(player, actions[point:], rule))
            except EnvCheckError:
                raise
            except Exception as error:  # the author's code, where something was not saved, may raise anything
                raise EnvCheckError(f"{rule}: {one_line(error)}") from error
            _require_equal(frames[point + 1 :], rest, rule)
    _require_equal(frames, list(_replay(fresh, task, seed, actions, [])), "another instance gives the same episode")


def _walk(
    env: TextEnv, task: Task, seed: int, rng: np.random.Generator, follow: float, actions: list[int]
) -> Iterator[Frame]:
    """Play a task at random, or by the expert with probability `follow`; every frame is checked as it comes."""
    frame = _started(env, task, seed)
    history = ""
    while True:
        _check_frame(env, frame, history, len(actions))
        yield frame
        if frame.terminated or frame.truncated:
            return
        history, legal = frame.observation.history, len(frame.observation.actions)
        _check_refusals(env, legal)
        advice = _check_teacher(env)
        actions.append(advice if advice is not None and rng.random() < follow else int(rng.integers(legal)))
        frame = _seen(env, *env.step(actions[-1]))


def _replay(env: TextEnv, task: Task, seed: int, actions: Sequence[int], snapshots: list[Snapshot]) -> Iterator[Frame]:
    """The same actions once more, saving before each of them."""
    yield _started(env, task, seed)
    for action in actions:
        snapshots.append(env.save())
        yield from _follow(env, [action], SAME)


def _follow(env: TextEnv, actions: Sequence[int], rule: str) -> Iterator[Frame]:
    """Actions that were legal once have to be legal again."""
    for action in actions:
        require(not env.done, f"{rule}: it ended earlier")
        require(action < len(env.legal_actions()), f"{rule}: other actions were legal")
        yield _seen(env, *env.step(action))


def _started(env: TextEnv, task: Task, seed: int) -> Frame:
    text, info = env.reset(seed=seed, options={"task": task})
    return _seen(env, text, 0.0, False, False, info)


def _seen(env: TextEnv, text: str, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]) -> Frame:
    return Frame(env.observe(), text, reward, terminated, truncated, info, env.success)


def _require_equal(first: Sequence[Frame], second: Sequence[Frame], rule: str) -> None:
    for step, (a, b) in enumerate(zip(first, second, strict=False)):
        for name, one, other in zip(Frame._fields, a, b, strict=True):
            require(one == other, f"{rule}: {name} differs at step {step}")
    require(len(first) == len(second), f"{rule}: {len(first)} steps and {len(second)}")


def _check_frame(env: TextEnv, frame: Frame, history: str, elapsed: int) -> None:
    """The rules that every observation and reward obeys."""
    text, legal, over = frame.observation.text, frame.observation.actions, frame.terminated or frame.truncated
    require(env.observe() == frame.observation, "observing changes nothing: two observations in a row differ")
    require(frame.observation.history.startswith(history), f"history only grows: step {elapsed} rewrote it")
    require(frame.text == text == env.render(), "the observation is history + state")
    require(math.isfinite(frame.reward), f"rewards are finite, not {frame.reward}")
    require(env.done == over, "done says whether the episode is over")
    require(elapsed < env.horizon or over, f"the horizon ends an episode: step {elapsed} of {env.horizon} did not")
    require(legal or over, f"legal actions are not empty before the end (step {elapsed})")
    require(all(isinstance(action, str) and action.strip() for action in legal), "legal actions are non-empty strings")
    require(len(set(legal)) == len(legal), f"legal actions are unique: {list(legal)}")
    require(not any("\n" in action for action in legal), "legal actions hold no newline")
    require(frame.info.get("actions") == list(legal), "info['actions'] lists the legal actions")
    require(over or env.action_space.n == len(legal), "the action space counts the legal actions")


def _check_refusals(env: TextEnv, legal: int) -> None:
    """An index out of range raises ValueError and changes nothing."""
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


# ---- expert and analyst ----------------------------------------------------------------------------------------------


def _check_teacher(env: TextEnv) -> int | None:
    """The expert's advice (None without an expert); expert and analyst answer properly and change nothing."""
    before = env.observe()
    try:
        line = env.analyse()
    except NotImplementedError:
        line = "none"
    require(isinstance(line, str) and line.strip() and "\n" not in line, f"analyse() is one line, not {line!r}")
    try:
        advice = env.expert_action()
    except NotImplementedError:
        return None
    legal = len(before.actions)
    require(0 <= advice < legal, f"the expert's index is legal: it said {advice} of {legal} actions")
    require(env.observe() == before, "expert_action() and analyse() change nothing: the observation differs")
    return int(advice)


def check_expert(env: TextEnv, stage: str, seed: int) -> None:
    """The expert wins more than half of up to 20 training tasks."""
    tasks = list(env.tasks("train", stage))
    chosen = np.random.default_rng(named_seed(seed, "expert", stage)).permutation(len(tasks))[:EXPERT_TASKS]
    wins = 0
    for number in chosen:
        env.reset(seed=int(number), options={"task": tasks[number]})
        while not env.done:
            advice = _check_teacher(env)
            if advice is None:
                return
            env.step(advice)
        wins += env.success
    require(2 * wins > len(chosen), f"the expert wins most tasks: {wins} of {len(chosen)} at stage {stage!r}")
