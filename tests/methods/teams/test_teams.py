"""TeaMs-RL: the teacher's policy over lessons, what a lesson shows, and the arms from lessons to results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectrl import runs as pipeline
from reflectrl.core.envs import make
from reflectrl.core.teach import expert_length, teach
from reflectrl.core.types import UserError
from reflectrl.methods.teams_rl import LESSONS, Lesson, Teacher, by_length, planned
from tests.methods.conftest import Resumed, same_weights
from tests.runs.alone import of_methods, require_made_alone

Like = Callable[..., Any]
GAINS = st.lists(st.tuples(st.integers(0, len(LESSONS) - 1), st.floats(-10, 10)), max_size=20)


@given(GAINS)
def test_the_teacher_stays_a_distribution_over_all_lessons(gains: list[tuple[int, float]]) -> None:
    teacher = Teacher(2.0)
    for chosen, gain in gains:
        teacher.learn(chosen, gain)
    chances = teacher.probabilities()
    assert chances.shape == (len(LESSONS),) and chances.sum() == pytest.approx(1) and (chances > 0).all()


def test_the_teacher_learns_which_lesson_pays() -> None:
    teacher, rng = Teacher(2.0), np.random.default_rng(0)
    for _ in range(300):
        chosen = int(rng.choice(len(LESSONS), p=teacher.probabilities()))
        teacher.learn(chosen, (1.0 if chosen == 4 else 0.0) + rng.normal(0, 0.1))
    assert teacher.probabilities()[4] > 0.9


def test_a_teacher_that_does_not_learn_chooses_evenly() -> None:
    teacher = Teacher(0.0)
    for gain in (3.0, -2.0, 1.0):
        teacher.learn(4, gain)
    assert teacher.probabilities() == pytest.approx(np.full(len(LESSONS), 1 / len(LESSONS)))


def test_a_gradient_of_reinforce() -> None:
    """Preferences move by lr / lessons * advantage * (chosen - probability)."""
    teacher = Teacher(9.0)
    teacher.learn(0, 1.0)  # nothing to compare with
    assert not teacher.preferences.any()
    teacher.learn(1, 3.0)
    spread = np.std([1.0, 3.0])
    expected = 2.0 / spread * ((np.arange(len(LESSONS)) == 1) - 1 / len(LESSONS))
    assert teacher.preferences == pytest.approx(expected)


def test_lessons_show_tasks_of_their_length_in_their_way() -> None:
    env = make({"name": "taxi"})
    tasks = env.tasks("train")[:12]
    thirds = by_length(env, tasks, 0)
    steps = {name: [expert_length(env, task, 0) for task in part] for name, part in thirds.items()}
    assert max(steps["short"]) <= min(steps["middle"]) and max(steps["middle"]) <= min(steps["long"])
    assert sum(map(len, thirds.values())) == 12
    kinds = {}
    for way in ("steady", "noisy", "mistaken"):
        shown = [teach(env, plan) for plan in planned(Lesson("long", way), thirds["long"], 0.5, 3, 7)]
        assert {episode.task.id for episode in shown} <= {task.id for task in thirds["long"]}
        kinds[way] = {(episode.provenance["kind"], episode.provenance["noise"]) for episode in shown}
    assert kinds == {"steady": {("trajectory", 0.0)}, "noisy": {("trajectory", 0.5)}, "mistaken": {("negative", 0.0)}}
    with pytest.raises(UserError, match="2 training tasks are too few; 3 are needed"):
        by_length(env, tasks[:2], 0)


SMALL = (
    "arms=teams,teams-uniform", "eval.sampling=greedy", "eval.splits=test", "env.train=6", "env.test=2",
    "teams.rounds=4", "teams.demonstrations=2", "teams.steps=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory, like: Like) -> Path:
    folder = tmp_path_factory.mktemp("teams") / "run"
    pipeline.run(like(*SMALL), folder)
    return folder


def test_both_arms_are_taught_and_the_log_says_what_the_teacher_would_choose(taught: Path) -> None:
    lines = [json.loads(line) for line in (taught / "metrics.jsonl").read_text().splitlines()]
    for arm, learns in (("teams", True), ("teams-uniform", False)):
        own = [line for line in lines if line["arm"] == arm]
        assert [line["step"] for line in own] == [1, 2, 3, 4]
        chances = [[line[f"lesson/{'-'.join(lesson)}"] for lesson in LESSONS] for line in own]
        assert all(sum(row) == pytest.approx(1) for row in chances)
        assert (len({round(chance, 9) for row in chances for chance in row}) > 1) == learns
    rows = json.loads((taught / "results.json").read_text())["rows"]
    assert {row["arm"] for row in rows} == {"teams", "teams-uniform"}


def test_each_artifact_is_made_from_its_inputs_alone(taught: Path, like: Like, tmp_path: Path) -> None:
    recipe = like(*SMALL)
    require_made_alone(recipe, taught, of_methods(recipe), tmp_path)


def test_a_killed_training_goes_on_to_the_same_weights(taught: Path, like: Like, resumed: Resumed) -> None:
    copy = resumed(taught, like(*SMALL), "teams", step=3)
    weights = "checkpoints/seed0/teams/model.safetensors"
    assert same_weights(copy / weights, taught / weights)
