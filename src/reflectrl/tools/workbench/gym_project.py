"""`init --gym ID`: the files of a project that plays a gymnasium environment in words.

The environment is made once and played at random for a moment, so the files fit its actions, its observations and the
rewards of its ends.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import jinja2

from reflectrl.core.advice import install
from reflectrl.core.envs.adapter import look_for_gym
from reflectrl.core.plugins import one_line
from reflectrl.core.types import UserError

EPISODES, STEPS = 30, 100
"""Random play that is examined: number of episodes, and their largest number of steps."""
WIDEST = 16
"""Largest number of values of an observation that is put into words."""
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
        words: lines of code that put an observation into words; () if the environment draws itself as text.
        ends: "cost" if every end of random play paid less than 0, "pay" if every end paid more than 0: in both cases
            the reward of an end does not say whether it is a win. "tell" otherwise.
        horizon: registered limit of steps, or a guess.
    """

    id: str
    actions: tuple[str, ...]
    named: bool
    is_grid: bool
    words: tuple[str, ...]
    ends: Literal["cost", "pay", "tell"]
    horizon: int

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
        draws = "ansi" in env.metadata.get("render_modes", ())
        words = () if is_grid or draws else words_for(env.observation_space, id)
        actions, named = _action_names(env, id, int(space.n))
        if is_grid and len(actions) == len(MINIGRID):
            actions, named = MINIGRID, True
        return GymProject(id, actions, named, is_grid, words, _ends(env), _horizon(env))
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
            form = "value:.2f" if isinstance(space, gym.spaces.Box) else "value"
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
    for (start, actions), names in COMMON.items():
        if id.startswith(start) and actions == count:
            return names, True
    meanings = getattr(env.unwrapped, "get_action_meanings", None)
    if callable(meanings):
        names = tuple(str(name).lower() for name in meanings())
        if len(set(names)) == count:
            return names, True
    listed = getattr(env.unwrapped, "actions", None)
    members = getattr(listed, "__members__", {})
    if len(members) == count:
        return tuple(name.replace("_", " ") for name in members), True
    return tuple(f"action {i}" for i in range(count)), False


def _ends(env: gym.Env[Any, Any]) -> Literal["cost", "pay", "tell"]:
    """Play at random, and return what the rewards of episodes that ended by themselves have in common."""
    env.action_space.seed(0)
    rewards = []
    for seed in range(EPISODES):
        env.reset(seed=seed)
        for _ in range(STEPS):
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated:
                rewards.append(float(reward))
            if terminated or truncated:
                break
    if not rewards:  # in MountainCar and CliffWalking every step costs, and random play does not reach the goal
        return "cost" if float(reward) < 0 else "tell"
    if all(reward < 0 for reward in rewards):
        return "cost"
    return "pay" if len(rewards) == EPISODES and all(reward > 0 for reward in rewards) else "tell"


def _horizon(env: gym.Env[Any, Any]) -> int:
    """Return the registered limit of steps if there is one, at most 100."""
    limit = getattr(env.spec, "max_episode_steps", None) or getattr(env.unwrapped, "max_steps", None) or STEPS
    return min(int(limit), STEPS)
