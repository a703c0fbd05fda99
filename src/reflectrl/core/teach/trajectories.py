"""Demonstrations: the teacher's answers along expert, noisy and perturbed trajectories.

Every demonstrated step carries the analyst's reflection and the expert's best action as its target, whatever action was
then executed (Reflect-RL, section on data generation; the relabelling follows DAgger). A *negative* perturbs one action
of an expert trajectory and keeps only the step after it, whose reflection explains the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from reflectrl.core.config import TeachConfig
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.envs.contract import raised
from reflectrl.core.envs.teacher import ask, ask_preferences, ask_questions
from reflectrl.core.types import Choice, Episode, Reflection, Step, StepLabel, Task, Turn, UserError, named_seed


@dataclass(frozen=True)
class Demonstration:
    """Plan of a teaching episode. A negative perturbs one action.

    Attributes:
        noise: share of random actions.
        place: step of the expert's path whose action is perturbed; None draws one at random.
    """

    task: Task
    seed: int
    kind: Literal["trajectory", "negative"]
    noise: float = 0.0
    place: int | None = None


def demonstrations(
    tasks: Sequence[Task], config: TeachConfig, seed: int, env: TextEnv | None = None
) -> list[Demonstration]:
    """Return all demonstrations of these tasks, in order, each with its own seed.

    Args:
        env: environment in which the expert's path is counted, if every action of it is to be perturbed
            (`config.negatives`).
    """
    demos = []
    for task in tasks:
        for noise in config.noise:
            demos.append(Demonstration(task, named_seed(seed, "teach", task.id, noise), "trajectory", noise))
        if config.negatives == "all":
            assert env is not None
            step_indices: list[int | None] = list(
                range(expert_length(env, task, named_seed(seed, "negative", task.id, 0)))
            )
        else:
            step_indices = [None] * config.negatives
        for k, step_index in enumerate(step_indices):
            demos.append(Demonstration(task, named_seed(seed, "negative", task.id, k), "negative", place=step_index))
    return demos


def expert_length(env: TextEnv, task: Task, seed: int) -> int:
    """Return the number of steps that the expert takes in a task.

    Raises:
        UserError: the environment has no expert, or raised.
    """
    lecture = _Lecture(env, Demonstration(task, seed, "negative"))
    lecture.begin()
    return lecture.expert_steps()


def teach(env: TextEnv, demonstration: Demonstration, unsafe_noise: bool = False) -> Episode:
    """Play one demonstration.

    Args:
        env: an environment whose teacher is an expert. If it is not an analyst, the episode has no reflections.
        unsafe_noise: allow random actions that end the episode.

    Raises:
        UserError: the environment has no expert, or raised. Names the environment and the task.
    """
    lecture = _Lecture(env, demonstration)
    try:
        if demonstration.kind == "negative":
            lecture.negative()
        else:
            lecture.trajectory(unsafe_noise)
    except NotImplementedError as error:
        raise UserError(f"cannot teach in this environment: {error}") from error
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise raised(type(env).__name__, demonstration.task, error) from error
    provenance = {"player": "teacher", "kind": demonstration.kind, "noise": demonstration.noise}
    steps = tuple(lecture.steps)
    return Episode(demonstration.task, steps, env.success, lecture.truncated, demonstration.seed, provenance)


class _Lecture:
    """Demonstration in progress, with the steps recorded so far."""

    def __init__(self, env: TextEnv, demonstration: Demonstration) -> None:
        self.env, self.demonstration = env, demonstration
        self.steps, self.truncated = list[Step](), False

    def trajectory(self, unsafe_noise: bool) -> None:
        """Play the expert's actions, mixed with random actions by the demonstration's noise."""
        rng = self.begin()
        while not self.env.done:
            target = action = self.expert()
            if rng.random() < self.demonstration.noise:
                action = self.random_action(rng, target, unsafe_noise)
            self.take(target, action, "positive")

    def negative(self) -> None:
        """Play the expert's path up to a random or a planned step, a wrong action, and the step that corrects it.

        If the state has no action that is wrong but survivable, other steps of the path are tried, unless the step was
        planned. If no step has one, the episode teaches nothing.
        """
        self.begin()
        length, planned_step = self.expert_steps(), self.demonstration.place
        first = int(self.begin().integers(length))
        others: tuple[int, ...] = (first, *(step for step in range(length) if step != first))
        if planned_step is not None:
            # In a random environment, this path may be shorter than the one that was planned.
            others = (planned_step,) if planned_step < length else ()
        for stop in others:
            rng = self.begin()
            rng.integers(length)
            for _ in range(stop):
                self.take(self.expert(), self.expert(), None)
            target = self.expert()
            wrong = self.wrong_action(rng, target)
            if wrong is not None:
                self.take(target, wrong, None)
                target = self.expert()
                self.take(target, target, "negative")
                return

    def begin(self) -> np.random.Generator:
        """Start the episode (again), and return the generator of the noise."""
        seed = self.demonstration.seed
        self.env.reset(seed=named_seed(seed, "env") % 2**32, options={"task": self.demonstration.task})
        self.steps, self.truncated = [], False
        return np.random.default_rng(named_seed(seed, "noise"))

    def expert(self) -> int:
        """Return the expert's action."""
        return ask(self.env, self.demonstration.task, "expert_action", len(self.env.legal_actions()))

    def expert_steps(self) -> int:
        """Let the expert play to the end, and return the number of its steps."""
        before = self.env.elapsed
        while not self.env.done:
            self.env.step(self.expert())
        return self.env.elapsed - before

    def take(self, target: int, action: int, label: StepLabel | None) -> None:
        """Record the analyst's and the expert's answers for this state, then carry out an action."""
        observation = self.env.observe()
        turns: tuple[Turn, ...] = ()
        if "analyst" in self.env.teacher.abilities():
            analysis = ask(self.env, self.demonstration.task, "analyse", len(observation.actions))
            turns = (Reflection("analyst", analysis),)
        preferences = ask_preferences(self.env, self.demonstration.task, len(observation.actions))
        questions = ask_questions(self.env, self.demonstration.task)
        player = "expert" if action == target else "noise"
        turns = (*turns, Choice(player, observation.actions[action], choice=action))
        _, reward, _, self.truncated, info = self.env.step(action)
        events = tuple(info["events"])
        self.steps.append(Step(observation, turns, action, reward, events, target, label, preferences, questions))

    def random_action(self, rng: np.random.Generator, expert: int, unsafe: bool) -> int:
        """Draw a random action. Unless `unsafe`, the action must either win or not end the episode.

        A crash would leave no state to learn from. If there is no such action, return the expert's action.
        """
        if unsafe:
            return int(rng.integers(len(self.env.legal_actions())))
        snapshot = self.env.save()
        for action in rng.permutation(len(self.env.legal_actions())):
            _, _, terminated, truncated, info = self.env.step(int(action))
            # The horizon ends the episode after any action; the environment itself may do so after this one only.
            ended = terminated or (truncated and self.env.elapsed < self.env.horizon)
            self.env.restore(snapshot)
            if not ended or info["success"]:
                return int(action)
        return expert

    def wrong_action(self, rng: np.random.Generator, expert: int) -> int | None:
        """Draw an action that is worse than the expert's but does not end the episode; None if there is none.

        Many states have two best actions, and taking the other one is no error that a reflection could explain. So
        after the wrong action the expert must lose (with the same random numbers, if the environment is random) or need
        more steps.
        """
        snapshot = self.env.save()
        best = self.expert_steps()
        won = self.env.success
        self.env.restore(snapshot)
        for action in rng.permutation(len(self.env.legal_actions())):
            if action == expert:
                continue
            self.env.step(int(action))
            survived = not self.env.done
            steps = 1 + self.expert_steps()
            worse = steps > best or (won and not self.env.success)
            self.env.restore(snapshot)
            if survived and worse:
                return int(action)
        return None
