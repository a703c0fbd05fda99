"""Targets, values and the guided policy, worked out by hand; what a critic of a known table must come to."""

from __future__ import annotations

from copy import deepcopy
from math import exp, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import Tensor
from torch.nn.functional import one_hot

from reflectrl.learn.losses import categorical_kl, reinforce_loss, restricted_log_softmax
from reflectrl.methods.shared.critic import (
    expected_value,
    follow,
    guided_logp,
    make_critic,
    policy_gradient_loss,
    regularised_value,
    td_loss,
    td_targets,
)

NEVER = float("-inf")


def test_a_target_is_the_reward_and_what_follows_unless_it_is_the_end() -> None:
    found = td_targets(torch.tensor([1.0, -0.5]), torch.tensor([2.0, 7.0]), torch.tensor([False, True]), 0.9)
    assert found.tolist() == pytest.approx([1 + 0.9 * 2, -0.5])


def test_an_expected_value_weighs_actions_by_their_probability_and_leaves_out_those_that_are_none() -> None:
    logp_NA = torch.tensor([[0.25, 0.75, 0.0]]).log()
    assert expected_value(logp_NA, torch.tensor([[4.0, 8.0, 999.0]])).tolist() == pytest.approx([7.0])


class TestGuidance:
    """A model that takes the first of two actions three times in four; the second is worth 0.1 more, lambda = 0.1."""

    prior_NA = torch.tensor([[0.75, 0.25, 0.0]]).log()
    q_NA = torch.tensor([[0.2, 0.3, 50.0]])

    def test_the_policy_is_the_model_times_exp_q_over_lambda(self) -> None:
        weights = [0.75 * exp(2), 0.25 * exp(3)]
        found = guided_logp(self.prior_NA, self.q_NA, 0.1).exp()[0].tolist()
        assert found == pytest.approx([weights[0] / sum(weights), weights[1] / sum(weights), 0.0])

    def test_its_value_is_the_soft_maximum(self) -> None:
        found = float(regularised_value(self.prior_NA, self.q_NA, 0.1))
        assert found == pytest.approx(0.1 * log(0.75 * exp(2) + 0.25 * exp(3)), abs=1e-6)

    def test_towards_the_limits_it_is_the_critics_choice_and_the_models(self) -> None:
        assert guided_logp(self.prior_NA, self.q_NA, 1e-3).exp()[0, 1] > 0.999
        assert float(regularised_value(self.prior_NA, self.q_NA, 1e-3)) == pytest.approx(0.3, abs=2e-3)
        torch.testing.assert_close(guided_logp(self.prior_NA, self.q_NA, 1e6).exp(), self.prior_NA.exp())
        mean = float(expected_value(self.prior_NA, self.q_NA))
        assert float(regularised_value(self.prior_NA, self.q_NA, 1e3)) == pytest.approx(mean, abs=1e-3)

    @given(some.lists(some.floats(-2, 2), min_size=6, max_size=6), some.floats(0.05, 5))
    def test_no_policy_has_a_greater_value_less_its_divergence(self, numbers: list[float], kl_lambda: float) -> None:
        prior_NA, q_NA = (torch.tensor([part]).double() for part in (numbers[:3], numbers[3:]))
        prior_NA = prior_NA.log_softmax(-1)

        def worth(logp_NA: Tensor) -> float:
            return float(expected_value(logp_NA, q_NA) - kl_lambda * categorical_kl(logp_NA, prior_NA))

        best = float(regularised_value(prior_NA, q_NA, kl_lambda))
        assert worth(guided_logp(prior_NA, q_NA, kl_lambda)) == pytest.approx(best, abs=1e-9)
        for other in (prior_NA, q_NA.log_softmax(-1), torch.zeros(1, 3).double().log_softmax(-1)):
            assert worth(other) <= best + 1e-9


class TestPolicyGradient:
    logp_NA = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]]).log()
    advantages_NA = torch.tensor([[1.0, -1.0, 9.0], [0.0, 2.0, -1.0]])

    def test_with_one_action_it_is_reinforce(self) -> None:
        taken = torch.tensor([1, 2])
        found = policy_gradient_loss(self.logp_NA, self.advantages_NA, one_hot(taken, 3))
        rows = torch.arange(2)
        expected = reinforce_loss(self.logp_NA[rows, taken], self.advantages_NA[rows, taken])
        assert float(found) == pytest.approx(float(expected))

    def test_over_all_actions_its_gradient_is_what_reinforce_gives_on_average(self) -> None:
        def gradient(weights_NA: Tensor) -> Tensor:
            logits_NA = self.logp_NA.clone().requires_grad_(True)
            logp_NA = logits_NA.log_softmax(-1)
            [found] = torch.autograd.grad(policy_gradient_loss(logp_NA, self.advantages_NA, weights_NA), logits_NA)
            return found

        probs_NA = self.logp_NA.exp()
        mean_NA = torch.zeros(2, 3)
        for first in range(3):
            for second in range(3):
                chance = probs_NA[0, first] * probs_NA[1, second]
                mean_NA += chance * gradient(one_hot(torch.tensor([first, second]), 3).float())
        assert mean_NA.isfinite().all() and mean_NA.abs().max() > 0.1
        torch.testing.assert_close(gradient(probs_NA), mean_NA)


