"""Questions to decision models: read or refused, posed without an order, answered by the documented formulas."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reflectrl.core.types import Choice, Observation
from reflectrl.serving.server.decisions import read_decisions
from reflectrl.serving.server.observations import state_of_json
from reflectrl.serving.server.protocol import Refusal
from reflectrl.serving.server.questions import UNTRAINED, Familiar, Posed, Question, Verdict, pose, verdict
from reflectrl.serving.server.systemone import read_systemone
from tests.serving.server.test_observations import JSON

SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
NAMES = st.lists(st.text(min_size=1, max_size=9), min_size=2, max_size=12, unique=True)


def chosen(names: list[str], described: str | None = None) -> Question:
    return Question("q", None, tuple(f"{name}: {described}" if described else name for name in names), tuple(names))


def read_by(posed: Posed) -> dict[int, str]:
    """The action that each option stands for."""
    return {option: posed.observation.actions[action] for option, action in enumerate(posed.order)}


@SLOW
@given(NAMES, st.randoms(use_true_random=False), st.sampled_from(["listed", "unlisted", "free"]), st.booleans())
def test_the_order_of_options_changes_nothing_that_an_agent_reads(
    names: list[str], random: Any, form: str, in_any_order: bool
) -> None:
    shuffled = random.sample(names, len(names))
    seen = {"listed": Observation("h", "s", (*names, "another")), "unlisted": Observation("h", "s", ()), "free": None}
    state = state_of_json("a text")
    state = type(state)(state.value, state.text, seen[form])
    one, two = (pose(state, chosen(order), Familiar(in_any_order)) for order in (names, shuffled))
    assert one.observation == two.observation and one.is_trained == two.is_trained
    assert [read_by(one)[i] for i in range(len(names))] == names
    assert [read_by(two)[i] for i in range(len(names))] == shuffled
    assert one.is_trained == (form == "listed" or (form == "unlisted" and in_any_order))


def test_options_beside_the_listed_actions_are_another_question() -> None:
    state = state_of_json({"state": "s", "actions": ["a", "b"]})
    assert not pose(state, chosen(["a", "c"]), Familiar(in_any_order=True)).is_trained
    assert not pose(state, Question("q", "Is it a?", ("yes", "no")), Familiar(in_any_order=True)).is_trained


def test_names_are_actions_and_descriptions_are_for_strangers() -> None:
    listed, free = (
        pose(state_of_json(state), chosen(["b", "a"], "because"), Familiar())
        for state in ({"state": "s", "actions": ["a", "b"]}, "a text")
    )
    assert (listed.observation.actions, listed.order, listed.is_trained) == (("a", "b"), (1, 0), True)
    assert (free.observation.actions, free.order, free.is_trained) == (("a: because", "b: because"), (1, 0), False)


@SLOW
@given(st.lists(st.floats(0, 1), min_size=2, max_size=10))
def test_scores_and_confidence_follow_the_documented_formulas(weights: list[float]) -> None:
    validate = pytest.importorskip("jevcompat.validate")
    posed = Posed(Observation("", "", tuple(map(str, range(len(weights))))), tuple(range(len(weights))), True)
    total = sum(weights) or 1.0
    found = verdict(posed, [Choice("policy", "", choice=0, probs=tuple(w / total for w in weights))], 1, False)
    assert sum(found.probabilities) == pytest.approx(1)
    assert found.probabilities[found.best] == max(found.probabilities)
    assert found.confidence == pytest.approx(validate.choice_confidence(list(found.probabilities)), abs=1e-9)
    wanted = validate.score_confidence(list(found.probabilities), found.best)
    assert found.score_confidence == pytest.approx(wanted, abs=1e-9)
    assert found.score == pytest.approx(np.dot(range(len(weights)), found.probabilities))


@pytest.mark.parametrize("count", [2, 255])
def test_what_an_agent_was_never_trained_for_has_no_confidence(count: int) -> None:
    posed = Posed(Observation("", "", tuple(map(str, range(count)))), tuple(range(count)), False)
    certain: Verdict = verdict(posed, [Choice("policy", "", choice=0, probs=(1.0, *[0.0] * (count - 1)))], 1, False)
    assert certain.confidence == pytest.approx(UNTRAINED) and certain.best == 0


def test_both_protocols_forms_of_a_state_are_the_same_text() -> None:
    asked = {"task": "Find it.", "goal": "the key", "context": {"rooms": [1, 2]}}
    text = 'Task: Find it.\nGoal: the key\nContext: {"rooms": [1, 2]}'
    assert state_of_json(asked).text == state_of_json(text).text == f"{text}\n"
    assert state_of_json(["one", None, 2]).text == "- one\n- \n- 2\n"


FIELDS = st.sampled_from(["model", "state", "input", "questions", "assets"])
QUESTION = st.dictionaries(st.sampled_from(["type", "instructions", "criteria", "choices", "levels", "name"]), JSON)
TYPED = st.builds(
    lambda kind, rest: {**rest, "type": kind}, st.sampled_from(["noul", "choice", "score", "predicate"]), QUESTION
)
ASKED = st.builds(
    lambda state, questions: {"model": "m", "state": state, "input": state, "questions": questions},
    JSON, st.dictionaries(st.text(max_size=3), TYPED, max_size=2) | st.lists(TYPED, max_size=2),
)  # fmt: skip


@SLOW
@given(
    st.binary()
    | (JSON | st.dictionaries(FIELDS, JSON) | ASKED).map(lambda value: json.dumps(value, allow_nan=True).encode())
)
def test_any_body_is_read_or_refused(body: bytes) -> None:
    for read in (read_systemone, read_decisions):
        try:
            found = read(body)
            assert all(pose(state_of_json("x"), question, Familiar()).observation for question in found.posed())
        except Refusal as refusal:
            assert refusal.status == 422 and refusal.body()["error"]["message"].isprintable()
