"""Losses against numbers worked out by hand, finite differences, and properties that must hold for any input."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from reflectrl.core.config import RLConfig
from reflectrl.learn import losses

settings.register_profile("quick", max_examples=50, deadline=None)
settings.load_profile("quick")

INF = math.inf
numbers = st.floats(-20, 20, allow_nan=False, width=32)


def vectors(least=1, most=8, elements=numbers):
    lengths = st.integers(least, most)
    return lengths.flatmap(lambda n: hnp.arrays("float64", n, elements=elements)).map(torch.from_numpy)


@st.composite
def logits_and_legal(draw):
    """Logits [N, A] and a mask with at least one legal action in each row."""
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 6)))
    logits_NA = torch.from_numpy(draw(hnp.arrays("float64", shape, elements=numbers)))
    legal_NA = torch.from_numpy(draw(hnp.arrays("bool", shape)))
    always_N = torch.tensor(draw(st.lists(st.integers(0, shape[1] - 1), min_size=shape[0], max_size=shape[0])))
    legal_NA[torch.arange(shape[0]), always_N] = True
    return logits_NA, legal_NA


def numeric_gradient(function, point: Tensor, eps: float = 1e-5) -> Tensor:
    """Central differences of a scalar function, one coordinate at a time."""
    gradient = torch.zeros_like(point)
    for i in range(point.numel()):
        offset = torch.zeros_like(point)
        offset.view(-1)[i] = eps
        gradient.view(-1)[i] = (function(point + offset) - function(point - offset)) / (2 * eps)
    return gradient


def gradient(function, point: Tensor) -> Tensor:
    point = point.clone().requires_grad_()
    function(point).backward()
    return point.grad


# ---- distributions over legal actions ------------------------------------------------------------------------------


def test_restricted_log_softmax_renormalises_over_the_legal_actions():
    # Weights 1, 3 and 4; without the last one, the shares are 1/4 and 3/4.
    logits_NA = torch.tensor([[1.0, 3.0, 4.0]]).log()
    logp_NA = losses.restricted_log_softmax(logits_NA, torch.tensor([[True, True, False]]))
    torch.testing.assert_close(logp_NA, torch.tensor([[math.log(0.25), math.log(0.75), -INF]]))


@given(logits_and_legal())
def test_only_legal_actions_have_mass_and_it_sums_to_one(case):
    logits_NA, legal_NA = case
    logp_NA = losses.restricted_log_softmax(logits_NA, legal_NA)
    torch.testing.assert_close(logp_NA.exp().sum(-1), torch.ones(len(logits_NA), dtype=torch.float64))
    assert torch.equal(logp_NA.isneginf(), ~legal_NA)


@given(logits_and_legal())
def test_illegal_logits_change_nothing_and_get_no_gradient(case):
    logits_NA, legal_NA = case
    moved_NA = torch.where(legal_NA, logits_NA, logits_NA + 7)
    assert torch.equal(
        losses.restricted_log_softmax(logits_NA, legal_NA), losses.restricted_log_softmax(moved_NA, legal_NA)
    )
    grad_NA = gradient(lambda x: losses.entropy(losses.restricted_log_softmax(x, legal_NA)).sum(), logits_NA)
    assert torch.all(grad_NA[~legal_NA] == 0)


def test_half_precision_logits_give_float32_log_probabilities():
    logits_NA = torch.zeros(1, 3, dtype=torch.bfloat16)
    logp_NA = losses.restricted_log_softmax(logits_NA, torch.ones(1, 3, dtype=torch.bool))
    torch.testing.assert_close(logp_NA, torch.full((1, 3), -math.log(3)))


@given(st.floats(0.02, 0.98), st.floats(0.02, 0.98))
def test_the_brier_score_is_lowest_at_the_true_probability(truth: float, other: float):
    def expected(probability: float) -> float:
        logp_N = torch.tensor([probability, probability], dtype=torch.float64).log()
        wins, defeats = losses.brier_score(logp_N, torch.tensor([1.0, 0.0]))
        return float(truth * wins + (1 - truth) * defeats)

    assert expected(truth) == pytest.approx(truth * (1 - truth))
    assert expected(other) == pytest.approx(expected(truth) + (other - truth) ** 2)


def test_entropy_by_hand():
    # Uniform over 4 (one more illegal): ln 4. Certain: 0. (1/4, 3/4): ln 4 - 3/4 ln 3.
    probs_NA = torch.tensor([[0.25, 0.25, 0.25, 0.25, 0.0], [0, 1, 0, 0, 0], [0.25, 0.75, 0, 0, 0]])
    expected_N = torch.tensor([math.log(4), 0.0, math.log(4) - 0.75 * math.log(3)])
    torch.testing.assert_close(losses.entropy(probs_NA.log()), expected_N)


def test_kl_by_hand():
    # pi = (1/2, 1/2), ref = (1/4, 3/4): 1/2 ln 2 + 1/2 ln 2/3 = 1/2 ln 4/3.
    logp_NA = torch.tensor([[0.5, 0.5, 0.0]]).log()
    ref_logp_NA = torch.tensor([[0.25, 0.75, 0.0]]).log()
    torch.testing.assert_close(losses.categorical_kl(logp_NA, ref_logp_NA), torch.tensor([0.5 * math.log(4 / 3)]))


def test_kl_is_infinite_only_where_the_reference_forbids_what_the_policy_does():
    both, first = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[1.0, 0.0]]).log()
    assert losses.categorical_kl(both, first).item() == INF
    torch.testing.assert_close(losses.categorical_kl(first, both), torch.tensor([math.log(2)]))


@given(logits_and_legal(), st.integers(0, 2**31))
def test_kl_is_never_negative_and_zero_at_equality(case, seed):
    logits_NA, legal_NA = case
    other_NA = logits_NA + torch.randn(logits_NA.shape, generator=torch.Generator().manual_seed(seed))
    logp_NA = losses.restricted_log_softmax(logits_NA, legal_NA)
    ref_logp_NA = losses.restricted_log_softmax(other_NA, legal_NA)
    assert torch.all(losses.categorical_kl(logp_NA, ref_logp_NA) >= -1e-12)
    assert torch.all(losses.categorical_kl(logp_NA, logp_NA) == 0)


@given(logits_and_legal())
@settings(max_examples=20)
def test_gradients_of_entropy_and_kl_match_finite_differences(case):
    logits_NA, legal_NA = case
    ref_logp_NA = losses.restricted_log_softmax(torch.zeros_like(logits_NA), legal_NA)

    def total(x):
        logp_NA = losses.restricted_log_softmax(x, legal_NA)
        return (2 * losses.entropy(logp_NA) + losses.categorical_kl(logp_NA, ref_logp_NA)).sum()

    torch.testing.assert_close(gradient(total, logits_NA), numeric_gradient(total, logits_NA), atol=1e-6, rtol=1e-4)


# ---- supervised learning -------------------------------------------------------------------------------------------


def test_completion_nll_by_hand():
    # p(target) = 1/4 and 1/2: the mean of ln 4 and ln 2 is 3/2 ln 2; weighted 1 to 3 it is (2 + 3) / 4 ln 2.
    logits_NV = torch.tensor([[0.25, 0.75], [0.5, 0.5]]).log()
    targets_N = torch.tensor([0, 1])
    torch.testing.assert_close(losses.completion_nll(logits_NV, targets_N), torch.tensor(1.5 * math.log(2)))
    weighted = losses.completion_nll(logits_NV, targets_N, torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(weighted, torch.tensor(1.25 * math.log(2)))


def test_a_token_of_weight_zero_has_no_gradient():
    logits_NV, targets_N = torch.zeros(2, 3), torch.tensor([0, 1])
    grad_NV = gradient(lambda x: losses.completion_nll(x, targets_N, torch.tensor([1, 0])), logits_NV)
    # softmax - one-hot of the first row, divided by the one token that counts
    torch.testing.assert_close(grad_NV, torch.tensor([[-2 / 3, 1 / 3, 1 / 3], [0, 0, 0]]))


@pytest.mark.parametrize("tokens", [0, 2])
def test_nothing_to_learn_from_is_zero_not_nan(tokens):
    logits_NV, targets_N = torch.zeros(tokens, 3), torch.zeros(tokens, dtype=torch.long)
    weights_N = torch.zeros(tokens)
    assert losses.completion_nll(logits_NV, targets_N, weights_N).item() == 0
    assert torch.all(gradient(lambda x: losses.completion_nll(x, targets_N, weights_N), logits_NV) == 0)


# ---- returns, baselines, advantages --------------------------------------------------------------------------------


def test_rewards_to_go_by_hand():
    # From the end: 4; 2 + 4/2 = 4; 1 + 4/2 = 3.
    torch.testing.assert_close(losses.rewards_to_go(torch.tensor([1.0, 2.0, 4.0]), 0.5), torch.tensor([3.0, 4.0, 4.0]))


def test_rewards_to_go_takes_whole_numbers_and_no_steps():
    torch.testing.assert_close(losses.rewards_to_go(torch.tensor([1, 1]), 0.5), torch.tensor([1.5, 1.0]))
    assert losses.rewards_to_go(torch.tensor([]), 1.0).shape == (0,)


@given(vectors(), st.floats(0, 1))
def test_rewards_to_go_obeys_its_recursion(rewards_T, gamma):
    returns_T = losses.rewards_to_go(rewards_T, gamma)
    following_T = torch.cat([returns_T[1:], torch.zeros(1)])
    torch.testing.assert_close(returns_T, rewards_T + gamma * following_T)


def test_gae_by_hand():
    # gamma = lambda = 1/2, bootstrap 8. delta_1 = 2 + 8/2 - 1 = 5; delta_0 = 1 + 1/2 - 3 = -3/2.
    # A_1 = 5; A_0 = -3/2 + 5/4 = -1/4.
    advantages_T = losses.gae(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 1.0]), 0.5, 0.5, bootstrap=8.0)
    torch.testing.assert_close(advantages_T, torch.tensor([-0.25, 5.0]))


@given(vectors(), st.floats(0, 1))
def test_gae_with_lambda_one_is_return_minus_value(rewards_T, gamma):
    values_T = torch.linspace(-3, 5, len(rewards_T), dtype=torch.float64)
    expected_T = losses.rewards_to_go(rewards_T, gamma) - values_T
    torch.testing.assert_close(losses.gae(rewards_T, values_T, gamma, 1.0), expected_T)


@given(vectors(), st.floats(0, 1), numbers)
def test_gae_with_lambda_zero_is_the_one_step_error(rewards_T, gamma, bootstrap):
    values_T = torch.linspace(-3, 5, len(rewards_T), dtype=torch.float64)
    next_T = torch.cat([values_T[1:], torch.tensor([bootstrap])])
    expected_T = rewards_T + gamma * next_T - values_T
    torch.testing.assert_close(losses.gae(rewards_T, values_T, gamma, 0.0, bootstrap), expected_T)


def test_gae_gives_no_gradient_to_the_critic():
    values_T = torch.ones(2, requires_grad=True)
    assert not losses.gae(torch.ones(2), values_T, 1.0, 0.95).requires_grad


def test_baselines_by_hand():
    # Mean of 1, 2, 6 is 3. The others' means: (2 + 6)/2, (1 + 6)/2, (1 + 2)/2.
    returns_K = torch.tensor([1.0, 2.0, 6.0])
    torch.testing.assert_close(losses.baseline_mean(returns_K), torch.tensor([3.0, 3.0, 3.0]))
    torch.testing.assert_close(losses.baseline_leave_one_out(returns_K), torch.tensor([4.0, 3.5, 1.5]))


def test_an_episode_alone_has_baseline_zero():
    assert losses.baseline_leave_one_out(torch.tensor([5.0])).tolist() == [0.0]


@given(vectors(least=2), st.data())
def test_leave_one_out_does_not_depend_on_the_own_return(returns_K, data):
    k = data.draw(st.integers(0, len(returns_K) - 1))
    changed_K = returns_K.clone()
    changed_K[k] = data.draw(numbers)
    before, after = losses.baseline_leave_one_out(returns_K)[k], losses.baseline_leave_one_out(changed_K)[k]
    torch.testing.assert_close(before, after, atol=1e-9, rtol=0)


def test_normalise_by_hand():
    # Root mean square of (3, -4, 5, 0): sqrt(50 / 4) = sqrt(12.5).
    advantages_N = torch.tensor([3.0, -4.0, 5.0, 0.0])
    torch.testing.assert_close(losses.normalise(advantages_N), advantages_N / math.sqrt(12.5))


@given(vectors(elements=st.floats(0.01, 20)), st.floats(0.1, 100))
def test_normalise_forgets_the_scale_and_keeps_signs(advantages_N, scale):
    advantages_N = advantages_N * torch.tensor([1.0, -1.0] * 4, dtype=torch.float64)[: len(advantages_N)]
    scaled_N = losses.normalise(advantages_N)
    torch.testing.assert_close(losses.normalise(advantages_N * scale), scaled_N)
    assert torch.equal(scaled_N.sign(), advantages_N.sign())
    assert scaled_N.abs().max() <= math.sqrt(len(scaled_N)) + 1e-9


def test_centred_advantages_come_out_with_standard_deviation_one_and_zeros_stay():
    centred_N = torch.tensor([-2.0, -1.0, 3.0])
    torch.testing.assert_close(losses.normalise(centred_N).std(correction=0), torch.tensor(1.0))
    assert losses.normalise(torch.zeros(3)).tolist() == [0, 0, 0]


# ---- policy and value losses ---------------------------------------------------------------------------------------


def test_reinforce_by_hand():
    # -(2 ln 1/2 + (-1) ln 1/4) / 2 = -(-2 ln 2 + 2 ln 2) / 2 = 0; the gradient is -A / N.
    logp_N, advantages_N = torch.tensor([0.5, 0.25]).log(), torch.tensor([2.0, -1.0])
    torch.testing.assert_close(losses.reinforce_loss(logp_N, advantages_N), torch.tensor(0.0))
    grad_N = gradient(lambda x: losses.reinforce_loss(x, advantages_N), logp_N)
    torch.testing.assert_close(grad_N, torch.tensor([-1.0, 0.5]))


def test_ppo_by_hand():
    # Ratios 2, 2, 1/2, 1/2 with advantages +1, -1, +1, -1 and clip 0.1. The pessimistic choices are
    # 1.1 (clipped), -2, 0.5 and -0.9 (clipped): their sum is -1.3, so the loss is 1.3 / 4.
    logp_N, old_logp_N = torch.tensor([2.0, 2.0, 0.5, 0.5]).log(), torch.zeros(4)
    advantages_N = torch.tensor([1.0, -1.0, 1.0, -1.0])
    loss, outside = losses.ppo_loss(logp_N, old_logp_N, advantages_N, 0.1)
    torch.testing.assert_close(loss, torch.tensor(1.3 / 4))
    assert outside.item() == 1.0
    # Clipped terms are flat; the others have gradient -A rho / N: +2/4 and -0.5/4.
    grad_N = gradient(lambda x: losses.ppo_loss(x, old_logp_N, advantages_N, 0.1)[0], logp_N)
    torch.testing.assert_close(grad_N, torch.tensor([0.0, 0.5, -0.125, 0.0]))


def test_the_upper_clip_may_be_wider():
    logp_N, advantages_N = torch.tensor([1.15, 1.3, 0.85]).log(), torch.ones(3)
    loss, outside = losses.ppo_loss(logp_N, torch.zeros(3), advantages_N, 0.1, clip_high=0.2)
    torch.testing.assert_close(loss, torch.tensor(-(1.15 + 1.2 + 0.85) / 3))
    assert outside.item() == pytest.approx(2 / 3)


def test_the_dual_clip_bounds_what_a_bad_choice_costs():
    logp_N, advantages_N = torch.tensor([5.0, 5.0, 2.0]).log(), torch.tensor([-1.0, 1.0, -1.0])
    loss, _ = losses.ppo_loss(logp_N, torch.zeros(3), advantages_N, 0.1, dual_clip=3.0)
    torch.testing.assert_close(loss, torch.tensor(-(-3.0 + 1.1 - 2.0) / 3))
    grad_N = gradient(lambda x: losses.ppo_loss(x, torch.zeros(3), advantages_N, 0.1, dual_clip=3.0)[0], logp_N)
    torch.testing.assert_close(grad_N, torch.tensor([0.0, 0.0, 2 / 3]))


def test_the_recipe_sets_every_clip():
    logp_N, old_N, advantages_N = torch.tensor([5.0, 1.3, 0.7]).log(), torch.zeros(3), torch.tensor([-1.0, 1.0, -1.0])
    config = RLConfig(algorithm="ppo", clip_coef=0.1, clip_high=0.25, dual_clip=3.0)
    terms = losses.POLICY_LOSSES["ppo"](logp_N, old_N, advantages_N, config)
    torch.testing.assert_close(terms["policy_loss"], torch.tensor(-(-3.0 + 1.25 - 0.9) / 3))
    assert terms["clip_fraction"].item() == pytest.approx(1.0)


@given(vectors(elements=st.floats(-5, -0.01)), st.floats(-1, 1))
def test_the_estimated_divergence_is_never_negative_and_zero_where_nothing_moved(logp_N, shift):
    assert losses.approximate_kl(logp_N, logp_N).item() == 0
    assert losses.approximate_kl(logp_N + shift, logp_N).item() >= 0


def test_the_estimated_divergence_by_hand():
    moved = losses.approximate_kl(torch.tensor([2.0, 1.0]).log(), torch.zeros(2))
    torch.testing.assert_close(moved, torch.tensor((2 - 1 - 0.6931472) / 2))


def test_clip_fraction_counts_ratios_outside_the_interval():
    logp_N = torch.tensor([1.0, 1.05, 1.2, 0.7]).log()
    _, outside = losses.ppo_loss(logp_N, torch.zeros(4), torch.ones(4), 0.1)
    assert outside.item() == 0.5


@given(vectors(elements=st.floats(-5, -0.01)), st.floats(0.01, 0.5))
def test_ppo_at_ratio_one_has_the_gradient_of_reinforce(logp_N, clip_coef):
    advantages_N = torch.linspace(-2, 3, len(logp_N), dtype=torch.float64)
    ppo_N = gradient(lambda x: losses.ppo_loss(x, logp_N, advantages_N, clip_coef)[0], logp_N)
    reinforce_N = gradient(lambda x: losses.reinforce_loss(x, advantages_N), logp_N)
    torch.testing.assert_close(ppo_N, reinforce_N)


def test_policy_losses_send_no_gradient_into_advantages_or_the_old_policy():
    logp_N = torch.zeros(3, requires_grad=True)
    old_logp_N, advantages_N = torch.zeros(3, requires_grad=True), torch.ones(3, requires_grad=True)
    (losses.reinforce_loss(logp_N, advantages_N) + losses.ppo_loss(logp_N, old_logp_N, advantages_N, 0.1)[0]).backward()
    assert logp_N.grad is not None and old_logp_N.grad is None and advantages_N.grad is None


def test_a_reinforce_step_makes_the_better_action_likelier():
    logits_NA, legal_NA = torch.zeros(2, 3), torch.tensor([[True, True, False]] * 2)
    actions_N, advantages_N = torch.tensor([[0], [1]]), torch.tensor([1.0, -1.0])

    def loss(x):
        logp_N = losses.restricted_log_softmax(x, legal_NA).gather(1, actions_N).squeeze(1)
        return losses.reinforce_loss(logp_N, advantages_N)

    probs_NA = losses.restricted_log_softmax(logits_NA - gradient(loss, logits_NA), legal_NA).exp()
    assert torch.all(probs_NA[:, 0] > 0.5) and torch.all(probs_NA[:, 2] == 0)


def test_value_loss_by_hand():
    # Errors 1 and -2: (1 + 4) / 2; gradient 2 error / N.
    values_N, returns_N = torch.tensor([2.0, 1.0]), torch.tensor([1.0, 3.0])
    assert losses.value_loss(values_N, returns_N).item() == 2.5
    assert gradient(lambda x: losses.value_loss(x, returns_N), values_N).tolist() == [1.0, -2.0]


def test_a_clipped_value_loss_by_hand():
    # Predictions 0 before the update, clipped to 0.5: errors max(0, 0.5^2), max(1, 1.5^2), and 0.1^2 within the range.
    values_N, returns_N, old_N = torch.tensor([1.0, 1.0, 0.3]), torch.tensor([1.0, 2.0, 0.2]), torch.zeros(3)
    assert losses.value_loss(values_N, returns_N, old_N, 0.5).item() == pytest.approx((0.25 + 2.25 + 0.01) / 3)
    assert losses.value_loss(values_N, returns_N, old_N, 0.0) == losses.value_loss(values_N, returns_N)
    # A prediction that has moved as far as it may learns nothing; one that moved the wrong way is pulled back whole.
    moved = gradient(lambda x: losses.value_loss(x, returns_N, old_N, 0.5), values_N)
    assert moved.tolist() == pytest.approx([0.0, 0.0, 2 * 0.1 / 3])
    wrong_N = torch.tensor([-1.0, 1.0, 0.3])
    assert gradient(lambda x: losses.value_loss(x, returns_N, old_N, 0.5), wrong_N)[0] == pytest.approx(-4 / 3)


def test_explained_variance_by_hand():
    returns_N = torch.tensor([0.0, 2.0, 4.0])
    # Residuals 1, 2, 3 have variance 2/3, the returns 8/3: 1 - 1/4.
    assert losses.explained_variance(torch.tensor([-1.0, 0.0, 1.0]), returns_N) == pytest.approx(0.75)
    assert losses.explained_variance(returns_N, returns_N) == 1.0
    assert losses.explained_variance(torch.full((3,), 9.0), returns_N) == pytest.approx(0.0)
    assert losses.explained_variance(-returns_N, returns_N) == pytest.approx(-3.0)
    assert losses.explained_variance(returns_N, torch.ones(3)) == 0.0
