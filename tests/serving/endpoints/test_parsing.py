"""Reading what chat models write."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.serving.endpoints.parsing import problem_of, read_action, read_reflection

ACTIONS = ("left", "right", "go to drawer 1", "go to drawer 10", "take", "take key")


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("left", "left"),
        ("Action: left", "left"),
        ("**Action:** `Go to drawer 10`.", "go to drawer 10"),
        ("Left would be wrong.\nAction: right", "right"),
        ("Action: left\nNo, wait.\nAction: right", "right"),
        ("<think>Action: left</think>right!", "right"),
        ("I would take key now", "take key"),
        ("Action: go to drawer 1 because it is near", "go to drawer 1"),
        ('{"reason": "x"}\nAction: "take"', "take"),
        ("either left or right", None),
        ("fly", None),
        ("", None),
        ("<think>left", None),
    ],
)
def test_actions_are_found_where_they_are_meant(answer, action):
    assert read_action(answer, ACTIONS) == (None if action is None else ACTIONS.index(action))


@settings(deadline=None)
@given(st.text(), st.lists(st.text(), min_size=1, max_size=5))
def test_any_answer_gives_a_legal_action_or_none(answer, actions):
    found = read_action(answer, actions)
    assert found is None or 0 <= found < len(actions)


WORDS = st.lists(st.from_regex(r"[a-z]{1,8}( [a-z0-9]{1,5}){0,2}", fullmatch=True), min_size=1, max_size=6, unique=True)


@settings(deadline=None)
@given(WORDS, st.data())
def test_what_is_copied_from_the_list_is_understood(actions, data):
    chosen = data.draw(st.integers(0, len(actions) - 1))
    assert read_action(f"Some thought.\nAction: {actions[chosen]}", actions) == chosen
    assert read_action(actions[chosen], actions) == chosen


@settings(deadline=None)
@given(st.text())
def test_a_reflection_is_one_printable_line(answer):
    found = read_reflection(answer)
    assert found == found.strip() and (found.isprintable() or not found)


def test_reflections_are_found():
    assert read_reflection("Reflection: The key\nis near.\nAction: take") == "The key is near."
    assert read_reflection("The key is near.\nAction: take") == "The key is near."
    assert read_reflection("<think>x</think>\n**Reflection:** Go on.") == "Go on."


@pytest.mark.parametrize(
    "reflection",
    [
        "As the hint says, go left.",
        "I was told to go left.",
        "The best action is left.",
        "According to the expert one goes left.",
        "You told me that left is best.",
        "The best action now is left.",  # this and the next: SmolLM2-135M's
        "Let's get one more thing. Write the reflection of somebody who does not know that.",
    ],
)
def test_what_gives_away_that_the_action_was_known_is_a_leak(reflection):
    assert "gives away" in str(problem_of(reflection, 400, "source", "left"))


def test_what_cannot_be_taught_is_named_and_the_rest_is_let_through():
    good = "The key lies to the left, and the door is behind it."
    assert problem_of(good, 400, "source", "left") is None
    assert "names the action" in str(problem_of(good, 400, "action", "left"))
    assert problem_of("The key is near; its place is on the other side.", 400, "action", "left") is None
    assert "longer than 20" in str(problem_of(good, 20, "source", "left"))
    assert "no reflection" in str(problem_of("", 20, "source"))
    assert "choice" in str(problem_of("Actions: 1: left", 90, "source"))
