"""Portals: journeys, unseen tasks, the three kinds of analysis, and bad arguments."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.core.envs import make
from reflectrl.core.types import UserError
from reflectrl.tools.workbench.check import check_text_env
from reflectrl.wings.portals.env import ROOMS, PortalsEnv

SPLITS = ("train", "validation", "test")
TEXT = "Portals from a to h lead to: e h b a g d c f.\n"
RING = "aegcbhfd"  # a leads to e, e to g, and so on, and d back to a


def begun(number: int = 0, **arguments) -> PortalsEnv:
    env = PortalsEnv(**arguments)
    env.reset(options={"task": env.tasks("test")[number]})
    return env


def destination(text: str, start: str, portals: int) -> str:
    """Follow the portals as a reader of the text would, without the environment's own map."""
    rooms = dict(zip("abcdefgh", text.removesuffix(".\n").split(": ")[1].split(), strict=True))
    for _ in range(portals):
        start = rooms[start]
    return start


@settings(deadline=None)
@given(st.integers(0, 299), st.integers(1, 7))
def test_the_expert_names_the_room_that_a_reader_finds(number, portals):
    env = begun(number, portals=portals)
    for start in env.starts:
        expected = destination(env.history(), start, portals)
        assert f"in {start} goes {portals} portals" in env.state()
        assert ROOMS[env.teacher.expert_action(env)] == expected != start
        _, reward, *_ = env.step(ROOMS.index(expected))
        assert reward == pytest.approx(1 / 3)
    assert env.success


def test_the_text_lists_the_portals_room_by_room():
    env = begun()
    env.set_state((dict(zip(RING, RING[1:] + RING[0], strict=True)), "c", 0))
    assert env.observe().text == f"{TEXT}The parcel in c goes 4 portals.\n"


def test_a_wrong_room_ends_the_task():
    env = begun()
    _, reward, terminated, _, info = env.step((env.teacher.expert_action(env) + 1) % 8)
    assert (reward, terminated, info["success"], info["events"]) == (0.0, True, False, ["wrong room"])


def test_no_ring_is_in_two_splits_and_no_room_is_the_likelier_answer():
    env = PortalsEnv()
    rings = {split: {task.payload["ring"] for task in env.tasks(split)} for split in SPLITS}
    assert [len(rings[split]) for split in SPLITS] == [3000, 100, 300]
    assert len(set.union(*rings.values())) == 3400
    answers = [ROOMS[begun(number).teacher.expert_action(begun(number))] for number in range(300)]
    assert all(20 <= answers.count(room) <= 60 for room in ROOMS)  # 37.5 expected


@pytest.mark.parametrize(
    ("analysis", "written"), [("steps", "b h f d"), ("answer", "d"), ("filler", "wait wait wait d")]
)
def test_the_analyst_writes_steps_or_the_answer_or_filler_of_the_same_length(analysis, written):
    env = begun(analysis=analysis)
    env.set_state((dict(zip(RING, RING[1:] + RING[0], strict=True)), "c", 0))
    assert env.teacher.analyse(env) == written


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"portals": 8}, "1..7"),
        ({"parcels": 0}, "1..8"),
        ({"analysis": "step"}, "did you mean 'steps'"),
        ({"train": 5000}, "at most 5040"),
        ({"test": 0}, "positive"),
    ],
)
def test_bad_arguments_are_one_line(arguments, words):
    with pytest.raises(UserError, match="portals: ") as error:
        PortalsEnv(**arguments)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_it_keeps_the_promises_of_an_environment_and_is_found_by_name():
    check_text_env(PortalsEnv)
    assert isinstance(make({"name": "portals", "portals": 2}), PortalsEnv)
