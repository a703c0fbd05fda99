"""Estimators of advantages by hand, and the share of a batch that has something to say."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.core.config import RLConfig
from reflectrl.core.types import Episode, Observation, Step, Task
from reflectrl.learn.advantages import imitate_gains, with_signal
from reflectrl.learn.batch import Batch
from reflectrl.learn.minibatches import compute_advantages
from reflectrl.learn.steps import Steps

COMPARING = ("leave-one-out", "dr-grpo", "grpo", "gigpo")


def steps_of(rewards: list[list[float]], tasks: list[str], states: list[str] | None = None) -> Steps:
    """A batch of which only rewards, tasks and states matter."""
    flat = torch.tensor([reward for episode in rewards for reward in episode])
    to_go = torch.tensor([sum(episode[t:]) for episode in rewards for t in range(len(episode))])
    ends = [sum(map(len, rewards[: i + 1])) for i in range(len(rewards))]
    seen = [Observation("", state, ("a", "b")) for state in states or [""] * len(flat)]
    nothing = torch.zeros(len(flat))
    return Steps([()] * len(flat), [("a", "b")] * len(flat), nothing.long(), nothing, flat, to_go, ends, tasks, seen)


def advantages(steps: Steps, baseline: Any, **settings: Any) -> list[float]:
    return compute_advantages(steps, RLConfig(baseline=baseline, group=2, **settings), 0.0, None).tolist()


class TestByHand:
    """Task "a": returns 3 and -0.5, so mean 1.25 and deviation 1.75; task "b": one episode alone."""

    batch = steps_of([[1.0, 2.0], [4.0], [0.0, -1.0, 0.5]], ["a", "b", "a"])

    def test_dr_grpo_subtracts_the_mean_of_the_group(self) -> None:
        assert advantages(self.batch, "dr-grpo") == pytest.approx([1.75, 1.75, 0.0, -1.75, -1.75, -1.75])

    def test_grpo_divides_by_the_deviation_and_weighs_episodes_alike(self) -> None:
        # Mean length 2: steps of the episode of two weigh 1, those of the episode of three 2/3.
        expected = [1.0, 1.0, 0.0, -2 / 3, -2 / 3, -2 / 3]
        assert advantages(self.batch, "grpo") == pytest.approx(expected)

    def test_gigpo_adds_what_equal_states_tell(self) -> None:
        batch = steps_of([[0.0, 1.0], [0.0, 0.0]], ["a", "a"], ["start", "left", "start", "right"])
        # Episodes: +0.5 and -0.5. Steps: from "start" the returns 1 and 0; "left" and "right" stand alone.
        assert advantages(batch, "gigpo") == pytest.approx([1.0, 0.5, -1.0, -0.5])
        assert advantages(batch, "gigpo", step_coef=2.0) == pytest.approx([1.5, 0.5, -1.5, -0.5])
        other_task = steps_of([[0.0, 1.0], [0.0, 0.0]], ["a", "b"], ["start", "left", "start", "right"])
        assert advantages(other_task, "gigpo") == [0.0] * 4

    def test_gigpo_compares_steps_of_one_episode_that_comes_back(self) -> None:
        batch = steps_of([[1.0, 1.0], [1.0, 1.0]], ["a", "a"], ["start", "start", "start", "start"])
        assert advantages(batch, "gigpo") == pytest.approx([0.5, -0.5, 0.5, -0.5])


class TestGroups:
    @given(st.lists(st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=4), min_size=2, max_size=5))
    def test_of_one_task_whole_returns_are_compared_with_their_mean(self, rewards: list[list[float]]) -> None:
        steps = steps_of(rewards, ["t"] * len(rewards))
        found = torch.tensor(advantages(steps, "dr-grpo"))
        left_out = torch.tensor(advantages(steps, "leave-one-out"))
        torch.testing.assert_close(found, left_out * (len(rewards) - 1) / len(rewards), atol=1e-4, rtol=1e-4)
        firsts = [span.start for span in steps.spans()]
        assert float(found[firsts].sum()) == pytest.approx(0, abs=1e-3)

    @pytest.mark.parametrize("baseline", COMPARING)
    def test_where_all_went_the_same_there_is_nothing_to_learn(self, baseline: Any) -> None:
        steps = steps_of([[0.1, 0.2], [0.3]], ["a", "a"], ["x", "y", "z"])  # equal but for rounding
        assert advantages(steps, baseline) == [0.0] * 3

    def test_groups_with_a_signal(self) -> None:
        def episode(task: str, reward: float) -> Episode:
            return Episode(Task(task, "full"), (Step(Observation("", "", ("a",)), (), 0, reward, ()),), True, False, 0)

        episodes = [episode("a", 1.0), episode("a", 1.0), episode("b", 1.0), episode("b", 0.0)]
        pay: Callable[[Episode], torch.Tensor] = lambda one: torch.tensor([step.reward for step in one.steps])  # noqa: E731
        assert [one.task.id for one in with_signal(episodes, 2, pay)] == ["b", "b"]
        assert with_signal(episodes, 4, pay) == episodes


def test_self_imitation_keeps_what_went_better_than_expected() -> None:
    """By the critic's value, whatever the advantages say: its own target stays where a win was worse than that."""
    batch = past_batch(torch.tensor([1.0, 2.0, 0.5]))
    assert imitate_gains(batch, [slice(0, 2), slice(2, 3)]) == pytest.approx([1.001, 0.501])
    assert batch.advantages_N.tolist() == [2.0, 0.0, 0.5]
    assert batch.returns_N.tolist() == [3.0, 2.0, 1.0] and batch.old_logp_N.isnan().all()


def test_self_imitation_without_a_critic_goes_by_the_advantages() -> None:
    batch = past_batch(None)
    assert imitate_gains(batch, [slice(0, 2), slice(2, 3)]) == pytest.approx([1.501, 0.001])
    assert batch.advantages_N.tolist() == [0.0, 3.0, 0.0] and batch.returns_N.tolist() == [3.0, 1.0, 1.0]


def past_batch(values_N: torch.Tensor | None) -> Batch:
    """Three steps of two wins."""
    known = (torch.tensor([0, 1, 0]), torch.tensor([-0.1, -0.2, -0.3]), torch.tensor([-1.0, 3.0, -0.5]))
    return Batch([], *known, torch.tensor([3.0, 1.0, 1.0]), values_N)
