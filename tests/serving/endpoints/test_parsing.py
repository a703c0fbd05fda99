"""Reading what chat models write."""

import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.serving.endpoints.meaning import LOOKS_OF
from reflectrl.serving.endpoints.parsing import problem_of, read_action, read_reflection, read_verdict

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


HOUSE = (
    "go north",
    "take key",
    "open Bob's box",
    "go to east-wing",
    "café",
    "left",
    "right",
    "go to drawer 1",
    "go to drawer 10",
)


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        # The model invents what it sees next, and goes on.
        ("Action: take key\nObservation: You hold the key.\nAction: go north", "take key"),
        ("Thought: a. Action: take key Observation: You hold it. Thought: b. Action: go north", "take key"),
        (
            "Action: take key<|im_end|>\n<|im_start|>user\nTaken.<|im_end|>\n<|im_start|>assistant\nAction: left",
            "take key",
        ),
        ("Action: take key<end_of_turn>\n<start_of_turn>user\nok<end_of_turn>\n<start_of_turn>model\nleft", "take key"),
        ("<|start_header_id|>assistant<|end_header_id|>\n\nAction: take key<|eot_id|>", "take key"),
        ("Action: take key</s> Action: left", "take key"),
        ("Action: take key\nUser: done.\nAction: left", "take key"),
        ("Action: take key\n\n### Human:\nWell done.\nAction: left", "take key"),
        ("Action 1: take key\nAction 2: go north", "take key"),
        ("Action: take key\nThought: Now I can leave, but not yet.\nAction: go north", "take key"),
        ("> take key\nYou take the key.\n> go north", "take key"),
        ("take key\nYou take the key.\ngo north", "take key"),
        # It takes its first words back.
        ("Action: left\nThat would hit the wall.\nAction: right", "right"),
        ("Action: left? Action: right", "right"),
        ("Action: left\nFinal action: right", "right"),
        ("left\nNo, wait.\nright", "right"),
        ("Action: left\nWait, that is a wall.", None),
        # It only mentions or denies an action.
        ("I should not go north.", None),
        ("I should not go north. I take key.", "take key"),
        ("Don\u2019t go north, take key", "take key"),
        ("Never left but right", "right"),
        ("Action: not left", None),
        ("Action: right instead of left", "right"),
        ("Instead of left I choose right", "right"),
        ("Left would be fatal", None),
        ("left is not legal here", None),
        ("Neither left nor right", None),
        ("Should I go north?", None),
        ("If I take key it is over", None),
        ("I have already tried left", None),
        # It says nothing where it should say something.
        ("I could go north.\nAction:", None),
        ("It is north, so go north.\nAction:\nReason: left is near", None),
        ("Action:\n```\ntake key\n```", "take key"),
        # Other forms of a statement.
        ('```json\n{"thought": "left or right?", "action": "take key"}\n```', "take key"),
        ("<thought>left or right</thought><action>take key</action>", "take key"),
        ("My final answer: **take key**", "take key"),
        # Other characters of the same looks.
        ("Action: open Bob\u2019s box", "open Bob's box"),
        ("Action: open Bob\u00b4s box", "open Bob's box"),
        ("Action: go to east\u2011wing", "go to east-wing"),
        ("Action: take\u00a0key", "take key"),
        ("Action: take\u202fkey", "take key"),
        ("Action\uff1a\uff54\uff41\uff4b\uff45\u3000\uff4b\uff45\uff59", "take key"),
        ("Action: cafe\u0301", "café"),
        ("Action: \u201ctake key\u201d", "take key"),
        ("Action: ta\u00adke key", "take key"),
    ],
)
def test_what_is_meant_is_played_and_what_is_only_mentioned_is_not(answer, action):
    assert read_action(answer, HOUSE) == (None if action is None else HOUSE.index(action))


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("Action: go to drawer 1", None),
        ("Action: go to drawer 1\n", "go to drawer 1"),
        ("go to drawer 1", None),
        ("Action: go to drawer 10", "go to drawer 10"),
        ("left", "left"),
        ("Action: take key\nObservation: You ho", "take key"),
        ("Action: take k", None),
        ("I think that left is", None),
        ("Action: left or", None),
        ("Action: left\nNo, wait.\nAction: ri", None),
    ],
)
def test_the_end_of_an_answer_that_was_cut_off_is_not_guessed(answer, action):
    assert read_action(answer, HOUSE, cut=True) == (None if action is None else HOUSE.index(action))


