"""Losses of offline learning as pure functions of tensors: Advantage-Leftover-Lunch (A-LoL) and its relatives.

Source: Baheti et al. 2024, "Leftover Lunch: Advantage-based Offline Reinforcement Learning for Language Models"
(arXiv 2305.14718), unless a function names another. Every function returns one loss per sample, (N,). The loss of a
batch is their mean.

Tensor names carry their dimensions: N completions, T tokens of the longest completion, P preference pairs, K ranked
completions of one prompt. Log-probabilities are in nats. Completions shorter than T are padded with 0, the
log-probability of a certain event. Padding therefore adds nothing to any sum below, and no mask is needed.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

# ---- importance ratios (constants: nothing here carries a gradient) --------------------------------------------------


def sequence_ratios(logp_NT: Tensor, ref_logp_NT: Tensor) -> Tensor:
    """Return the importance ratio pi / pi_ref of each completion: [N, T], [N, T] -> [N]."""
    return (logp_NT.detach() - ref_logp_NT).sum(1).exp()


def token_ratios(logp_NT: Tensor, ref_logp_NT: Tensor) -> Tensor:
    """Return the importance ratio of each token given the tokens before it: [N, T], [N, T] -> [N, T]; 1 at padding."""
    return (logp_NT.detach() - ref_logp_NT).exp()


def clipped(ratios: Tensor, clip: float) -> Tensor:
    """Clamp ratios to [1 - clip, 1 + clip], unless clip is 0. PPO's minimum with the unclipped ratio is not taken."""
    if clip == 0:
        return ratios
    return ratios.clamp(1 - clip, 1 + clip)


def outside(ratios: Tensor, clip: float) -> Tensor:
    """Return a mask of the ratios that `clipped` changes. Padding counts as unchanged."""
    return ((ratios - 1).abs() > clip) & (clip > 0)


# ---- likelihood, weighted by rewards ---------------------------------------------------------------------------------


def nll(logp_NT: Tensor) -> Tensor:
    """Return the negative log-likelihood of each completion, summed over its tokens: [N, T] -> [N]."""
    return -logp_NT.sum(1)


def wbc(logp_NT: Tensor, rewards_N: Tensor) -> Tensor:
    """Weighted behaviour cloning: R · nll (Wang et al. 2020, "Critic Regularized Regression", without a critic)."""
    return rewards_N * nll(logp_NT)


def r_gold(logp_NT: Tensor, rewards_N: Tensor, floor: float = 0.1) -> Tensor:
    """Reward GOLD: R · sum_t max(pi_t, floor) · nll_t, where the weight max(pi_t, floor) carries no gradient.

    GOLD (Pang and He 2021, "Text Generation by Learning from Demonstrations") with a reward for each completion.

    Args:
        logp_NT: [N, T] with gradient.
        rewards_N: [N].
        floor: smallest weight, so that unlikely tokens are learned at all.
    """
    weights_NT = logp_NT.detach().exp().clamp_min(floor)
    return rewards_N * nll(weights_NT * logp_NT)


def r_lol(logp_NT: Tensor, ref_logp_NT: Tensor, rewards_N: Tensor, clip: float = 0.9) -> Tensor:
    """Reward LoL: R · clip(pi / pi_ref) · nll, with a whole completion as one action."""
    return clipped(sequence_ratios(logp_NT, ref_logp_NT), clip) * wbc(logp_NT, rewards_N)


def r_lol_kl(
    logp_NT: Tensor,
    ref_logp_NT: Tensor,
    rewards_N: Tensor,
    beta: float,
    estimator: Literal["difference", "k3"] = "difference",
) -> Tensor:
    """Reward LoL with a penalty instead of importance weights: R · nll + beta · KL, as in `a_lol_kl`."""
    return a_lol_kl(logp_NT, ref_logp_NT, rewards_N, beta, estimator)


# ---- likelihood, weighted by advantages ------------------------------------------------------------------------------


def a_lol(logp_NT: Tensor, ref_logp_NT: Tensor, advantages_N: Tensor, clip: float = 0.9) -> Tensor:
    """A-LoL: A · clip(pi / pi_ref) · nll.

    Args:
        logp_NT: [N, T] with gradient.
        ref_logp_NT: [N, T] under the frozen reference.
        advantages_N: [N] max(R - V, 0), V being the reference's value of the prompt.
        clip: ratios are clamped to [1 - clip, 1 + clip].
    """
    return r_lol(logp_NT, ref_logp_NT, advantages_N, clip)


def a_lol_ref_free(logp_NT: Tensor, advantages_N: Tensor) -> Tensor:
    """A-LoL without importance weights: A · nll."""
    return wbc(logp_NT, advantages_N)


def a_lol_seq(logp_NT: Tensor, ref_logp_NT: Tensor, advantages_N: Tensor, clip: float = 0.9) -> Tensor:
    """A-LoL with a ratio per token: A · sum_t clip(pi_t / pi_ref_t) · nll_t."""
    return advantages_N * nll(clipped(token_ratios(logp_NT, ref_logp_NT), clip) * logp_NT)


