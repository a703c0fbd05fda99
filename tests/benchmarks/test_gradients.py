"""The learner's gradients beside the exact one of a small environment; a broken learner is noticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gradients import ROWS, Comparison, Settings, compare, estimates, make_policy, rows
from benchmarks.treasure import Exact, Treasure, exact
from reflectrl.core.rollout import Job, rollout
from reflectrl.learn.batch import Batch
from reflectrl.models.players import Policy
from reflectrl.tools.workbench.check import check_text_env

BY_NAME = {row.name: row for row in ROWS}
FEW = ("mean, normalised, PPO", "leave-one-out", "critic, wrong, lambda 1")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return make_policy(tmp_path_factory.mktemp("policy"))


def measured(policy: Policy, name: str, episodes: int, spoil: Callable[[Batch], None] | None = None) -> Comparison:
    return compare(estimates(policy, BY_NAME[name].settings, episodes, spoil=spoil), exact(policy))


def test_the_environment_keeps_its_promises() -> None:
    check_text_env(Treasure)


def test_the_exact_value_and_length_are_those_of_play(policy: Policy) -> None:
    truth, tasks = exact(policy), Treasure().tasks("train")
    played = list(rollout([Job(tasks[i % 3], i) for i in range(3000)], Treasure, policy))
    returns = torch.tensor([episode.total_reward for episode in played])
    error = float(returns.std()) / len(returns) ** 0.5
    assert truth.value == pytest.approx(float(returns.mean()), abs=4 * error)
    assert truth.length == pytest.approx(sum(len(episode.steps) for episode in played) / len(played), rel=0.03)


def test_the_exact_gradient_is_what_moving_the_weights_changes(tmp_path: Path) -> None:
    policy = make_policy(tmp_path)
    truth, size = exact(policy), 1e-2
    along, parameters = truth.gradient_D / truth.gradient_D.norm(), policy.lm.parameters()
    before, values = torch.nn.utils.parameters_to_vector(parameters).detach(), []
    for distance in (size, -size):
        torch.nn.utils.vector_to_parameters((before + distance * along).float(), parameters)
        values.append(exact(policy).value)
    assert (values[0] - values[1]) / (2 * size) == pytest.approx(float(truth.gradient_D.norm()), rel=0.01)


@pytest.mark.parametrize("name", FEW)
def test_settings_without_a_bias_point_along_the_exact_gradient(policy: Policy, name: str) -> None:
    found = measured(policy, name, 1536)
    assert BY_NAME[name].unbiased and found.cosine > 0.97 and found.variance > 0.1
    if BY_NAME[name].bias == "none":
        assert found.norm == pytest.approx(1, abs=0.1)


def test_an_advantage_of_another_episode_or_of_the_other_sign_is_noticed(policy: Policy) -> None:
    def flipped(batch: Batch) -> None:
        batch.advantages_N = -batch.advantages_N

    def shifted(batch: Batch) -> None:
        batch.advantages_N = batch.advantages_N.roll(7)

    assert measured(policy, "none, PPO", 512, flipped).cosine < -0.95
    assert measured(policy, "none, PPO", 1024, shifted).cosine < 0.8


def test_grpo_is_as_biased_as_its_row_says(policy: Policy) -> None:
    found = measured(policy, "grpo", 1024)
    assert not BY_NAME["grpo"].unbiased and found.cosine < 0.95


def test_a_comparison_by_hand() -> None:
    truth = Exact(0.0, torch.tensor([2.0, 0.0]), 2.0)
    found = compare(torch.tensor([[1.0, 1.0], [1.0, -1.0], [1.0, 1.0], [1.0, -1.0]]), truth)
    trace = 4 / 3  # of the second number; the average is (1, 0), which 4 batches know to within trace / 4
    signal = 1 - trace / 4
    assert found == pytest.approx(Comparison(1.0, 1 / signal**0.5, signal**0.5, trace / signal))


def test_the_program_prints_the_rows_it_was_asked_for() -> None:
    found: list[dict[str, Any]] = rows(Settings(episodes=128, rows="critic, wrong, lambda 1"))
    assert [row["key"] for row in found] == ["critic, wrong, lambda 1", "critic, wrong, lambda 1, PPO"]
    assert all(set(row) == {"key", "cosine", "noiseless", "norm", "variance", "bias"} for row in found)
