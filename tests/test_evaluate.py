"""Results by hand: rows with Wilson's interval, milestones read off whole episodes, seeds pooled."""

from dataclasses import replace

import pytest
from corridor import CorridorEnv
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.core.envs import make
from reflectrl.core.evaluation import majority_at, rows_of, summarise
from reflectrl.core.statistics import mean_interval, wilson
from reflectrl.core.types import Episode, Observation, Step, Task

ENV = make({"name": "corridor", "train": 3, "validation": 3, "test": 3})
SEEN = Observation("", "", ("go",))


def episode(number: int, success: bool, rewards: list[float], picked: bool = False, stage: str = "full") -> Episode:
    events = [("key",) if picked and i == 0 else () for i in range(len(rewards))]
    steps = tuple(Step(SEEN, (), 0, reward, event) for reward, event in zip(rewards, events, strict=True))
    about = {"arm": "sft", "seed": 3, "split": "test", "sampling": "greedy"}
    return Episode(Task(str(number), "corridor", {}, "test", stage), steps, success, not success, 0, about)


FOUR = [
    episode(1, True, [1.0, 1.0], picked=True),
    episode(2, False, [1.0], picked=True),
    episode(3, False, [-0.5, 0.0, 0.0]),
    episode(4, False, [-0.5], picked=True),
]


def test_rows_by_hand() -> None:
    rows = rows_of(FOUR, ENV, 0.95)
    assert [row["stage"] for row in rows] == ["key", "full"]
    for row in rows:
        assert {key: row[key] for key in ("arm", "env", "split", "sampling", "seed", "episodes")} == {
            "arm": "sft", "env": "corridor", "split": "test", "sampling": "greedy", "seed": 3, "episodes": 4,
        }  # fmt: skip
        assert (row["return"], row["steps"]) == (2 / 4, 7 / 4)
    assert [row["success"] for row in rows] == [0.75, 0.25]
    # Wilson's interval for 1 of 4 at z = 1.96: (0.25 + z²/8 ± z √(0.25·0.75/4 + z²/64)) / (1 + z²/4)
    assert (rows[1]["low"], rows[1]["high"]) == pytest.approx((0.0456, 0.6994), abs=1e-4)
    assert (rows[0]["low"], rows[0]["high"]) == pytest.approx((1 - 0.6994, 1 - 0.0456), abs=1e-4)


def test_steps_to_success_are_those_of_won_episodes() -> None:
    assert [row["steps_to_success"] for row in rows_of(FOUR, ENV, 0.95)] == [4 / 3, 2.0]
    assert rows_of(FOUR[2:3], ENV, 0.95)[-1]["steps_to_success"] is None
    assert [line["steps_to_success"] for line in summarise([row(0, 0.5), row(1, 0.1)], 0.95)] == [10.0]
    assert [line["steps_to_success"] for line in summarise([row(1, 0.1)], 0.95)] == [None]


def answered(task: int, answer: str, success: bool) -> Episode:
    """An episode whose only action is the answer."""
    seen = Observation("", "", ("a", "b", "c"))
    step = Step(seen, (), "abc".index(answer), float(success), ())
    return replace(episode(task, success, [0.0]), steps=(step,))


def test_the_most_frequent_answer_of_several_attempts_counts() -> None:
    attempts = [("a", True), ("b", False), ("a", True), ("c", False)]
    assert majority_at(4, attempts) == 1.0  # two of four say "a"
    assert majority_at(2, attempts) == 0.5  # a tie in each half
    assert majority_at(3, attempts) == 1.0  # the fourth is left over
    assert majority_at(2, [("a", True), ("a", False)]) == 0.5  # chance decides, not the answer
    found = [answered(7, *one) for one in attempts] + [answered(8, "b", False)] * 4
    [*_, row] = rows_of(found, ENV, 0.95)
    assert (row["tasks"], row["maj@2"], row["maj@4"]) == (2, 0.25, 0.5)
    assert row["pass@4"] == 0.5 and row["success"] == 0.25
    [pooled] = [line for line in summarise([row], 0.95) if line["stage"] == "full"]
    assert pooled["maj@4"] == 0.5


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=12), st.data())
def test_a_majority_of_one_is_the_success_rate(attempts: list[tuple[str, bool]], data: st.DataObject) -> None:
    assert majority_at(1, attempts) == pytest.approx(sum(won for _, won in attempts) / len(attempts))
    k = data.draw(st.integers(1, len(attempts)))
    assert 0.0 <= majority_at(k, attempts) <= 1.0