def test_the_mean_q_of_supported_actions_moves_probability_between_these_alone() -> None:
    """The third action has the highest Q, but nobody tried it; its odds against the others' sum must stay."""
    logits_NA = torch.tensor([[1.0, 0.0, -2.0, 0.5]], requires_grad=True)
    support_NA, q_NA = torch.tensor([[True, True, False, True]]), torch.tensor([[0.2, 0.6, 99.0, -0.4]])
    logp_NA = logits_NA.log_softmax(-1)
    supported_NA = restricted_log_softmax(logp_NA, support_NA)
    [gradient] = torch.autograd.grad(-expected_value(supported_NA, q_NA).mean(), logits_NA, retain_graph=True)
    probs = supported_NA.detach().exp()[0]
    mean = float(probs[0] * 0.2 + probs[1] * 0.6 - probs[3] * 0.4)
    expected = [float(-probs[a] * (q_NA[0, a] - mean)) for a in range(4)]
    assert gradient[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert gradient[0, 2] == 0 and float(gradient.sum()) == pytest.approx(0, abs=1e-6)
    # With every action supported, it is the policy gradient summed over all actions.
    everything_NA = torch.ones_like(support_NA)
    whole_NA = restricted_log_softmax(logp_NA, everything_NA)
    [found] = torch.autograd.grad(-expected_value(whole_NA, q_NA).mean(), logits_NA, retain_graph=True)
    values_N = expected_value(logp_NA, q_NA).detach()
    summed = policy_gradient_loss(logp_NA, q_NA - values_N[:, None], logp_NA.detach().exp())
    [wanted] = torch.autograd.grad(summed, logits_NA)
    torch.testing.assert_close(found, wanted)


def test_a_target_follows_at_its_rate() -> None:
    critic = make_critic(3, 0)
    target = deepcopy(critic)
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter += 1.0
    before = [parameter.clone() for parameter in target.parameters()]
    follow(target, critic, 0.25)
    for slow, was in zip(target.parameters(), before, strict=True):
        torch.testing.assert_close(slow, was + 0.25)


def test_the_lower_q_of_every_action_is_that_of_each_alone() -> None:
    critic = make_critic(4, 0)
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(parameter.numel()))
    states_ND, actions_NAD = torch.randn(3, 4), torch.randn(3, 2, 4)
    found = critic.lower_q(states_ND, actions_NAD)
    for a in range(2):
        torch.testing.assert_close(
            found[:, a], critic.q_values(states_ND, actions_NAD[:, a]).amin(0), atol=1e-5, rtol=1e-5
        )


def test_learned_by_its_targets_it_finds_the_regularised_values_of_a_chain() -> None:
    """Two states in a row; going on from the second earns 1, stopping anywhere earns nothing. The model does either.

    With gamma 1 and lambda 1/2: V(1) = log((e^2 + 1) / 2) / 2 = Q(0, on), and V(0) = log((e^(2 Q) + 1) / 2) / 2.
    """
    states = torch.tensor([0, 0, 1, 1])
    actions = torch.tensor([0, 1, 0, 1])
    rewards, ends = torch.tensor([0.0, 0.0, 1.0, 0.0]), torch.tensor([False, True, True, True])
    states_ND, actions_ND = one_hot(states, 2).float(), one_hot(actions, 2).float()
    all_NAD, prior_NA = torch.eye(2).expand(4, 2, 2), torch.full((4, 2), 0.5).log()
    critic = make_critic(2, 0)
    target = deepcopy(critic)
    optimizer = torch.optim.Adam(critic.parameters(), lr=3e-3)
    after_ND = one_hot(torch.ones(4).long(), 2).float()
    for _ in range(400):
        with torch.no_grad():
            following_N = regularised_value(prior_NA, target.lower_q(after_ND, all_NAD), 0.5)
        td_loss(critic.q_values(states_ND, actions_ND), td_targets(rewards, following_N, ends, 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
        follow(target, critic, 0.1)
    second = log((exp(2) + 1) / 2) / 2
    with torch.no_grad():
        q_N = critic.q_values(states_ND, actions_ND).amin(0)
        value = regularised_value(prior_NA[:1], critic.lower_q(states_ND[:1], all_NAD[:1]), 0.5)
    assert q_N.tolist() == pytest.approx([second, 0.0, 1.0, 0.0], abs=0.02)
    assert float(value) == pytest.approx(log((exp(2 * second) + 1) / 2) / 2, abs=0.02)
