"""A builder reads its inputs only: made in a folder that holds nothing else, an artifact has the same bytes."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from reflectrl import runs as pipeline
from reflectrl.runs.artifact import Plan, artifact
from reflectrl.runs.graph import planned
from tests.runs.alone import made_alone, one_of_each_kind, require_made_alone
from tests.runs.conftest import LIKE

OUTCOMES = (
    "arms=reflect-rl", "eval.splits=test", "eval.sampling=greedy", "rl.reverse=0.5", "rl.curriculum=none",
    "rl.updates=1", "teach.reflections=outcomes", "teach.outcome_episodes=1", "sft.policy_from=reflector",
)  # fmt: skip


@pytest.mark.parametrize(
    "key", ["teach train", "base model", "sft policy", "rl reflect-rl", "eval random", "eval sft", "eval reflect-rl"]
)
def test_an_artifact_of_a_run_is_made_from_its_inputs_alone(
    like: LIKE, finished: Path, tmp_path: Path, key: str
) -> None:
    same = made_alone(like(), finished, planned(like())[f"{key} (seed 0)"], tmp_path)
    assert same and all(same.values()), same


def test_so_is_each_kind_where_reflections_come_from_outcomes_and_rl_begins_at_wins(like: LIKE, tmp_path: Path) -> None:
    recipe = like(*OUTCOMES)
    pipeline.run(recipe, tmp_path / "run", "eval")
    require_made_alone(recipe, tmp_path / "run", one_of_each_kind(recipe), tmp_path / "alone")


def test_a_call_plans_and_runs_nothing_and_refuses_a_wrong_argument(like: LIKE) -> None:
    @artifact("copy", "sft", "copies/{name}")
    def copied(build: object, *, original: Path) -> None:
        raise AssertionError("a plan runs nothing")

    plan = Plan(like(), 0)
    first = copied(plan, "first", original=None)
    second = copied(plan, "second", original=first)
    assert list(plan.made) == ["copy first (seed 0)", "copy second (seed 0)"]
    assert second.inputs == (first.key,) and second.path == "copies/second"
    with pytest.raises(TypeError, match="original"):
        copied(plan, "third", orginal=first)


def test_another_process_plans_the_same_artifact_again(like: LIKE) -> None:
    wanted = planned(like())["eval reflect-rl (seed 0)"]
    again = copy.copy(wanted)  # as pickle does it
    assert again == wanted and again.inputs == wanted.inputs and again.maker is wanted.maker


def test_what_an_input_was_given_is_needed_and_not_fingerprinted_twice(like: LIKE) -> None:
    evaluation = planned(like())["eval reflect-rl (seed 0)"]
    assert evaluation.inputs == ("rl reflect-rl (seed 0)",)
    assert {needed.key for needed in evaluation.needs} == {"rl reflect-rl (seed 0)", "sft reflector (seed 0)"}
