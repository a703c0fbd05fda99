"""TextEnv: a gymnasium environment whose observations are text and whose legal actions are listed.

An author writes five methods: `tasks`, `begin`, `apply`, `state` and `legal_actions`. The base class adds `reset`,
`step`, the horizon, saving and restoring. For teaching data, name a `reflectrl.core.envs.teacher.Teacher` as well.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import gymnasium as gym
import numpy as np

from reflectrl.core.envs.contract import problem_of_observation, problem_of_outcome, problem_of_task, require_kept
from reflectrl.core.envs.teacher import Teacher
from reflectrl.core.open_environments import closed_once
from reflectrl.core.plugins import one_line, suggestion
from reflectrl.core.process_state import process_unchanged
from reflectrl.core.types import Observation, Outcome, Task, UserError, named_seed

T = TypeVar("T")
SPLITS = ("train", "validation", "test")


class TextSpace(gym.spaces.Space[str]):
    """Space of all Python strings. (Gymnasium's own `Text` fixes a character set and refuses spaces and newlines.)"""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(shape=(), dtype=np.str_, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a short random string, which may contain spaces and newlines."""
        letters = self.np_random.choice(list("abc \n|"), size=int(self.np_random.integers(1, 20)))
        return "".join(letters)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def __repr__(self) -> str:
        return "TextSpace()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace)


@dataclass(frozen=True)
class Snapshot:
    """Saved point of an episode. `TextEnv.save` makes it, and `TextEnv.restore` goes back to it."""

    task: Task
    elapsed: int
    done: bool
    success: bool
    rng: Any
    state: Any


class TextEnv(gym.Env[str, int], ABC):
    """Base class of every environment.

    Class attributes:
        stages: curriculum stages in order. The last stage is the whole task. Success is reported under these names.
        milestones: event → stage name, for stages whose success shows in an episode of the last stage.
        subgoals: further events that show progress, without a stage of their own.
        teacher: teacher that demonstrates and explains in this environment. The default teacher knows nothing.
        data_files: files, folders or patterns beside the class's module whose content changes the environment, so that
            runs notice an edit. Files within the environment's package need not be named.

    Attributes:
        instructions: the rules in a few sentences, for the system prompt of models with a chat template. A class may
            set it for all of its environments.
        success_rule: how rewards decide success, and how to change that, in words; "" if outcomes decide it.
        elapsed: number of steps taken in this episode.
        done: True if the episode is over (won, lost or truncated).
        success: True if the stage of the current task has been won in this episode.

    Args:
        horizon: largest number of steps of an episode. After that, it is truncated.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}  # type: ignore[misc]
    render_mode: str | None = "ansi"
    action_space: gym.spaces.Discrete[Any]
    stages: ClassVar[tuple[str, ...]] = ("full",)
    milestones: ClassVar[dict[str, str]] = {}
    subgoals: ClassVar[tuple[str, ...]] = ()
    teacher: Teacher = Teacher()
    data_files: ClassVar[tuple[str, ...]] = ()
    instructions: str = ""
    success_rule: str = ""

    _is_foreign: ClassVar[bool] = False
    """True for environments of others, whose code may change this process."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Let a second call of the class's own `close` do nothing."""
        super().__init_subclass__(**options)
        if not cls.__module__.startswith("reflectrl."):
            cls._is_foreign = True
        if "close" in vars(cls):
            cls.close = closed_once(vars(cls)["close"])  # type: ignore[method-assign]

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self.observation_space = TextSpace()
        self.action_space = gym.spaces.Discrete(1)
        self.elapsed, self.done, self.success = 0, True, False
        self._task: Task | None = None
        self._actions: list[str] = []
        self._rng_at_start: Any = None

    # ---- what an author writes -------------------------------------------------------------------------------------

    @abstractmethod
    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        """Return all tasks of a split ("train", "validation", "test", or a split of the environment's own) for a stage.

        `stage` None means the last stage. The list must be the same in every process. Raise `UserError` if the split or
        the stage is unknown.
        """

    @abstractmethod
    def begin(self, task: Task) -> None:
        """Set the world to the start of a task. All randomness must come from `self.np_random`."""

    @abstractmethod
    def apply(self, action: str) -> Outcome:
        """Carry out one of the actions that `legal_actions` listed."""

    @abstractmethod
    def state(self) -> str:
        """Return the text of the observation, which may change completely at each step."""

    @abstractmethod
    def legal_actions(self) -> Sequence[str]:
        """Return the actions that may be chosen now. Never empty before the episode ends."""

    # ---- what an author may also write -----------------------------------------------------------------------------

    def history(self) -> str:
        """Return text that precedes `state` and only grows in an episode, so that models need to read it only once."""
        return ""

    def group(self, task: Task) -> str | None:
        """Return the kind of a task, if results should be reported by kind as well; None if there are no kinds."""
        return None

    def counted_as(self, task: Task) -> str:
        """Return the name under which intervals count a task. Tasks that share it are not independent, and count once.

        By default, that is the task's id. Override it if some tasks are the same problem in other words.
        """
        return task.id

    def card_settings(self) -> Mapping[str, Any]:
        """Return the settings for an exported agent's card: plain values that affect observations and actions."""
        return {"horizon": self.horizon}

    @classmethod
    def read_question(
        cls, state: Any, instructions: Any, options: Sequence[str]
    ) -> tuple[Observation, Sequence[int]] | None:
        """Translate a client's question into an observation, for `reflectrl serve`; None if it asks something else.

        Clients of decision models know nothing of this environment's texts. If some of them ask its question in a form
        of their own (a benchmark, say), translate it here. A served agent then answers as it was trained.

        Args:
            state, instructions: what the client sent, as JSON values.
            options: names of the options, in alphabetical order.

        Returns:
            The observation, and for each option the index of its action.
        """
        return None

    def get_state(self) -> Any:
        """Return everything that `begin` and `apply` change, as a value that later steps do not alter.

        By default, this is the list of actions so far and the state of the random generator at the start. `set_state`
        then repeats the actions. If that is too slow, override both methods.
        """
        return self._rng_at_start, tuple(self._actions)

    def set_state(self, state: Any) -> None:
        """Go back to a state that `get_state` returned."""
        self._rng_at_start, actions = state
        self.np_random.bit_generator.state = self._rng_at_start
        self._actions, self.elapsed, self.done, self.success = [], 0, False, False
        self.begin(self.task)
        for action in actions:
            self.success |= bool(self.apply(action).success)
            self._actions.append(action)
            self.elapsed += 1

    # ---- what gymnasium and the players call -----------------------------------------------------------------------

    @property
    def task(self) -> Task:
        """The task being played. Raises RuntimeError before the first reset."""
        if self._task is None:
            raise RuntimeError("call reset() first")
        return self._task

    def observe(self) -> Observation:
        """Return the current observation, and set the size of the action space to the number of legal actions.

        Raises:
            ContractError: a hook returned something that no player can read or no log can hold. The message names
                environment and task.
        """
        history, state, actions = self.history(), self.state(), self.legal_actions()
        try:  # a quick check, which nearly always passes; only otherwise look for the problem
            is_list = type(actions) in (tuple, list) and (len(actions) > 0 or self.done)
            texts = type(history) is type(state) is str and history.isascii() and state.isascii()
            joined = "".join(actions)
            is_valid = is_list and texts and joined.isascii() and "\n" not in joined
            is_valid = is_valid and len(set(actions)) == len(actions) and all(map(str.strip, actions))
        except TypeError:  # an action is not text
            is_valid = False
        if not is_valid:
            require_kept(self, self._task, problem_of_observation(history, state, actions, self.done))
        self.action_space.n = np.int64(max(1, len(actions)))
        return Observation(history, state, tuple(actions))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode. `options={"task": Task}` names the task; otherwise a training task is drawn at random.

        Returns:
            The observation's text, and a dictionary with "observation" (an `Observation`), "actions", "events" and
            "success".

        Raises:
            ContractError: a hook returned something invalid.
        """
        super().reset(seed=seed)
        if self.__dict__.get("_is_closed"):
            self._is_closed = False  # it may hold something again
        task = (options or {}).get("task")
        if task is None:
            tasks = self.tasks("train")
            task = tasks[int(self.np_random.integers(len(tasks)))]
        if not (  # a quick check, which nearly always passes
            isinstance(task, Task)
            and all(type(name) is str and name.isascii() for name in (task.id, task.env, task.split, task.stage))
        ):
            require_kept(self, task, problem_of_task(task))
        self._task, self._actions, self._rng_at_start = task, [], self.np_random.bit_generator.state
        self.elapsed, self.done, self.success = 0, False, False
        with self._protected():
            self.begin(task)
            seen = self.observe()
        info = {"observation": seen, "actions": list(seen.actions), "events": [], "success": False}
        return seen.history + seen.state, info

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carry out a legal action, given by its index.

        Returns:
            Gymnasium's (text, reward, terminated, truncated, info). `info` has the same keys as in `reset`.

        Raises:
            RuntimeError: the episode is over.
            ValueError: no legal action has this index.
            ContractError: a hook returned something invalid.
        """
        if self.done:
            raise RuntimeError("the episode is over; call reset()")
        actions = self.legal_actions()
        if not 0 <= action < len(actions):
            raise ValueError(f"action {action} is not in 0..{len(actions) - 1}")
        with self._protected():
            outcome = self.apply(actions[action])
        if not (  # a quick check, which nearly always passes
            type(outcome) is Outcome
            and type(outcome.reward) is float
            and math.isfinite(outcome.reward)
            and type(outcome.terminated) is type(outcome.success) is type(outcome.truncated) is bool
            and type(outcome.events) is tuple
            and all(type(event) is str and event.isascii() for event in outcome.events)
        ):
            require_kept(self, self._task, problem_of_outcome(outcome))
        self._actions.append(actions[action])
        self.elapsed += 1
        self.success = self.success or bool(outcome.success)
        terminated = bool(outcome.terminated)
        truncated = not terminated and (bool(outcome.truncated) or self.elapsed >= self.horizon)
        self.done = terminated or truncated
        seen, events = self.observe(), list(outcome.events)
        info = {"observation": seen, "actions": list(seen.actions), "events": events, "success": self.success}
        return seen.history + seen.state, float(outcome.reward), terminated, truncated, info

    def _protected(self) -> AbstractContextManager[None]:
        """Return a context in which the environment's code leaves this process as it was."""
        return process_unchanged(self) if self._is_foreign else nullcontext()

    @closed_once
    def close(self) -> None:
        """Release what the environment holds. Override it if that is anything: a program, a file, a connection."""

    def render(self) -> str:
        """Return the current observation as one text."""
        return self.observe().text

    def save(self) -> Snapshot:
        """Save the current point of the episode, including the random generator."""
        rng = self.np_random.bit_generator.state
        return Snapshot(self.task, self.elapsed, self.done, self.success, rng, self.get_state())

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a saved point. The same actions then have the same effects as before."""
        self._task = snapshot.task
        self.set_state(snapshot.state)
        self.elapsed, self.done, self.success = snapshot.elapsed, snapshot.done, snapshot.success
        self.np_random.bit_generator.state = snapshot.rng
        self.action_space.n = np.int64(max(1, len(self.legal_actions())))


# ---- tasks -----------------------------------------------------------------------------------------------------------


def require_known(env: str, kind: str, word: str, options: Sequence[str]) -> None:
    """Raise UserError if a word is unknown: `require_known("taxi", "split", split, SPLITS)`.

    Raises:
        UserError: names the environment, the word and the nearest known one.
    """
    if word not in options:
        raise UserError(f"{env}: unknown {kind} {word!r}{suggestion(str(word), options)}")


def tasks_named(env: TextEnv, split: str, stage: str | None = None) -> Sequence[Task]:
    """Return the tasks of a split and stage that a user has named.

    Raises:
        UserError: the environment knows no such split or stage, whatever exception it raised.
    """
    try:
        return env.tasks(split, stage)
    except UserError:
        raise
    except Exception as error:  # an author's code may raise anything
        about = f"{split!r}" if stage is None else f"{split!r} at stage {stage!r}"
        raise UserError(f"{type(env).__name__} has no tasks of split {about} ({one_line(error)})") from error


def divide(items: Sequence[T], sizes: Mapping[str, int], *seed_names: object) -> dict[str, list[T]]:
    """Shuffle `items` with a named seed and distribute them to splits of these sizes.

    Every item goes to at most one split; leftover items go to none.

    Raises:
        UserError: a size is below 1, or the sizes ask for more items than there are.
    """
    if min(sizes.values()) < 1 or sum(sizes.values()) > len(items):
        raise UserError(f"split sizes {dict(sizes)} must each be at least 1 and together at most {len(items)}")
    order = np.random.default_rng(named_seed("divide", *seed_names)).permutation(len(items))
    boundaries = np.cumsum(list(sizes.values()))
    divided: dict[str, list[T]] = {}
    for split, part in zip(sizes, np.split(order, boundaries), strict=False):  # the last part holds the leftover items
        divided[split] = [items[i] for i in part]
    return divided
