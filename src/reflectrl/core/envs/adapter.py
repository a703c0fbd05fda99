"""`GymTextEnv`: any discrete-action gymnasium environment with a text rendering as a `TextEnv`."""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from inspect import signature
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import load_env_creator

from reflectrl.core.config import checked
from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, require_known
from reflectrl.core.envs.contract import is_finite, require_kept
from reflectrl.core.local_modules import look_here
from reflectrl.core.plugins import one_line
from reflectrl.core.types import Task, UserError

FIRST_SEED = {"train": 0, "validation": 10**7, "test": 2 * 10**7}
ESCAPES = re.compile(r"\x1b\[([\d;:]*)m|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[^\[\]]?")
"""Escape codes of terminals. The group holds the numbers of a code that changes how text looks."""
PLAIN_AGAIN = {"", "0", "00", "22", "23", "24", "25", "27", "28", "29", "39", "49", "54", "55", "59"}
"""Numbers of codes that end a highlight."""


class GymTextEnv(TextEnv):
    """Adapter that turns a gymnasium environment into a `TextEnv`.

    A task is a seed with which the wrapped environment is reset. So the task fixes the start and the random events
    of an episode, and the same actions lead to the same end. Make a subclass to override `describe` or `won`, or to
    name a `teacher`; if the defaults are good enough, a recipe can name this class directly.

    Saving works as in `TextEnv`: a saved point is the list of actions since the reset, and restoring repeats them. That
    costs time, but works for every deterministic environment, even if it holds windows, sockets or C structures that
    cannot be copied. A saved point is small and can be sent to another process.

    Args:
        id: id of the environment for `gymnasium.make` ("CliffWalking-v1", "package.module:Name-v0").
        actions: one name per action of the wrapped environment, in its order.
        horizon: number of steps after which an episode is truncated. It replaces the limit registered with gymnasium,
            but not a limit of the environment's own.
        name: the environment's name in task ids; "" takes the id in lower case.
        scale: number by which rewards are divided.
        rules: text that precedes everything else.
        history: show past texts and actions.
        train, validation, test: number of seeds in each split.
        settings: keyword arguments for `gymnasium.make`.

    Attributes:
        earned: reward of the wrapped environment for the last step; None if a subclass does not set it.

    Raises:
        UserError: gymnasium cannot make the environment, it cannot be rendered as text, its actions are not discrete,
            or the number of names does not match.
    """

    _is_foreign = True  # whatever it wraps

    not_saved: tuple[str, ...] = ()
    """Attributes that a subclass sets anew in `begin` and `describe`, left out of copies for other processes."""

    def __init__(
        self,
        id: str,
        actions: Sequence[str],
        horizon: int = 100,
        *,
        name: str = "",
        scale: float = 1.0,
        rules: str = "",
        history: bool = False,
        train: int = 1000,
        validation: int = 100,
        test: int = 200,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(horizon)
        self.id, self.name, self.names = id, name or id.lower(), tuple(actions)
        self.scale, self.rules, self.show_history = scale, rules, history
        self.sizes = {"train": train, "validation": validation, "test": test}
        self.settings = dict(settings or {})
        self.earned: float | None = None
        self._wrapped = self._make()

    def _make(self) -> gym.Env[Any, Any]:
        """Make the wrapped environment. If it cannot be used, it is closed again."""
        wrapped = self._made({"render_mode": "ansi"} if draws_text(self.id) else {})
        try:
            if "ansi" in wrapped.metadata.get("render_modes", ()) and wrapped.render_mode is None:
                wrapped.close()  # it says only now that it can be drawn as text
                wrapped = self._made({"render_mode": "ansi"})
            self._require_usable(wrapped)
        except BaseException:
            wrapped.close()
            raise
        return wrapped

    def _made(self, mode: Mapping[str, Any]) -> gym.Env[Any, Any]:
        """Let gymnasium make the environment, and explain why it cannot."""
        settings = {"disable_env_checker": True, "max_episode_steps": -1, **mode, **self.settings}
        try:
            look_for_gym(self.id)
            return gym.make(self.id, **settings)
        except Exception as error:  # making runs the wrapped environment's own code
            if (spec := gym.registry.get(self.id)) is not None:
                env_settings = {
                    key: value for key, value in settings.items() if key not in signature(gym.make).parameters
                }
                refuse_wrong_settings(spec, env_settings, f"{self.id} of gymnasium")
            raise UserError(f"gymnasium cannot make {self.id!r}: {one_line(error)}") from error

    def _require_usable(self, wrapped: gym.Env[Any, Any]) -> None:
        if wrapped.render_mode != "ansi" and type(self).describe is GymTextEnv.describe:
            raise UserError(f"{self.id}: has no text rendering (render_mode 'ansi'); subclass and override describe()")
        space = wrapped.action_space
        if not isinstance(space, gym.spaces.Discrete) or space.start != 0:
            raise UserError(f"{self.id}: actions must be Discrete from 0, not {space}")
        if len(self.names) != space.n or len(set(self.names)) != space.n:
            raise UserError(f"{self.id}: has {space.n} actions, and needs as many different names, not {self.names}")

    # ---- what a subclass may override ------------------------------------------------------------------------------

    @property
    def wrapped(self) -> gym.Env[Any, Any]:
        """The gymnasium environment itself, without gymnasium's wrappers."""
        return self._wrapped.unwrapped

    @property
    def success_rule(self) -> str:  # type: ignore[override]
        """Rule of `won` in words; "" if a subclass has its own rule."""
        kind = type(self)
        is_own = kind.won is GymTextEnv.won and kind.apply is GymTextEnv.apply
        return "the episode ends with a reward above 0 (a subclass of GymTextEnv can override won())" if is_own else ""

    def describe(self, observation: Any, info: Mapping[str, Any]) -> str:
        """Return the state as text. By default this is the "ansi" rendering, with highlighted parts in [brackets]."""
        return plain(rendered_text(self._wrapped, self.id))

    def _described(self) -> str:
        text = self.describe(self._seen, self._info)
        if not isinstance(text, str):
            require_kept(self, self._task, f"describe() gives text, not {text!r:.60}")
        return text

    def won(self, observation: Any, reward: float, info: Mapping[str, Any]) -> bool:
        """Return whether an episode that has just terminated is won: by default, if its last reward was positive."""
        return reward > 0

    # ---- TextEnv ---------------------------------------------------------------------------------------------------

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        require_known(self.name, "split", split, SPLITS)
        require_known(self.name, "stage", stage or "full", self.stages)
        seeds = range(FIRST_SEED[split], FIRST_SEED[split] + self.sizes[split])
        return [Task(f"{self.name}-{seed}", self.name, {"seed": seed}, split) for seed in seeds]

    def begin(self, task: Task) -> None:
        self._seen, self._info = self._wrapped.reset(seed=task.payload["seed"])
        self._past, self._last = self.rules, "none"
        self._text = self._described()

    def apply(self, action: str) -> Outcome:
        index = self.names.index(action)
        if self.show_history:
            self._past += f"{self._text.rstrip()}\n> {action}\n"
        self._seen, reward, terminated, truncated, self._info = self._wrapped.step(index)
        if not is_finite(reward):
            raise ValueError(f"rewards are finite numbers, not {reward!r:.60}")
        self._last, self.earned = action, float(reward)
        self._text = self._described()
        if is_out_of_time(self._info):
            terminated, truncated = False, True
        won = terminated and self.won(self._seen, float(reward), self._info)
        events = ("won",) if won else ()
        return Outcome(float(reward) / self.scale, bool(terminated), bool(won), events, bool(truncated))

    def history(self) -> str:
        return self._past

    def state(self) -> str:
        return f"{self._text.rstrip()}\nLast: {self._last}\n"

    def legal_actions(self) -> Sequence[str]:
        """Return the names of the actions, without those that `info["action_mask"]` excludes, if there is a mask."""
        mask = self._info.get("action_mask")
        if mask is None:
            return self.names
        return tuple(name for name, legal in zip(self.names, np.asarray(mask).tolist(), strict=True) if legal)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the wrapped environment, which may not be picklable. `__setstate__` replays the episode."""
        return {key: value for key, value in self.__dict__.items() if key not in ("_wrapped", *self.not_saved)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the wrapped environment again, and go back to the same point of the episode."""
        if "_wrapped" in self.__dict__:
            self._wrapped.close()
        self.__dict__.update(state)
        self._is_closed = False
        self._wrapped = self._make()
        try:
            if self._task is not None:
                self.restore(self.save())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the wrapped environment."""
        self._wrapped.close()


def look_for_gym(id: str) -> None:
    """Import the module that an id names ("module:Name-v0"), also from the current folder.

    It registers environments, whose classes may lie in further modules of that folder, which gymnasium imports later.
    """
    module, colon, _ = id.partition(":")
    if not colon:
        return
    before = set(gym.registry)
    look_here(module)
    importlib.import_module(module)
    for name in set(gym.registry) - before:
        if isinstance(entry_point := gym.registry[name].entry_point, str):
            look_here(entry_point.partition(":")[0])


def is_out_of_time(info: Mapping[str, Any]) -> bool:
    """Tell whether an end is a limit of time, as environments of gymnasium's older interface report it."""
    return bool(info.get("TimeLimit.truncated", False))


def refuse_wrong_settings(spec: Any, settings: Mapping[str, Any], what: str) -> None:
    """Explain which settings an environment does not take. Called when making the environment has failed.

    Args:
        spec: the environment's entry in gymnasium's registry, or in a similar registry.
        what: the environment in words, for errors.

    Raises:
        UserError: a setting is unknown (with the nearest one), has the wrong type, or is missing.
    """
    try:
        creator = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    except Exception:  # its code cannot be imported, which is not the settings' fault
        return
    if creator is not None:
        checked(creator, {**spec.kwargs, **settings}, what, "env.settings")


def draws_text(id: str) -> bool:
    """Tell whether an environment's class says, before it is made, that it has an "ansi" rendering."""
    name = id.rpartition(":")[2]
    with suppress(Exception):  # making the environment will say what is wrong with it
        look_for_gym(id)
        spec = gym.registry.get(name)
        if spec is not None:
            creator = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
            return "ansi" in getattr(creator, "metadata", {}).get("render_modes", ())
    return False


def rendered_text(env: gym.Env[Any, Any], id: str) -> str:
    """Return the "ansi" rendering of an environment: a text, or a stream of text.

    Raises:
        UserError: the rendering is something else, as of an environment that prints it.
    """
    rendered: Any = env.render()
    if isinstance(rendered, io.StringIO):
        rendered = rendered.getvalue()
    if not isinstance(rendered, str):
        about = f"its 'ansi' rendering is {rendered!r:.60}, and not text"
        raise UserError(f"{id}: {about}; make a subclass of GymTextEnv with its own describe()")
    return rendered


def plain(text: str) -> str:
    """Remove escape codes from a terminal rendering, and put highlighted parts in [brackets].

    In some environments, gymnasium marks the agent by colour alone, so without brackets the agent would disappear.
    """
    parts: list[str] = []
    is_marked, is_open, start = False, False, 0  # a bracket opens before the first character of a highlight
    for code in [*ESCAPES.finditer(text), None]:
        shown = text[start : code.start() if code else len(text)]
        if shown:
            parts.append("[" + shown if is_marked and not is_open else shown)
            is_open = is_marked
        if is_open and (code is None or code[1] is not None):
            parts.append("]")
            is_open = False
        if code is not None:
            start = code.end()
            if code[1] is not None:
                is_marked = not set(re.split("[;:]", code[1])) <= PLAIN_AGAIN
    return "".join(parts)