LOOKS = {plain: looks for plain, looks in LOOKS_OF.items() if plain in "'-"} | {" ": "\u00a0\u2007\u202f\u3000\u2009"}
PHRASES = st.from_regex(r"[a-z]{2,7}([ '-][a-z]{2,7}){0,3}", fullmatch=True)


@settings(deadline=None)
@given(PHRASES, st.data())
def test_a_character_of_the_same_looks_is_the_same_character(action, data):
    for plain, looks in LOOKS.items():
        action_alike = action.replace(plain, data.draw(st.sampled_from(looks)))
        assert read_action(f"Action: {action_alike}", ["wait 99", action]) == 1
        assert read_action(f"I choose {action_alike}", ["wait 99", action]) == 1
        assert read_action(f"Action: {action}", ["wait 99", action_alike]) == 1


@settings(deadline=None)
@given(
    st.text(st.characters(codec="utf-8", categories=("L", "N")), min_size=1),
    st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]),
)
def test_every_form_of_composed_characters_is_understood(action, form):
    assert read_action(f"Action: {unicodedata.normalize(form, action)}", [action]) == 0


VERBS = st.lists(
    st.sampled_from(["go north", "take key", "open box", "push cart", "look"]), min_size=2, max_size=5, unique=True
)
SEAMS = st.sampled_from(
    [
        "\nObservation: ok\nAction: ",
        "<|im_end|>\nAction: ",
        "\nAction: ",
        " Observation: ok Action: ",
        "\nUser: go on\nAction: ",
    ]
)


@settings(deadline=None)
@given(VERBS, SEAMS)
def test_of_invented_steps_the_first_is_meant(actions, seam):
    assert read_action("Action: " + seam.join(actions), actions) == 0


DENIALS = st.sampled_from(
    ["I will not {}.", "Don't {}", "Do not {}!", "We must never {}", "Avoid to {}", "{} would be wrong",
     "{} is not possible", "{} is illegal", "Shall I {}?", "If I {} it ends",
     "It makes no sense: I cannot {}", "Rather than {} I wait"]
)  # fmt: skip


@settings(deadline=None)
@given(VERBS, DENIALS, st.booleans())
def test_what_is_denied_or_asked_is_never_played(actions, denial, marked):
    sentence = denial.format(actions[0])
    assert read_action(f"Action: {sentence}" if marked else sentence, actions) is None
    assert read_action(f"{sentence}\nI {actions[1]}.", actions) in (None, 1)


@settings(deadline=None)
@given(VERBS, st.data())
def test_a_part_of_an_answer_never_means_another_action(actions, data):
    actions = [*actions, f"{actions[0]} 1", f"{actions[0]} 10"]
    chosen = data.draw(st.sampled_from(actions))
    answer = f"It is near. Action: {chosen}"
    for end in range(len(answer)):
        assert read_action(answer[:end], actions, cut=True) in (None, actions.index(chosen))


@pytest.mark.parametrize(
    "piece", ["Action:", "Action:\n", "\n", "<action>", '{"action": "', "[[A", "`", "not left ", "A,", "> "]
)
def test_a_long_answer_of_one_piece_is_read_in_time(piece):
    begun = time.process_time()
    for read in (read_verdict, read_reflection, lambda answer: read_action(answer, HOUSE)):
        read(piece * (300_000 // len(piece)))
    assert time.process_time() - begun < 5


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


def test_an_invented_observation_is_no_reflection():
    assert read_reflection("I need it.\nAction: take\nObservation: You win.\nAction: stop") == "I need it."
    assert read_reflection("It is near.<|im_end|>\n<|im_start|>user\nYou win.") == "It is near."


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