def test_kinds_of_tasks_have_rows_of_their_own_before_the_whole() -> None:
    class Kinds(CorridorEnv):
        def group(self, task: Task) -> str | None:
            return "odd" if int(task.id) % 2 else "even"

    rows = rows_of(FOUR, Kinds(train=3, validation=3, test=3), 0.95)
    assert [(row["stage"], row["episodes"], row["success"]) for row in rows] == [
        ("key", 4, 0.75), ("odd", 2, 0.5), ("even", 2, 0.0), ("full", 4, 0.25),
    ]  # fmt: skip


def test_tasks_that_the_environment_counts_as_one_count_once_in_intervals() -> None:
    class InTwoWordings(CorridorEnv):
        def counted_as(self, task: Task) -> str:
            return str((int(task.id) + 1) // 2)

    [*_, whole] = rows_of(FOUR, InTwoWordings(train=3, validation=3, test=3), 0.95)
    assert (whole["episodes"], whole["tasks"], whole["success"]) == (4, 2, 0.25)
    assert (whole["low"], whole["high"]) == wilson(round(2 * 0.25), 2, 0.95)
    [pooled] = [line for line in summarise([whole, {**whole, "seed": 4}], 0.95) if line["stage"] == "full"]
    assert (pooled["low"], pooled["high"]) == wilson(round(4 * 0.25), 4, 0.95)
    assert "tasks" not in rows_of(FOUR, ENV, 0.95)[-1]


def test_episodes_of_an_earlier_stage_have_no_milestones() -> None:
    rows = rows_of([episode(1, True, [1.0], picked=True, stage="key")], ENV, 0.95)
    assert [(row["stage"], row["success"]) for row in rows] == [("key", 1.0)]


def test_calibration_is_averaged_over_the_seeds_that_measured_it_and_illegal_choices_over_all() -> None:
    measured, other = {**row(0, 0.5), "ece": 0.2, "brier": 0.4, "illegal": 0.1}, row(1, 0.5)
    [pooled] = summarise([measured, other], 0.95)
    assert (pooled["ece"], pooled["brier"], pooled["illegal"]) == (0.2, 0.4, 0.05)


def test_no_episodes_no_numbers() -> None:
    assert rows_of([], ENV, 0.95) == []
    assert summarise([], 0.95) == []


def row(seed: int, success: float, episodes: int = 20, arm: str = "sft") -> dict[str, object]:
    shared = {"arm": arm, "env": "corridor", "split": "test", "stage": "full", "sampling": "greedy"}
    return {**shared, "seed": seed, "episodes": episodes, "success": success, "return": 2 * success, "steps": 10 + seed,
            "steps_to_success": 10.0 + seed if success > 0.2 else None}  # fmt: skip


def test_seeds_are_pooled() -> None:
    summary = summarise([row(0, 0.5), row(1, 0.7), row(2, 0.9), row(0, 0.1, arm="random")], 0.95)
    assert [(line["arm"], line["seeds"], line["episodes"]) for line in summary] == [("sft", 3, 60), ("random", 1, 20)]
    sft, random = summary
    assert (sft["success"], sft["return"], sft["steps"]) == pytest.approx((0.7, 1.4, 11.0))
    assert (random["low"], random["high"]) == wilson(2, 20, 0.95)
    assert "seed" not in sft


def test_the_wider_interval_counts() -> None:
    apart = summarise([row(0, 0.5), row(1, 0.9)], 0.95)[0]  # two seeds far apart: Student's t covers everything
    assert (apart["low"], apart["high"]) == (0.0, 1.0)
    near = summarise([row(seed, 0.7) for seed in range(3)], 0.95)[0]  # equal seeds: only the episodes say how sure
    assert (near["low"], near["high"]) == wilson(42, 60, 0.95)
    between = [0.65, 0.7, 0.75]
    student = mean_interval(between, 0.95)
    assert student is not None
    some = summarise([row(seed, rate, 200) for seed, rate in enumerate(between)], 0.95)[0]
    assert (some["low"], some["high"]) == pytest.approx(student)
