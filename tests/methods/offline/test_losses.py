"""Offline losses and their gradients against numbers worked out by hand, and the identities between them.

The two completions of two tokens that most examples use: probabilities (1/2, 1/4) and (1/5, 1), under the reference
(1/4, 1/4) and (2/5, 1/10). So nll is ln 8 and ln 5; the ratios are 2 and 5, of tokens (2, 1) and (1/2, 10).
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from reflectrl.methods.shared.offline import losses

settings.register_profile("quick", max_examples=50, deadline=None)
settings.load_profile("quick")

LOGP = torch.tensor([[1 / 2, 1 / 4], [1 / 5, 1.0]], dtype=torch.float64).log()
REF = torch.tensor([[1 / 4, 1 / 4], [2 / 5, 1 / 10]], dtype=torch.float64).log()
WEIGHTS = torch.tensor([2.0, 3.0], dtype=torch.float64)
LN = math.log


def with_gradient(function, logp: Tensor) -> tuple[Tensor, Tensor]:
    """The losses, and the gradient of their sum."""
    logp = logp.clone().requires_grad_()
    found = function(logp)
    found.sum().backward()
    return found.detach(), logp.grad


BY_HAND = {
    # name: (loss of each sample, gradient of their sum)
    "nll": (lambda x, ref: losses.nll(x), [LN(8), LN(5)], [[-1, -1], [-1, -1]]),
    "wbc": (lambda x, ref: losses.wbc(x, WEIGHTS), [2 * LN(8), 3 * LN(5)], [[-2, -2], [-3, -3]]),
    # 2 (1/2 ln 2 + 1/4 ln 4), 3 (1/5 ln 5 + 1 · 0)
    "r_gold": (lambda x, ref: losses.r_gold(x, WEIGHTS), [2 * LN(2), 0.6 * LN(5)], [[-1, -0.5], [-0.6, -3]]),
    # a floor of 0.3 lifts 1/4 and 1/5: 2 (1/2 ln 2 + 0.3 ln 4), 3 · 0.3 ln 5
    "r_gold, floor": (
        lambda x, ref: losses.r_gold(x, WEIGHTS, 0.3),
        [2.2 * LN(2), 0.9 * LN(5)],
        [[-1, -0.6], [-0.9, -3]],
    ),
    # ratios 2 and 5, clipped to 1.9
    "r_lol": (lambda x, ref: losses.r_lol(x, ref, WEIGHTS), [3.8 * LN(8), 5.7 * LN(5)], [[-3.8, -3.8], [-5.7, -5.7]]),
    # a wider clip keeps the 2 and cuts the 5 to 3
    "a_lol": (lambda x, ref: losses.a_lol(x, ref, WEIGHTS, 2.0), [4 * LN(8), 9 * LN(5)], [[-4, -4], [-9, -9]]),
    "a_lol_ref_free": (lambda x, ref: losses.a_lol_ref_free(x, WEIGHTS), [2 * LN(8), 3 * LN(5)], [[-2, -2], [-3, -3]]),
    # token ratios (1.9, 1) and (1/2, 1.9): 2 (1.9 ln 2 + ln 4), 3 (1/2 ln 5 + 1.9 · 0)
    "a_lol_seq": (
        lambda x, ref: losses.a_lol_seq(x, ref, WEIGHTS),
        [7.8 * LN(2), 1.5 * LN(5)],
        [[-3.8, -2], [-1.5, -5.7]],
    ),
    # 2 ln 8 + 1/2 ln 2, 3 ln 5 + 1/2 ln 5; gradient -(A - 1/2)
    "a_lol_kl": (
        lambda x, ref: losses.a_lol_kl(x, ref, WEIGHTS, 0.5),
        [6.5 * LN(2), 3.5 * LN(5)],
        [[-1.5, -1.5], [-2.5, -2.5]],
    ),
    # r = (1/2, 1) and (2, 1/10); k3 = r - 1 - ln r = (ln 2 - 1/2, 0), (1 - ln 2, ln 10 - 9/10); d k3 / d log pi = 1 - r
    "a_lol_kl, k3": (
        lambda x, ref: losses.a_lol_kl(x, ref, WEIGHTS, 0.5, "k3"),
        [6.5 * LN(2) - 0.25, 3.5 * LN(5) + 0.05],
        [[-1.75, -2], [-3.5, -2.55]],
    ),
    # e^(1/2 · 2) = e for the first; e^(1/2 · 3) = 4.48 is cut to 4
    "awr": (
        lambda x, ref: losses.awr(x, WEIGHTS, 0.5, most=4.0),
        [math.e * LN(8), 4 * LN(5)],
        [[-math.e] * 2, [-4, -4]],
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_loss_and_gradient_by_hand(name):
    function, expected_N, expected_grad_NT = BY_HAND[name]
    found_N, grad_NT = with_gradient(lambda x: function(x, REF), LOGP)
    torch.testing.assert_close(found_N, torch.tensor(expected_N, dtype=torch.float64))
    torch.testing.assert_close(grad_NT, torch.tensor(expected_grad_NT, dtype=torch.float64))


@pytest.mark.parametrize("name", BY_HAND)
def test_padding_changes_nothing(name):
    function, padding = BY_HAND[name][0], torch.zeros(2, 3, dtype=torch.float64)
    longer_ref = torch.cat([REF, padding], 1)
    found_N, grad_NT = with_gradient(lambda x: function(x, longer_ref), torch.cat([LOGP, padding], 1))
    expected_N, expected_NT = with_gradient(lambda x: function(x, REF), LOGP)
    torch.testing.assert_close(found_N, expected_N)
    torch.testing.assert_close(grad_NT[:, :2], expected_NT)


def test_ratios_by_hand():
    torch.testing.assert_close(losses.sequence_ratios(LOGP, REF), torch.tensor([2.0, 5.0], dtype=torch.float64))
    ratios_NT = losses.token_ratios(LOGP, REF)
    torch.testing.assert_close(ratios_NT, torch.tensor([[2.0, 1.0], [0.5, 10.0]], dtype=torch.float64))
    torch.testing.assert_close(losses.clipped(ratios_NT, 0.9)[1], torch.tensor([0.5, 1.9], dtype=torch.float64))
    assert losses.outside(ratios_NT, 0.9).tolist() == [[True, False], [False, True]]
    assert losses.clipped(torch.tensor([0.01]), 0.9).item() == pytest.approx(0.1)


def test_expectile_by_hand():
    """Errors 2 and -1 at a share of 0.9: 0.9 · 4 and 0.1 · 1; gradients 2 · 0.9 · 2 and -2 · 0.1 · 1."""
    loss_N, grad_N = with_gradient(lambda x: losses.expectile(x, 0.9), torch.tensor([2.0, -1.0, 0.0]))
    torch.testing.assert_close(loss_N, torch.tensor([3.6, 0.1, 0.0]))
    torch.testing.assert_close(grad_N, torch.tensor([3.6, -0.2, 0.0]))


@given(hnp.arrays(float, 7, elements=st.floats(-3, 3)), st.floats(0.05, 0.95))
def test_an_expectile_lies_between_the_extremes_and_is_the_mean_at_one_half(q, share):
    """The loss falls towards the expectile from either end; at one half it is flat at the mean."""
    q_N = torch.tensor(q)

    def slope(value: Tensor, share: float) -> float:
        return float(with_gradient(lambda v: losses.expectile(q_N - v, share), value)[1])

    assert slope(q_N.min(), share) <= 0 <= slope(q_N.max(), share)
    assert slope(q_N.mean(), 0.5) == pytest.approx(0, abs=1e-6)
    assert slope(q_N.mean(), max(share, 1 - share)) <= 1e-6


# ---- preferences -----------------------------------------------------------------------------------------------------


def test_dpo_by_hand():
    # Chosen 1/8, rejected 1/5; reference 1/16 and 1/25: the margin is ln 2 - ln 5 = ln 2/5, and sigmoid(ln x) is
    # x / (1 + x). The gradient is -beta (1 - sigmoid) = -5/7 on each chosen token, +5/7 on each rejected one.
    function = lambda x: losses.dpo(x[:1], x[1:], 1.0, REF[:1], REF[1:])  # noqa: E731
    found_P, grad_NT = with_gradient(function, LOGP)
    torch.testing.assert_close(found_P, torch.tensor([LN(7 / 2)], dtype=torch.float64))
    torch.testing.assert_close(grad_NT, torch.tensor([[-5 / 7] * 2, [5 / 7] * 2], dtype=torch.float64))
    # Without the reference the margin is ln 5/8: -ln (5/8 / (13/8)) = ln 13/5, gradient 8/13.
    found_P, grad_NT = with_gradient(lambda x: losses.dpo(x[:1], x[1:], 1.0), LOGP)
    torch.testing.assert_close(found_P, torch.tensor([LN(13 / 5)], dtype=torch.float64))
    torch.testing.assert_close(grad_NT, torch.tensor([[-8 / 13] * 2, [8 / 13] * 2], dtype=torch.float64))


def test_pro_by_hand():
    # Token means (-ln 8 / 2, -ln 5 / 2), rewards 3 and 1: -ln sigmoid(2 (s_1 - s_2)) = -ln sigmoid(ln 5/8) = ln 13/5;
    # the gradient of each token is 8/13 · 2 / 2. And 0.05 · 1 · ln 8, -0.05 for each token of the best.
    lengths_K, rewards_K = torch.tensor([2, 2]), torch.tensor([3.0, 1.0], dtype=torch.float64)
    found, grad_KT = with_gradient(lambda x: losses.pro(x, lengths_K, rewards_K), LOGP)
    torch.testing.assert_close(found, torch.tensor(LN(13 / 5) + 0.05 * LN(8), dtype=torch.float64))
    torch.testing.assert_close(grad_KT, torch.tensor([[-8 / 13 - 0.05] * 2, [8 / 13] * 2], dtype=torch.float64))


def test_pro_imitates_the_completion_that_is_named():
    lengths_K, rewards_K = torch.tensor([2, 2]), torch.tensor([3.0, 1.0], dtype=torch.float64)
    found = losses.pro(LOGP, lengths_K, rewards_K, target=1)
    assert found.item() == pytest.approx(LN(13 / 5) + 0.05 * LN(5))


def test_ratios_are_not_clipped_at_0():
    ratios_NT = torch.tensor([[0.01, 5.0]])
    assert losses.clipped(ratios_NT, 0).equal(ratios_NT)
    assert not losses.outside(ratios_NT, 0).any()


def test_r_lol_with_a_penalty_by_hand():
    # A reward of 2 times ln 8, and a tenth of the distance to a reference of probability 1/4.
    ref_NT = torch.tensor([[LN(1 / 2), LN(1 / 2)]], dtype=torch.float64)
    found_N, grad_NT = with_gradient(lambda x: losses.r_lol_kl(x, ref_NT, torch.tensor([2.0]), 0.1), LOGP[:1])
    torch.testing.assert_close(found_N, torch.tensor([2 * LN(8) + 0.1 * LN(2 / 8 * 2)], dtype=torch.float64))
    torch.testing.assert_close(grad_NT, torch.full_like(grad_NT, -2 + 0.1))


def test_pro_of_three_by_hand():
    # Scores ln (1/2, 1/3, 1/6), rewards 3, 2, 1. First: distances 1 and 2, own exponent 2: (1/2)^2 = 1/4 against
    # 1/3 and (1/6)^2 = 1/36: 9 / (9 + 12 + 1). Second: distance 1: 1/3 against 1/6: 2/3. And 0.1 · 2^2 · ln 2.
    logp_KT = torch.tensor([[1 / 2], [1 / 3], [1 / 6]], dtype=torch.float64).log()
    rewards_K = torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)
    found = losses.pro(logp_KT, torch.ones(3), rewards_K, sft_coef=0.1)
    assert found.item() == pytest.approx(LN(22 / 9) + LN(3 / 2) + 0.4 * LN(2))


def test_pro_does_not_order_what_earned_the_same():
    logp_KT = torch.tensor([[-1.0], [-2.0], [-3.0]], requires_grad=True)
    losses.pro(logp_KT, torch.ones(3), torch.tensor([1.0, 1.0, 0.0]), sft_coef=0.0).backward()
    _, alone = with_gradient(
        lambda x: losses.pro(x, torch.ones(2), torch.tensor([1.0, 0.0]), 0.0), logp_KT[1:].detach()
    )
    torch.testing.assert_close(logp_KT.grad[1:2], alone[:1])
    _, tie = with_gradient(lambda x: losses.pro(x, torch.ones(3), torch.ones(3), 0.0) + 0 * x.sum(), logp_KT.detach())
    assert tie.abs().max() == 0


# ---- identities ------------------------------------------------------------------------------------------------------

logps = hnp.arrays("float64", st.tuples(st.integers(1, 4), st.integers(1, 6)), elements=st.floats(-4, -0.01)).map(
    torch.from_numpy
)


@st.composite
def cases(draw):
    """Log-probabilities, those of a reference nearby, and advantages."""
    logp_NT = draw(logps)
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    ref_NT = (logp_NT + torch.randn(logp_NT.shape, generator=generator, dtype=torch.float64)).clamp_max(0)
    return logp_NT, ref_NT, 2 * torch.rand(len(logp_NT), generator=generator, dtype=torch.float64)


@given(cases(), st.floats(0, 2))
def test_the_kl_penalty_is_ref_free_with_shifted_advantages(case, beta):
    logp_NT, ref_NT, advantages_N = case
    loss_N, grad_NT = with_gradient(lambda x: losses.a_lol_kl(x, ref_NT, advantages_N, beta), logp_NT)
    free_N, free_NT = with_gradient(lambda x: losses.a_lol_ref_free(x, advantages_N - beta), logp_NT)
    torch.testing.assert_close(grad_NT, free_NT)
    torch.testing.assert_close(loss_N, free_N + beta * losses.nll(ref_NT))


@given(cases(), st.floats(0.1, 0.9))
def test_at_the_reference_three_of_the_family_are_one(case, clip):
    logp_NT, _, advantages_N = case
    expected_N, expected_NT = with_gradient(lambda x: losses.a_lol_ref_free(x, advantages_N), logp_NT)
    for function in (losses.a_lol, losses.a_lol_seq):
        loss_N, grad_NT = with_gradient(lambda x, f=function: f(x, logp_NT, advantages_N, clip), logp_NT)
        torch.testing.assert_close(loss_N, expected_N)
        torch.testing.assert_close(grad_NT, expected_NT)


@given(cases(), st.floats(0, 2))
def test_k3_is_never_negative_and_still_at_the_reference(case, beta):
    logp_NT, ref_NT, advantages_N = case
    assert torch.all(losses.k3(ref_NT - logp_NT) >= 0)
    _, grad_NT = with_gradient(lambda x: losses.a_lol_kl(x, logp_NT, advantages_N, beta, "k3"), logp_NT)
    _, free_NT = with_gradient(lambda x: losses.a_lol_ref_free(x, advantages_N), logp_NT)
    torch.testing.assert_close(grad_NT, free_NT)


@given(logps, st.floats(0.01, 5), st.integers(0, 2**31))
def test_pro_of_two_is_logistic(logp_NT, distance, seed):
    generator = torch.Generator().manual_seed(seed)
    pair_KT = torch.cat([logp_NT[:1], -torch.rand(1, logp_NT.shape[1], generator=generator, dtype=torch.float64)])
    lengths_K = torch.full((2,), pair_KT.shape[1])
    rewards_K = torch.tensor([distance, 0.0], dtype=torch.float64)
    found = losses.pro(pair_KT, lengths_K, rewards_K, sft_coef=0.0)
    first, second = pair_KT.mean(1)
    torch.testing.assert_close(found, -torch.nn.functional.logsigmoid(distance * (first - second)))


@given(cases(), st.floats(0.01, 5))
def test_dpo_has_its_closed_form_and_is_log_2_at_the_reference(case, beta):
    logp_NT, ref_NT, _ = case
    other_NT = logp_NT.flip(0)
    found_P, grad_PT = with_gradient(lambda x: losses.dpo(x, other_NT, beta, ref_NT, ref_NT.flip(0)), logp_NT)
    margin_P = beta * (losses.sequence_ratios(logp_NT, ref_NT) / losses.sequence_ratios(other_NT, ref_NT.flip(0))).log()
    torch.testing.assert_close(found_P, (1 + (-margin_P).exp()).log())
    torch.testing.assert_close(grad_PT[:, 0], -beta / (1 + margin_P.exp()))
    at_reference_P = losses.dpo(logp_NT, other_NT, beta, logp_NT, other_NT)
    torch.testing.assert_close(at_reference_P, torch.full_like(at_reference_P, LN(2)))
