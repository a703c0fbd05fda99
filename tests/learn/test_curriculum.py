"""The curriculum: when each kind moves on, and that it resumes where it stood."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.core.config import RLConfig
from reflectrl.core.types import Episode, Task, UserError
from reflectrl.learn.curriculum import Curriculum, SuccessRates, growing_horizon, make_curriculum, new_tasks
from tests.learn.conftest import COLOURS, Rooms

STAGES = ("pickup", "dropoff", "full")


def walk(curriculum: Curriculum, rates) -> list[str]:
    """The stage at which each update was made."""
    visited = []
    for rate in rates:
        visited.append(curriculum.stage)
        curriculum.advance(rate)
    return visited


def test_none_stays_at_the_last_stage():
    assert set(walk(Curriculum(STAGES, "none", 5, 0.9), [1.0] * 5)) == {"full"}


def test_thirds_share_the_updates_and_the_last_stage_gets_the_remainder():
    visited = walk(Curriculum(STAGES, "equal", 8, 0.9), [0.0] * 8)
    assert visited == ["pickup"] * 2 + ["dropoff"] * 2 + ["full"] * 4


def test_shares_by_tasks_follow_the_number_of_tasks():
    visited = walk(Curriculum(STAGES, "by-tasks", 103, 0.9, sizes=(20, 70, 10)), [0.0] * 103)
    assert [visited.count(stage) for stage in STAGES] == [21, 71, 11]  # one each, and a hundred by size


class Cumulative(Rooms):
    """Rooms in which every stage includes the tasks of the stages before it, as those of AutoExplore do."""

    stages = ("red", "dark", "full")

    def tasks(self, split, stage=None):
        colours = {"red": ("red",), "dark": ("red", "black")}.get(stage, COLOURS[split])
        return [Task(colour, "rooms", {"colour": colour}, split, stage or "full") for colour in colours]


def test_a_task_counts_in_the_first_stage_that_has_it(make_rooms):
    assert new_tasks(Cumulative(), Cumulative.stages) == [1, 1, 2]
    assert new_tasks(Cumulative(), ["red+dark", "full"]) == [2, 2]
    assert new_tasks(make_rooms(), make_rooms().stages) == [4, 4]  # a room to leave is not the same as two
    visited = walk(make_curriculum(RLConfig(curriculum="by-tasks", updates=11), Cumulative()), [0.0] * 11)
    assert [visited.count(stage) for stage in Cumulative.stages] == [3, 3, 5]


def test_gate_opens_when_the_mean_over_the_window_reaches_it():
    curriculum = Curriculum(STAGES, "gate", 100, gate=0.5, window=2)
    assert [curriculum.advance(rate) for rate in (1.0, 0.0)] == [False, True]
    assert curriculum.stage == "dropoff"


def test_gate_looks_at_the_present_stage_only():
    curriculum = Curriculum(STAGES, "gate", 100, gate=0.9, window=2)
    moved = [curriculum.advance(rate) for rate in (0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0)]
    # The first two 1.0 in a row open dropoff; there the count starts anew, and the last two open full.
    assert moved == [False, False, True, False, False, False, True]


def test_gate_stays_closed_without_success():
    assert set(walk(Curriculum(STAGES, "gate", 50, 0.9), [0.89] * 50)) == {"pickup"}


def test_exactly_the_gate_is_enough():
    curriculum = Curriculum(STAGES, "gate", 50, gate=0.7, window=3)
    assert [curriculum.advance(0.7) for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize("kind", ["equal", "by-tasks"])
def test_too_few_updates_for_the_stages_is_the_users_mistake(kind):
    with pytest.raises(UserError, match=f"curriculum '{kind}' needs at least 3"):
        Curriculum(STAGES, kind, 2, 0.9, sizes=(1, 1, 1))


def test_a_state_of_other_stages_is_refused():
    with pytest.raises(UserError, match="'full' is not one of depth-1, depth-2"):
        Curriculum(("depth-1", "depth-2"), "equal", 4, 0.9).load(Curriculum(STAGES, "none", 4, 0.9).state())


stage_lists = st.integers(1, 5).map(lambda n: [f"s{i}" for i in range(n)])
rate_lists = st.lists(st.floats(0, 1), min_size=1, max_size=40)
kinds = st.sampled_from(["none", "equal", "by-tasks", "gate"])


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5), st.integers(0, 40))
def test_shares_by_tasks_are_proportional_and_leave_no_stage_out(sizes, extra):
    stages, updates = [f"s{i}" for i in range(len(sizes))], len(sizes) + extra
    visited = walk(Curriculum(stages, "by-tasks", updates, 0.9, sizes=sizes), [0.5] * updates)
    for stage, size in zip(stages[:-1], sizes[:-1], strict=True):
        exact = 1 + extra * size / max(1, sum(sizes))
        assert exact - 1 < visited.count(stage) <= exact
    assert visited[-1] == stages[-1]


@given(stage_lists, kinds, rate_lists, st.floats(0, 1), st.integers(1, 6))
def test_stages_come_in_order_and_changes_are_announced(stages, kind, rates, gate, window):
    curriculum = Curriculum(stages, kind, len(rates) + len(stages), gate, window, range(len(stages)))
    for rate in rates:
        before = stages.index(curriculum.stage)
        moved = curriculum.advance(rate)
        assert stages.index(curriculum.stage) == before + moved


@given(stage_lists, st.integers(0, 40))
def test_thirds_reach_every_stage_for_an_equal_share(stages, extra):
    updates = len(stages) + extra
    visited = walk(Curriculum(stages, "equal", updates, 0.9), [0.5] * updates)
    share, rest = divmod(updates, len(stages))
    assert [visited.count(stage) for stage in stages] == [share] * (len(stages) - 1) + [share + rest]


@given(stage_lists, kinds, rate_lists, st.floats(0, 1), st.integers(1, 6), st.data())
def test_resuming_through_json_changes_nothing(stages, kind, rates, gate, window, data):
    settings = (stages, kind, len(rates) + len(stages), gate, window, range(len(stages)))
    cut = data.draw(st.integers(0, len(rates)))
    whole, first, second = Curriculum(*settings), Curriculum(*settings), Curriculum(*settings)
    walk(first, rates[:cut])
    second.load(json.loads(json.dumps(first.state())))
    assert walk(whole, rates)[cut:] == walk(second, rates[cut:])
    assert whole.stage == second.stage


def outcomes(task: Task, wins: int, losses: int) -> list[Episode]:
    return [Episode(task, (), won, False, 0) for won in [True] * wins + [False] * losses]


class TestSuccessRates:
    always, never, sometimes, unknown = (Task(name, "full") for name in ("always", "never", "sometimes", "unknown"))

    def test_tasks_that_are_sometimes_won_are_drawn_more(self) -> None:
        rates = SuccessRates()
        for _ in range(10):
            rates.add([*outcomes(self.always, 1, 0), *outcomes(self.never, 0, 1), *outcomes(self.sometimes, 1, 1)])
        always, never, sometimes, unknown = rates.weights([self.always, self.never, self.sometimes, self.unknown])
        assert always == pytest.approx(never) and unknown == pytest.approx(sometimes, rel=0.05)
        assert sometimes > 5 * always > 0

    def test_so_are_those_that_are_won_one_time_in_five(self) -> None:
        rates = SuccessRates()
        for i in range(20):
            rates.add([*outcomes(self.always, 1, 0), *outcomes(self.sometimes, i % 5 == 2, i % 5 != 2)])
        always, sometimes = rates.weights([self.always, self.sometimes])
        assert sometimes > 4.5 * always > 0

    def test_what_is_learned_since_counts_more(self) -> None:
        rates = SuccessRates()
        rates.add(outcomes(self.always, 0, 20))
        before = rates.weights([self.always, self.unknown])[0]
        rates.add(outcomes(self.always, 7, 0))
        assert rates.weights([self.always, self.unknown])[0] > 2 * before

    @given(st.lists(st.tuples(st.integers(0, 3), st.booleans())))
    def test_weights_are_probabilities_and_survive_a_kill(self, played) -> None:
        rates, tasks = SuccessRates(), [Task(str(i), "full") for i in range(4)]
        rates.add(Episode(tasks[i], (), won, False, 0) for i, won in played)
        weights = rates.weights(tasks)
        assert weights.sum() == pytest.approx(1) and (weights > 0).all()
        again = SuccessRates()
        again.load(json.loads(json.dumps(rates.state())))
        assert (again.weights(tasks) == weights).all()


def test_the_horizon_grows_in_the_first_half():
    config = RLConfig(updates=8, first_horizon=4)
    assert [growing_horizon(config, 20, update) for update in range(8)] == [4, 8, 12, 16, 20, 20, 20, 20]
    assert growing_horizon(config, 3, 0) == 3
