"""TextEnv: a gymnasium environment whose observations are text and whose legal actions are listed.

An author writes the hooks `tasks`, `begin`, `apply`, `history`, `state`, `legal_actions`, `get_state` and `set_state`;
`reset`, `step`, the horizon, and saving and restoring come from here. Further hooks: `expert_action` and `analyse` are
needed only to make teaching data, `group` only to report results by kinds of tasks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from reflectrl.envs.promises import problem_of_observation, problem_of_outcome, problem_of_task, require_kept
from reflectrl.types import Observation, Task


class TextSpace(gym.spaces.Space[str]):
    """Every Python string. (Gymnasium's own `Text` fixes a character set and refuses spaces and newlines.)"""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(shape=(), dtype=np.str_, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A short random string with spaces and newlines in it."""
        letters = self.np_random.choice(list("abc \n|"), size=int(self.np_random.integers(1, 20)))
        return "".join(letters)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def __repr__(self) -> str:
        return "TextSpace()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace)


class ActionSpace(gym.spaces.Discrete):
    """Indices into the actions that are legal now; `n` follows the environment from step to step."""

    def resize(self, n: int) -> None:
        """Make 0..n-1 the legal indices."""
        self.n = np.int64(n)


@dataclass(frozen=True)
class Outcome:
    """What an action led to.

    `terminated` ends the episode; `success` says that the task's stage is won (it stays won once said); `events` are
    short words ("pickup", "illegal") that evaluation and the report count.
    """

    reward: float
    terminated: bool = False
    success: bool = False
    events: tuple[str, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """A point in an episode, made by `TextEnv.save` and understood by `TextEnv.restore`."""

    task: Task
    elapsed: int
    done: bool
    success: bool
    rng: Any
    state: Any


class TextEnv(gym.Env[str, int]):
    """Base class of every environment.

    Class attributes:
        stages: curriculum stages in order; the last one is the whole task. A stage is also the name under which
            success is reported.
        milestones: event → stage name, for stages whose success can be read off an episode of the last stage.

    Args:
        horizon: the greatest number of steps of an episode; afterwards it is truncated.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}  # type: ignore[misc]
    render_mode: str | None = "ansi"
    action_space: ActionSpace  # type: ignore[assignment]
    stages: ClassVar[tuple[str, ...]] = ("full",)
    milestones: ClassVar[dict[str, str]] = {}

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self.observation_space = TextSpace()
        self.action_space = ActionSpace(1)
        self._task: Task | None = None
        self._elapsed = 0
        self._done = True
        self._success = False

    # ---- what an author writes -------------------------------------------------------------------------------------

    @abstractmethod
    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        """All tasks of a split ("train", "validation", "test", or one of the environment's own), for one stage.

        `stage` None means the last one. The list is the same in every process. An unknown split or stage raises
        `UserError`.
        """

    @abstractmethod
    def begin(self, task: Task) -> None:
        """Set the world to the start of a task. Randomness comes from `self.np_random` only."""

    @abstractmethod
    def apply(self, action: str) -> Outcome:
        """Carry out one of the actions that `legal_actions` listed."""

    @abstractmethod
    def history(self) -> str:
        """The part of the text that only grows within an episode ("" if there is none)."""

    @abstractmethod
    def state(self) -> str:
        """The part of the text that may change entirely at each step."""

    @abstractmethod
    def legal_actions(self) -> Sequence[str]:
        """The actions that may be chosen now; never empty before the episode ends."""

    @abstractmethod
    def get_state(self) -> Any:
        """Everything that `begin` and `apply` change, as a value that later steps do not alter."""

    @abstractmethod
    def set_state(self, state: Any) -> None:
        """Go back to a value of `get_state`."""

    def group(self, task: Task) -> str | None:
        """The kind of a task, where results are worth reporting by kind as well; None where there are no kinds."""
        return None

    def expert_action(self) -> int:
        """Index of the best legal action. Needed for teaching and for the expert player only."""
        raise NotImplementedError(f"{type(self).__name__} has no expert")

    def oracle_action(self) -> int:
        """Index of the best legal action for one who knows what is hidden: the ceiling of the oracle player.

        Where nothing is hidden from the expert either, that is the expert's action.
        """
        return self.expert_action()

    def baseline_action(self) -> int:
        """Index of the action that the usual method without learning takes: the bar of the baseline player."""
        raise NotImplementedError(f"{type(self).__name__} has no baseline")

    def analyse(self) -> str:
        """A short analysis of the current state, as a reflector should write it (one line, no newline).

        It may use the best next action but never names the source of that knowledge. It may speak only of what the
        text of the observation shows, since a reader could not learn to write anything else.
        """
        raise NotImplementedError(f"{type(self).__name__} has no analyst")

    # ---- what gymnasium and the players call -----------------------------------------------------------------------

    @property
    def task(self) -> Task:
        """The task being played; RuntimeError before the first reset."""
        if self._task is None:
            raise RuntimeError("call reset() first")
        return self._task

    @property
    def success(self) -> bool:
        """Whether the stage of the current task has been won in this episode."""
        return self._success

    @property
    def done(self) -> bool:
        """Whether the episode is over (won, lost or truncated)."""
        return self._done

    def observe(self) -> Observation:
        """The current observation.

        Raises:
            PromiseError: a hook gave what no player can read or no log can hold; names environment and task.
        """
        history, state, actions = self.history(), self.state(), self.legal_actions()
        require_kept(self, self._task, problem_of_observation(history, state, actions, self._done))
        return Observation(history, state, tuple(actions))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode; `options={"task": Task}` names the task, otherwise a training task is drawn.

        Raises:
            PromiseError: a hook gave what it must not give.
        """
        super().reset(seed=seed)
        task = (options or {}).get("task")
        if task is None:
            tasks = self.tasks("train")
            task = tasks[int(self.np_random.integers(len(tasks)))]
        require_kept(self, task, problem_of_task(task))
        self._task, self._elapsed, self._done, self._success = task, 0, False, False
        self.begin(task)
        return self._report(())

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carry out the legal action of that index.

        Returns gymnasium's (observation, reward, terminated, truncated, info).

        Raises:
            RuntimeError: the episode is over.
            ValueError: the index names no legal action.
            PromiseError: a hook gave what it must not give.
        """
        if self._done:
            raise RuntimeError("the episode is over; call reset()")
        actions = self.legal_actions()
        if not 0 <= action < len(actions):
            raise ValueError(f"action {action} is not in 0..{len(actions) - 1}")
        reward, terminated, success, events = self._outcome(self.apply(actions[action]))
        self._elapsed += 1
        self._success = self._success or success
        truncated = not terminated and self._elapsed >= self.horizon
        self._done = terminated or truncated
        text, info = self._report(events)
        return text, reward, terminated, truncated, info

    def _outcome(self, found: Outcome) -> tuple[float, bool, bool, Sequence[str]]:
        """Reward, end, success and events of an action in Python's own types."""
        if not isinstance(found, Outcome):
            require_kept(self, self._task, f"apply() gives an Outcome, not {found!r:.60}")
        reward, terminated, success, events = found.reward, found.terminated, found.success, found.events
        require_kept(self, self._task, problem_of_outcome(reward, terminated, success, events))
        return float(reward), bool(terminated), bool(success), events

    def _report(self, events: Sequence[str]) -> tuple[str, dict[str, Any]]:
        observation = self.observe()
        self.action_space.resize(max(1, len(observation.actions)))
        info = {"actions": list(observation.actions), "events": list(events), "success": self._success}
        return observation.text, info

    def render(self) -> str:
        """The text that a player reads."""
        return self.observe().text

    def save(self) -> Snapshot:
        """The present point of the episode, the random generator included."""
        rng = self.np_random.bit_generator.state
        return Snapshot(self.task, self._elapsed, self._done, self._success, rng, self.get_state())

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a saved point; what follows replays identically."""
        self._task, self._elapsed = snapshot.task, snapshot.elapsed
        self._done, self._success = snapshot.done, snapshot.success
        self.np_random.bit_generator.state = snapshot.rng
        self.set_state(snapshot.state)
        self.action_space.resize(max(1, len(self.legal_actions())))
