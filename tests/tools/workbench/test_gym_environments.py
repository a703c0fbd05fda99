"""Gymnasium environments as text keep the promises."""

from functools import partial

import pytest

from reflectrl.core.envs.adapter import GymTextEnv
from reflectrl.tools.workbench.check import check_text_env

TAXI = ("south", "north", "east", "west", "pickup", "dropoff")
LAKE = ("left", "down", "right", "up")


@pytest.mark.parametrize(
    "make",
    [
        partial(GymTextEnv, "Taxi-v4", TAXI, train=20, validation=5, test=5),
        partial(GymTextEnv, "FrozenLake-v1", LAKE, 30, history=True, settings={"desc": ["SFF", "FHF", "FFG"]}),
    ],
)
@pytest.mark.filterwarnings("ignore:all tasks begin with the same text")
def test_an_adapted_environment_keeps_the_promises(make):
    check_text_env(make)


def test_equal_starts_in_every_split_are_pointed_out():
    with pytest.warns(UserWarning, match="begin with the same text"):
        check_text_env(partial(GymTextEnv, "CliffWalking-v1", ("up", "right", "down", "left"), 30))
