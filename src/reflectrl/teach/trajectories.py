"""Teaching episodes: what the analyst and the expert say along expert, noisy and perturbed trajectories.

Every taught step carries the analyst's reflection and the expert's best action as its target, whatever action was
then executed (Reflect-RL, section on data generation; the relabelling is that of DAgger). A *negative* perturbs one
action of an expert trajectory and keeps only the step after it, whose reflection explains the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from reflectrl.config import TeachConfig
from reflectrl.envs.base import TextEnv
from reflectrl.envs.pool import blamed
from reflectrl.envs.promises import problem_of_advice, problem_of_text, require_kept
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
    with blamed(env, lesson.task):
        try:
            if lesson.kind == "negative":
                return _negative(env, lesson)
            return _trajectory(env, lesson, unsafe_noise)
        except NotImplementedError as error:
            raise UserError(f"cannot teach in this environment: {error}") from error


def _trajectory(env: TextEnv, lesson: Lesson, unsafe_noise: bool) -> Episode:
    rng = _begin(env, lesson)
    script = _Script(env)
    while not env.done:
        target = env.expert_action()
        action = target
        if rng.random() < lesson.noise:
            action = _any_action(env, rng) if unsafe_noise else _safe_action(env, rng, target)
        script.take(target, action, "positive")
    return script.episode(lesson)


def _negative(env: TextEnv, lesson: Lesson) -> Episode:
    """The expert's path up to a random step, one wrong action, and the step that explains and corrects it.

    Where no survivable action is wrong another step of the path is tried; a path without any teaches nothing.
    """
    length = _expert_length(env, lesson)
    first = int(_begin(env, lesson).integers(length))
    for stop in (first, *(step for step in range(length) if step != first)):
        rng = _begin(env, lesson)
        rng.integers(length)
        script = _Script(env)
        for _ in range(stop):
            script.take(env.expert_action(), env.expert_action(), None)
        target = env.expert_action()
        wrong = _wrong_action(env, rng, target)
        if wrong is not None:
            script.take(target, wrong, None)
            target = env.expert_action()
            script.take(target, target, "negative")
            break
    return script.episode(lesson)


def _begin(env: TextEnv, lesson: Lesson) -> np.random.Generator:
    env.reset(seed=named_seed(lesson.seed, "env") % 2**32, options={"task": lesson.task})
    return np.random.default_rng(named_seed(lesson.seed, "noise"))


def _expert_length(env: TextEnv, lesson: Lesson) -> int:
    _begin(env, lesson)
    return _expert_steps(env)


def _expert_steps(env: TextEnv) -> int:
    """How many steps the expert takes from here to the end."""
    steps = 0
    while not env.done:
        env.step(env.expert_action())
        steps += 1
    return steps


def _any_action(env: TextEnv, rng: np.random.Generator) -> int:
    return int(rng.integers(len(env.legal_actions())))


def _safe_action(env: TextEnv, rng: np.random.Generator, expert: int) -> int:
    """A random action that does not end the episode, unless it wins it; the expert's action if there is none.

    A crash would leave no state to learn from, so noise is chosen among survivable actions.
    """
    snapshot = env.save()
    for action in rng.permutation(len(env.legal_actions())):
        _, _, terminated, _, info = env.step(int(action))
        env.restore(snapshot)
        if not terminated or info["success"]:
            return int(action)
    return expert


def _wrong_action(env: TextEnv, rng: np.random.Generator, expert: int) -> int | None:
    """A random action that leaves the episode going and the expert worse off than its own; None if there is none.

    Many states have two best actions, and a reflection cannot explain an error that was none: the expert must lose
    (in an environment with chance, under the same luck) or need more steps afterwards.
    """
    snapshot = env.save()
    best = _expert_steps(env)
    won = env.success
    env.restore(snapshot)
    for action in rng.permutation(len(env.legal_actions())):
        if action == expert:
            continue
        env.step(int(action))
        survived = not env.done
        steps = 1 + _expert_steps(env)
        worse = steps > best or (won and not env.success)
        env.restore(snapshot)
        if survived and worse:
            return int(action)
    return None


class _Script:
    """The steps of an episode that is being played for teaching."""

    def __init__(self, env: TextEnv) -> None:
        self.env, self.steps, self.truncated = env, list[Step](), False

    def take(self, target: int, action: int, lesson: Role | None) -> None:
        """Write down what the analyst and the expert say here, then carry out an action."""
        observation, analysis = self.env.observe(), self.env.analyse()
        require_kept(self.env, self.env.task, problem_of_text("analyse()", analysis))
        problem = problem_of_advice("expert_action()", target, len(observation.actions))
        require_kept(self.env, self.env.task, problem)
        target, action = int(target), int(action)
        reflection = Turn("analyst", analysis)
        choice = Turn("expert" if action == target else "noise", observation.actions[action], choice=action)
        _, reward, _, self.truncated, info = self.env.step(action)
        turns = (reflection, choice)
        self.steps.append(Step(observation, turns, action, reward, tuple(info["events"]), target, lesson))

    def episode(self, lesson: Lesson) -> Episode:
        provenance = {"player": "teacher", "kind": lesson.kind, "noise": lesson.noise}
        return Episode(lesson.task, tuple(self.steps), self.env.success, self.truncated, lesson.seed, provenance)
