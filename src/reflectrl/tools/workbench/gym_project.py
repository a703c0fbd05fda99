"""`init --gym ID`: the files of a project that plays a gymnasium environment in words.

The environment is made once and played at random for a moment, so the files fit its actions, its observations and the
rewards of its ends.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import jinja2

from reflectrl.core.advice import install
from reflectrl.core.envs.adapter import look_for_gym, rendered_text
from reflectrl.core.plugins import one_line
from reflectrl.core.types import UserError
from reflectrl.tools.workbench.gym_rewards import SuccessRule, play_at_random, success_rule

WIDEST = 16
"""Largest number of values of an observation that is put into words."""
LONGEST = 100
"""Largest horizon of a new project. Short episodes are learned from sooner."""
MINIGRID = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done")
COMMON = {
    ("FrozenLake", 4): ("left", "down", "right", "up"),
    ("CliffWalking", 4): ("up", "right", "down", "left"),
    ("Blackjack", 2): ("stick", "hit"),
    ("Taxi", 6): ("south", "north", "east", "west", "pickup", "dropoff"),
    ("CartPole", 2): ("push left", "push right"),
    ("MountainCar", 3): ("push left", "wait", "push right"),
    ("Acrobot", 3): ("turn left", "wait", "turn right"),
}
"""Names of actions that gymnasium gives only in its documentation: (start of the id, number of actions) → names."""


@dataclass(frozen=True)
class GymProject:
    """Facts about a gymnasium environment that its project is written from.

    Attributes:
        id: the environment's id.
        actions: a name per action.
        named: True if the names say what the actions do; False if they are numbers.
        is_grid: the environment belongs to `minigrid`.
        needs_done: the action "done" of `minigrid` does something.
        words: lines of code that put an observation into words; () if the environment draws itself as text.
        success: rule by which an end counts as won.
        paid: rewards of random play in a sentence, from which the rule was inferred.
        horizon: largest number of steps of an episode.
        limit: the environment's own limit of steps; 0 if none is known.
    """

    id: str
    actions: tuple[str, ...]
    named: bool
    is_grid: bool
    needs_done: bool
    words: tuple[str, ...]
    success: SuccessRule
    paid: str
    horizon: int
    limit: int

    @property
    def assumption(self) -> str:
        """The rule of success that was inferred, and what it was inferred from, for the user to check."""
        return f"{self.id}: {self.paid} Assumed: success means that {self.success.words}."

    def environment(self, template: str, class_name: str, name: str) -> str:
        """Fill in the template of a project's `__init__.py`."""
        page = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, autoescape=False)  # noqa: S701
        return page.from_string(template).render(vars(self) | {"class_name": class_name, "name": name})


def look_at(id: str) -> GymProject:
    """Make a gymnasium environment, play it at random for a moment, and describe what a project needs to know.

    Raises:
        UserError: there is no such environment, its actions are not discrete, or it shows only pictures.
    """
    env = _make(id)
    try:
        space = env.action_space
        if not isinstance(space, gym.spaces.Discrete) or space.start != 0:
            raise UserError(
                f"{id}: actions are {space}; reflectrl chooses among listed actions, so wrap it to be Discrete"
            )
        is_grid = type(env.unwrapped).__module__.startswith("minigrid.")
        words = () if is_grid or _draws_itself(env, id) else words_for(env.observation_space, id)
        actions, named = _action_names(env, id, int(space.n))
        if is_grid and len(actions) <= len(MINIGRID):  # some of its worlds take only the first few
            actions, named = MINIGRID[: len(actions)], True
        rewards, limit = play_at_random(env), _limit(env)
        return GymProject(
            id=id,
            actions=actions,
            named=named,
            is_grid=is_grid,
            needs_done=is_grid and _needs_done(env),
            words=words,
            success=success_rule(rewards),
            paid=rewards.in_words(),
            horizon=min(limit or LONGEST, LONGEST),
            limit=limit,
        )
    except (UserError, KeyboardInterrupt):
        raise
    except Exception as error:  # playing runs the environment's own code
        raise UserError(f"{id} raised {one_line(error)}") from error
    finally:
        env.close()