def a_lol_kl(
    logp_NT: Tensor,
    ref_logp_NT: Tensor,
    advantages_N: Tensor,
    beta: float,
    estimator: Literal["difference", "k3"] = "difference",
) -> Tensor:
    """A-LoL with a penalty instead of importance weights: A · nll + beta · KL.

    "difference" is the paper's: beta · (log pi - log pi_ref) at the logged completion. Its gradient equals the gradient
    of `a_lol_ref_free` with A - beta for A, so samples with A < beta are made less likely, without a bound.
    "k3" is r - 1 - log r per token, r = pi_ref / pi (Schulman 2020, "Approximating KL Divergence"): never negative,
    and without gradient at the reference.
    """
    log_ratio_NT = ref_logp_NT - logp_NT
    kl_NT = -log_ratio_NT if estimator == "difference" else k3(log_ratio_NT)
    return a_lol_ref_free(logp_NT, advantages_N) + beta * kl_NT.sum(1)


def k3(log_ratio_NT: Tensor) -> Tensor:
    """Return exp(x) - 1 - x for log-ratios x = log pi_ref - log pi: an estimate of KL(pi || pi_ref), 0 at padding."""
    return log_ratio_NT.expm1() - log_ratio_NT


# ---- with a critic of utterances -------------------------------------------------------------------------------------


def awr(logp_NT: Tensor, advantages_N: Tensor, beta: float, most: float = 100.0) -> Tensor:
    """Advantage-weighted regression: min(exp(beta · A), most) · nll, where A may be negative (Peng et al. 2019).

    Args:
        logp_NT: [N, T] with gradient.
        advantages_N: [N] Q - V. A bad action gets little weight, but is not made less likely.
        beta: inverse temperature. 0 imitates all actions equally; larger values favour the best.
        most: largest weight (as in the released code of implicit Q-learning).
    """
    return (beta * advantages_N).exp().clamp_max(most) * nll(logp_NT)


def expectile(errors_N: Tensor, share: float) -> Tensor:
    """Return squared errors, weighted by `share` where positive and by 1 - `share` where negative: [N] -> [N].

    With errors Q - V, V converges to an expectile of Q over the logged actions: their mean at a share of 0.5, their
    maximum as it goes to 1 (Kostrikov et al. 2022, "Offline Reinforcement Learning with Implicit Q-Learning", eq. 5).
    """
    return torch.where(errors_N < 0, 1 - share, share) * errors_N.square()


# ---- preferences -----------------------------------------------------------------------------------------------------


def dpo(
    chosen_PT: Tensor,
    rejected_PT: Tensor,
    beta: float,
    ref_chosen_PT: Tensor | None = None,
    ref_rejected_PT: Tensor | None = None,
) -> Tensor:
    """Direct preference optimisation: -log sigmoid(beta · margin), from summed log-probabilities.

    The margin is the policy's preference for the chosen completion, minus the reference's preference if its
    log-probabilities are given (Rafailov et al. 2023, "Direct Preference Optimization", equation 7).

    Returns:
        [P] losses; log 2 at the reference.
    """
    margin_P = chosen_PT.sum(1) - rejected_PT.sum(1)
    if ref_chosen_PT is not None and ref_rejected_PT is not None:
        margin_P = margin_P - (ref_chosen_PT.sum(1) - ref_rejected_PT.sum(1))
    return -functional.logsigmoid(beta * margin_P)


def pro(logp_KT: Tensor, lengths_K: Tensor, rewards_K: Tensor, sft_coef: float = 0.05, target: int = 0) -> Tensor:
    """Preference ranking optimisation for a prompt's K >= 2 completions, ordered from best to worst.

    Each completion in turn competes with all that are worse. With s the mean log-probability per token and
    d_i = R_k - R_i the distance to a worse one, its term is -log [e^(s_k max d) / (e^(s_k max d) + sum_i e^(s_i d_i))]
    (Song et al. 2024, "Preference Ranking Optimization for Human Alignment", equations 6 to 8). Two completions give
    -log sigmoid(d (s_1 - s_2)). Completions of equal reward are not compared. `sft_coef` · (K - 1)^2 · nll of the
    completion `target` is added.

    Args:
        logp_KT: [K, T] log-probabilities with gradient, ordered by falling reward.
        lengths_K: [K] tokens of each completion.
        rewards_K: [K] rewards.
        target: index of the completion that is also imitated; by default the best.

    Returns:
        Scalar loss of this list.
    """
    scores_K = logp_KT.sum(1) / lengths_K
    total = sft_coef * (len(rewards_K) - 1) ** 2 * nll(logp_KT[target : target + 1])[0]
    for k in range(len(rewards_K) - 1):
        distances = rewards_K[k] - rewards_K[k + 1 :]
        worse = distances > 0
        if worse.any():
            own = scores_K[k] * distances.max()
            others = scores_K[k + 1 :][worse] * distances[worse]
            total = total + torch.logsumexp(torch.cat([own[None], others]), 0) - own
    return total
