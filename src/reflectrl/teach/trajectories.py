"""Teaching episodes: what the analyst and the expert say along expert, noisy and perturbed trajectories.

Every taught step carries the analyst's reflection and the expert's best action as its target, whatever action was
then executed (Reflect-RL, section on data generation; the relabelling is that of DAgger). A *negative* perturbs one
action of an expert trajectory and keeps only the step after it, whose reflection explains the error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from reflectrl.config import TeachConfig
from reflectrl.envs.base import TextEnv
from reflectrl.plugins import one_line
from reflectrl.types import Episode, Step, Task, Turn, UserError, named_seed
from reflectrl.types import Lesson as Role


@dataclass(frozen=True)
class Lesson:
    """One teaching episode to be made: `noise` is its share of random actions; a negative perturbs one action."""

    task: Task
    seed: int
    kind: Literal["trajectory", "negative"]
    noise: float = 0.0


def lessons(tasks: Sequence[Task], config: TeachConfig, seed: int) -> list[Lesson]:
    """Every teaching episode of these tasks, in order; each has a seed of its own."""
    found = []
    for task in tasks:
        for noise in config.noise:
            found.append(Lesson(task, named_seed(seed, "teach", task.id, noise), "trajectory", noise))
        for k in range(config.negatives):
            found.append(Lesson(task, named_seed(seed, "negative", task.id, k), "negative"))
    return found


def teach(env: TextEnv, lesson: Lesson, unsafe_noise: bool = False) -> Episode:
    """Play one lesson.

    Raises:
        UserError: the environment has no expert or analyst, or raised; it and the task are named.
    """
    try:
        if lesson.kind == "negative":
            return _negative(env, lesson)
        return _trajectory(env, lesson, unsafe_noise)
    except NotImplementedError as error:
        raise UserError(f"cannot teach in this environment: {error}") from error
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"environment {type(env).__name__} raised on task {lesson.task.id!r}: {one_line(error)}"
        ) from error


def _trajectory(env: TextEnv, lesson: Lesson, unsafe_noise: bool) -> Episode:
    rng = _begin(env, lesson)
    steps: list[Step] = []
    while not env.done:
        target = env.expert_action()
        action = target
        if rng.random() < lesson.noise:
            action = _any_action(env, rng) if unsafe_noise else _safe_action(env, rng, avoid=None)
        steps.append(_taught_step(env, target, action, "positive"))
    return _episode(env, lesson, steps)


def _negative(env: TextEnv, lesson: Lesson) -> Episode:
    """The expert's path up to a random step, one wrong action, and the step that explains and corrects it."""
    length = _expert_length(env, lesson)
    rng = _begin(env, lesson)
    steps = []
    for _ in range(int(rng.integers(length))):
        steps.append(_taught_step(env, env.expert_action(), env.expert_action(), None))
    wrong = _safe_action(env, rng, avoid=env.expert_action())
    steps.append(_taught_step(env, env.expert_action(), wrong, None))
    if not env.done:
        steps.append(_taught_step(env, env.expert_action(), env.expert_action(), "negative"))
    return _episode(env, lesson, steps)


def _begin(env: TextEnv, lesson: Lesson) -> np.random.Generator:
    env.reset(seed=named_seed(lesson.seed, "env") % 2**32, options={"task": lesson.task})
    return np.random.default_rng(named_seed(lesson.seed, "noise"))


def _expert_length(env: TextEnv, lesson: Lesson) -> int:
    _begin(env, lesson)
    length = 0
    while not env.done:
        env.step(env.expert_action())
        length += 1
    return length


def _any_action(env: TextEnv, rng: np.random.Generator) -> int:
    return int(rng.integers(len(env.legal_actions())))


def _safe_action(env: TextEnv, rng: np.random.Generator, avoid: int | None) -> int:
    """A random action other than `avoid` that does not end the episode; the expert's action if there is none.

    A crash would leave no state to learn from, so noise and perturbations are chosen among survivable actions.
    """
    expert = env.expert_action()
    snapshot = env.save()
    for action in rng.permutation(len(env.legal_actions())):
        if action == avoid:
            continue
        _, _, terminated, _, info = env.step(int(action))
        env.restore(snapshot)
        if not terminated or info["success"]:
            return int(action)
    return expert


def _taught_step(env: TextEnv, target: int, action: int, lesson: Role | None) -> Step:
    observation = env.observe()
    reflection = Turn("analyst", env.analyse())
    who = "expert" if action == target else "noise"
    choice = Turn(who, observation.actions[action], choice=action)
    _, reward, _, _, info = env.step(action)
    return Step(observation, (reflection, choice), action, reward, tuple(info["events"]), target, lesson)


def _episode(env: TextEnv, lesson: Lesson, steps: list[Step]) -> Episode:
    provenance = {"player": "teacher", "kind": lesson.kind, "noise": lesson.noise}
    return Episode(lesson.task, tuple(steps), env.success, env.done and not env.success, lesson.seed, provenance)