def _make(id: str) -> gym.Env[Any, Any]:
    """Make the environment. Packages of environments register their ids when they are imported."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if id.startswith(("MiniGrid", "BabyAI")):
        try:
            import minigrid  # noqa: F401
        except ImportError as error:
            raise UserError(f"{id} needs minigrid; {install('babyai')}") from error
    try:
        look_for_gym(id)
        return gym.make(id, disable_env_checker=True)
    except gym.error.UnregisteredEnv as error:
        matches = difflib.get_close_matches(id, gym.registry, n=1)
        advice = f"did you mean {matches[0]!r}?" if matches else "an id of another package is written package:Id"
        raise UserError(f"gymnasium knows no {id!r} ({advice})") from error
    except Exception as error:  # making runs the environment's own code
        raise UserError(f"gymnasium cannot make {id!r}: {one_line(error)}") from error


def _draws_itself(env: gym.Env[Any, Any], id: str) -> bool:
    """Tell whether an environment can be rendered as text. Some say so, and print it or return something else."""
    if "ansi" not in env.metadata.get("render_modes", ()):
        return False
    drawing = gym.make(id, disable_env_checker=True, render_mode="ansi")
    try:
        drawing.reset(seed=0)
        return bool(rendered_text(drawing, id))
    except UserError:
        return False
    finally:
        drawing.close()


def words_for(space: Any, id: str) -> tuple[str, ...]:
    """Return lines of code that put an observation of a space into words. The last of them returns the text.

    Raises:
        UserError: the observations are pictures, or too many numbers.
    """
    match space:
        case gym.spaces.Discrete() | gym.spaces.Text():
            return ('return f"Observation: {observation}."',)
        case gym.spaces.Tuple() if all(isinstance(part, gym.spaces.Discrete) for part in space):
            names = [f"value_{i}" for i in range(len(space))]
            text = ", ".join(f"value {i} is {{{name}}}" for i, name in enumerate(names))
            return (f"{', '.join(names)} = observation", f'return f"{text}."')
        case gym.spaces.Box() | gym.spaces.MultiBinary() | gym.spaces.MultiDiscrete() if _size(space) <= WIDEST:
            # Significant digits, since two decimals would turn small numbers into 0.00.
            floats = isinstance(space, gym.spaces.Box) and space.dtype.kind == "f"
            form = "value:.3g" if floats else "value"
            return (
                f'values = [f"value {{i}} is {{{form}}}" for i, value in enumerate(observation.ravel())]',
                'return ", ".join(values) + "."',
            )
        case gym.spaces.Dict() if all(_size(part) <= WIDEST for part in space.values()):
            return (
                'lines = [f"{name}: {value}" for name, value in observation.items()]',
                'return "\\n".join(lines)',
            )
    raise UserError(
        f"{id}: observations are {space!s:.60}, which cannot be put into words here; write a class from GymTextEnv"
        " with its own describe(), as docs/environments.md shows"
    )


def _size(space: Any) -> int:
    """Return the number of values of an observation; a space of unknown kind counts as too large."""
    if isinstance(space, gym.spaces.Discrete | gym.spaces.Text):
        return 1
    shape = getattr(space, "shape", None)
    if shape is None:
        return WIDEST + 1
    size = 1
    for length in shape:
        size *= length
    return size


def _action_names(env: gym.Env[Any, Any], id: str, count: int) -> tuple[tuple[str, ...], bool]:
    """Return a name per action, and whether the names say what the actions do."""
    if type(env.unwrapped).__module__.startswith("gymnasium.envs."):
        for (start, actions), names in COMMON.items():
            if id.startswith(start) and actions == count:
                return names, True
    meanings = getattr(env.unwrapped, "get_action_meanings", None)
    if callable(meanings):
        names = tuple(name.lower() for name in meanings() if isinstance(name, str))
        if len(names) == len(set(names)) == count:
            return names, True
    # An enumeration may list more actions than this environment takes, and in another order.
    members = getattr(getattr(env.unwrapped, "actions", None), "__members__", {})
    by_index = {getattr(member, "value", None): name for name, member in members.items()}
    if all(index in by_index for index in range(count)):
        return tuple(by_index[index].replace("_", " ") for index in range(count)), True
    return tuple(f"action {i}" for i in range(count)), False


def _needs_done(env: gym.Env[Any, Any]) -> bool:
    """Tell whether the action "done" of minigrid does something in this environment, as in GoToDoor."""
    steps = [vars(kind).get("step") for kind in type(env.unwrapped).__mro__ if kind.__name__ != "MiniGridEnv"]
    return any("done" in code.co_names for step in steps if (code := getattr(step, "__code__", None)) is not None)


def _limit(env: gym.Env[Any, Any]) -> int:
    """Return the registered limit of steps, or the environment's own; 0 if there is none."""
    limit = getattr(env.spec, "max_episode_steps", None) or getattr(env.unwrapped, "max_steps", None)
    return max(0, int(limit or 0))
