"""`make`: an env section becomes an environment, or one line says why not."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from corridor import CorridorEnv

from reflectrl.core.config import Word
from reflectrl.core.envs import make
from reflectrl.core.types import UserError


class Room(CorridorEnv):
    """A plug-in whose arguments are of all kinds."""

    made: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, depth: int, *, names: tuple[str, ...] = (), table: Mapping[str, Any] | None = None) -> None:
        if depth > 9:
            raise ValueError(f"too\ndeep: {depth}")
        super().__init__()
        self.made.append({"depth": depth, "names": names, "table": table})


class AnyRoom(CorridorEnv):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options


class Leaving(CorridorEnv):
    def __init__(self, how: str = "exit") -> None:
        raise {"exit": SystemExit(3), "generator": GeneratorExit(), "ctrl-c": KeyboardInterrupt()}[how]


def no_environment(size: int = 3) -> int:
    return size


ROOM = f"{__name__}:Room"


def refusal(**section: Any) -> str:
    with pytest.raises(UserError) as caught:
        make(section)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_name_and_arguments_make_an_environment() -> None:
    env = make({"name": "corridor", "impossible": "hidden", "slippery": True, "horizon": 0})
    env.reset(seed=0)
    assert isinstance(env, CorridorEnv) and (env.impossible, env.slippery) == ("hidden", True)


def test_words_of_the_command_line_become_what_the_class_asks_for() -> None:
    make({"name": ROOM, "depth": Word("3"), "names": Word('["a", "b"]'), "table": {"x": 1}})
    assert Room.made[-1] == {"depth": 3, "names": ("a", "b"), "table": {"x": 1}}


def test_a_class_that_takes_everything_gets_everything() -> None:
    env = make({"name": f"{__name__}:AnyRoom", "size": 3, "colour": "red"})
    assert isinstance(env, AnyRoom) and env.options == {"size": 3, "colour": "red"}


@pytest.mark.parametrize(
    ("section", "fragments"),
    [
        ({}, ["names no environment", "package.module:Class", "corridor"]),
        ({"name": 3}, ["names no environment"]),
        ({"name": "corridr"}, ["'corridr'", "'corridor'"]),
        ({"name": "corridor", "slipery": True}, ["'corridor'", "'slipery'", "'slippery'"]),
        ({"name": "corridor", "slippery": 1}, ["'slippery'", "true or false"]),
        ({"name": "corridor", "length": 1.5}, ["'length'", "whole number"]),
        ({"name": "corridor", "length": "6"}, ["'length'", "whole number"]),
        ({"name": "corridor", "impossible": "gone"}, ["'impossible'", "offered, hidden"]),
        ({"name": ROOM}, ["needs 'depth'", "env.depth"]),
        ({"name": ROOM, "depth": 10}, ["Room", "ValueError: too deep: 10"]),
        ({"name": f"{__name__}:no_environment"}, ["TextEnv", "a function"]),
        ({"name": f"{__name__}:ROOM"}, ["TextEnv", "a str"]),
        ({"name": f"{__name__}:Rom"}, ["cannot be loaded", "Rom"]),
    ],
)
def test_a_mistake_is_named_in_one_line(section: dict[str, Any], fragments: list[str]) -> None:
    line = refusal(**section)
    assert all(fragment in line for fragment in fragments), line


def test_a_list_may_be_typed_on_the_command_line() -> None:
    make({"name": ROOM, "depth": 1, "names": Word("heat,cool")})
    assert Room.made[-1]["names"] == ("heat", "cool")


@pytest.mark.parametrize("how", ["exit", "generator"])
def test_whatever_a_plugin_raises_while_it_is_made_is_one_line(how: str) -> None:
    assert "cannot be made" in refusal(name=f"{__name__}:Leaving", how=how)


def test_ctrl_c_while_an_environment_is_made_stays_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt):
        make({"name": f"{__name__}:Leaving", "how": "ctrl-c"})
