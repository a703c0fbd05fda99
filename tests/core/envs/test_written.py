"""Environments that are answered in writing: what may be written, and what the environment hears."""

from collections.abc import Sequence

import pytest

from reflectrl.core.envs.base import SPLITS, Outcome, require_known
from reflectrl.core.envs.written import SEND, WrittenEnv
from reflectrl.core.types import Task, UserError


class Greeting(WrittenEnv):
    """Two greetings are wanted, one after the other; what is heard is kept."""

    def __init__(self, pieces: Sequence[str] = ("good", "day", "night"), joint: str = " ") -> None:
        super().__init__(pieces, length=2, answers=2, joint=joint)

    def tasks(self, split, stage=None):
        require_known("greeting", "split", split, SPLITS)
        require_known("greeting", "stage", stage or "full", self.stages)
        return [Task(f"{split}-{hour}", "greeting", {"hour": hour, "of": split}, split) for hour in ("day", "night")]

    def begin(self, task):
        self.heard = []

    def question(self):
        return f"It is {self.task.payload['hour']}, and {len(self.heard)} greeted.\n"

    def answer(self, text):
        self.heard.append(text)
        right = text == f"good {self.task.payload['hour']}"
        return Outcome(float(right), terminated=len(self.heard) == 2, success=right and len(self.heard) == 2)


def take(env: WrittenEnv, *actions: str) -> list[float]:
    """The rewards of these actions."""
    return [env.step(env.legal_actions().index(action))[1] for action in actions]


def test_a_text_is_written_in_pieces_and_earns_when_it_is_sent() -> None:
    env = Greeting()
    env.reset(options={"task": env.tasks("train")[1]})
    assert take(env, "good", "night", SEND) == [0.0, 0.0, 1.0]
    assert take(
        env,
        "day",
        SEND,
    ) == [0.0, 0.0]
    assert env.heard == ["good night", "day"] and env.done and not env.success


def test_nothing_is_not_sent_and_a_full_text_can_only_be_sent() -> None:
    env = Greeting()
    text, _ = env.reset(options={"task": env.tasks("train")[0]})
    assert SEND not in env.legal_actions() and text.endswith("Written: nothing\n")
    take(env, "day")
    assert env.legal_actions() == ("good", "day", "night", SEND)
    take(env, "day")
    assert env.legal_actions() == (SEND,) and env.state().endswith("Written: day day\n")
    take(env, SEND, "good")
    assert env.written == ("good",) and env.heard == ["day day"]


def test_a_point_half_way_through_a_text_can_be_restored() -> None:
    env, other = Greeting(), Greeting()
    env.reset(options={"task": env.tasks("train")[0]})
    take(env, "day", SEND, "good")
    other.restore(env.save())
    assert other.written == ("good",) and take(other, "day", SEND) == [0.0, 1.0] and other.success


def test_a_space_is_written_by_its_name() -> None:
    env = Greeting("ab ", "")
    env.reset()
    take(env, "a", "space", SEND)
    assert env.heard == ["a "]


@pytest.mark.parametrize("pieces", ["", ["hello", SEND]])
def test_pieces_that_cannot_be_are_refused(pieces: Sequence[str]) -> None:
    with pytest.raises(UserError, match="Greeting: pieces are letters or words"):
        Greeting(pieces)
