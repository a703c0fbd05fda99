"""Losses and advantages as pure functions of tensors: no model, no state, no randomness.

Tensor names carry their dimensions: T steps of one episode, N steps of a batch (or tokens, for text), K episodes of one
task, A actions, V vocabulary. Log-probabilities are in nats. An illegal action has log-probability -inf, and every
function here that reads log-probabilities still gives finite values and finite gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from reflectrl.core.policy_losses import POLICY_LOSSES, SINGLE_EPOCH, approximate_kl, ppo_loss, reinforce_loss

__all__ = [
    "POLICY_LOSSES", "SINGLE_EPOCH", "approximate_kl", "categorical_kl", "entropy", "explained_variance", "gae",
    "normalise", "ppo_loss", "reinforce_loss", "restricted_log_softmax", "value_loss",
]  # fmt: skip

# ---- distributions over legal actions ------------------------------------------------------------------------------


def restricted_log_softmax(logits_NA: Tensor, legal_NA: Tensor) -> Tensor:
    """Compute log-probabilities over the legal actions only, in float32 or better.

    log pi(a|s) = z_a - log sum_{b legal} exp z_b for legal a, and -inf otherwise. So an illegal action cannot be
    sampled, and its logit receives no gradient. This is invalid action masking (Huang and Ontanon 2022, "A Closer Look
    at Invalid Action Masking in Policy Gradient Algorithms", section 3).

    Args:
        logits_NA: [N, A] scores of the actions.
        legal_NA: [N, A] booleans; each row must have at least one True.

    Returns:
        [N, A] log-probabilities whose exponentials sum to 1 in each row.
    """
    dtype = torch.promote_types(logits_NA.dtype, torch.float32)
    return functional.log_softmax(logits_NA.to(dtype).masked_fill(~legal_NA, -torch.inf), dim=-1)


def entropy(logp_NA: Tensor) -> Tensor:
    """Compute the entropy H = -sum_a p_a log p_a of each row, with 0 log 0 = 0.

    Args:
        logp_NA: [N, A] normalised log-probabilities; -inf marks an illegal action.

    Returns:
        [N] entropies in nats.
    """
    # 0 times -inf would be nan, in the value and in the gradient.
    finite_NA = logp_NA.masked_fill(logp_NA.isneginf(), 0.0)
    return -(logp_NA.exp() * finite_NA).sum(-1)


def categorical_kl(logp_NA: Tensor, ref_logp_NA: Tensor) -> Tensor:
    """Compute KL(pi || ref) = sum_a pi_a (log pi_a - log ref_a) of each row, exactly (summed over the actions).

    An action that pi cannot take adds nothing. Where pi can take an action that ref cannot, the divergence is +inf.

    Args:
        logp_NA: [N, A] log-probabilities of the policy.
        ref_logp_NA: [N, A] log-probabilities of the reference, over the same legal actions.

    Returns:
        [N] divergences in nats, 0 where the rows agree.
    """
    log_ratio_NA = (logp_NA - ref_logp_NA).masked_fill(logp_NA.isneginf(), 0.0)
    return (logp_NA.exp() * log_ratio_NA).sum(-1)


def brier_score(logp_N: Tensor, right_N: Tensor) -> Tensor:
    """Compute (p_n - y_n)^2: the probability of a choice against 1 if it turned out right, and 0 if not.

    It is a proper score: its expectation is lowest where p_n is the probability that the choice is right (Brier 1950).

    Args:
        logp_N: [N] log-probabilities of the choices in nats.
        right_N: [N] ones and zeros.

    Returns:
        [N] scores from 0 to 1.
    """
    return (logp_N.exp() - right_N).square()


# ---- supervised learning -------------------------------------------------------------------------------------------


def completion_nll(logits_NV: Tensor, targets_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
    """Compute the mean negative log-likelihood per completion token: sum_n w_n (-log p(target_n)) / sum_n w_n.

    Args:
        logits_NV: [N, V] logits at the positions that predict completion tokens.
        targets_N: [N] token ids.
        weights_N: [N] weights, or None to weigh every token by 1; 0 leaves a token out.

    Returns:
        Scalar in nats per token; 0 (with zero gradient) when nothing has weight.
    """
    dtype = torch.promote_types(logits_NV.dtype, torch.float32)
    nll_N = functional.cross_entropy(logits_NV.to(dtype), targets_N, reduction="none")
    weights_N = torch.ones_like(nll_N) if weights_N is None else weights_N.to(nll_N)
    return (weights_N * nll_N).sum() / weights_N.sum().clamp_min(torch.finfo(dtype).tiny)


# ---- returns, baselines, advantages (targets: nothing here carries a gradient) --------------------------------------


def rewards_to_go(rewards_T: Tensor, gamma: float) -> Tensor:
    """Compute the discounted sum of rewards from each step on: G_t = r_t + gamma G_{t+1}.

    Args:
        rewards_T: [T] rewards of one episode, in order.
        gamma: discount factor in [0, 1].

    Returns:
        [T] returns in reward units (Sutton and Barto 2018, equation 3.9).
    """
    total, sums = 0.0, []
    # Python floats have 64 bits, so long episodes lose nothing to rounding, whatever the data type of the rewards.
    for reward in reversed(rewards_T.tolist()):
        total = reward + gamma * total
        sums.append(total)
    dtype = torch.promote_types(rewards_T.dtype, torch.float32)
    return torch.tensor(sums[::-1], dtype=dtype, device=rewards_T.device)


def gae(rewards_T: Tensor, values_T: Tensor, gamma: float, gae_lambda: float, bootstrap: float = 0.0) -> Tensor:
    """Compute generalised advantage estimates: A_t = sum_l (gamma lambda)^l delta_{t+l}.

    delta_t = r_t + gamma V_{t+1} - V_t. Lambda 1 gives the discounted return minus the value, and lambda 0 gives the
    one-step temporal-difference error (Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized
    Advantage Estimation", equations 16 to 18).

    Args:
        rewards_T: [T] rewards of one episode, in order.
        values_T: [T] predicted returns of the states in which the actions were taken.
        gamma: discount factor in [0, 1].
        gae_lambda: lambda in [0, 1].
        bootstrap: value of the state after the last step: 0 if the episode ended there, its predicted return if the
            episode was cut off.

    Returns:
        [T] advantages in reward units, without a gradient.
    """
    values_T = values_T.detach()
    next_values_T = torch.cat([values_T[1:], values_T.new_full((min(1, len(values_T)),), bootstrap)])
    return rewards_to_go(rewards_T + gamma * next_values_T - values_T, gamma * gae_lambda)


def baseline_mean(returns_N: Tensor) -> Tensor:
    """Return the mean return of the batch, once per return: [N] -> [N].

    The mean contains each sample's own return, so the gradient shrinks by the factor (N - 1) / N. Its direction is
    unbiased (Williams 1992, section 5, reinforcement comparison).
    """
    return returns_N.mean().expand_as(returns_N)


def baseline_leave_one_out(returns_K: Tensor) -> Tensor:
    """Return the leave-one-out baseline of each episode: the mean return of the others, sum_{j != k} R_j / (K - 1).

    It does not depend on the episode's own return, so the policy gradient stays unbiased (Kool et al. 2019, "Buy 4
    REINFORCE Samples, Get a Baseline for Free!"; Ahmadian et al. 2024, RLOO).

    Args:
        returns_K: [K] returns of the episodes of one task.

    Returns:
        [K] baselines; 0 when there is no other episode.
    """
    others = len(returns_K) - 1
    return (returns_K.sum() - returns_K) / others if others > 0 else torch.zeros_like(returns_K)


def root_mean_square(values_N: Tensor) -> float:
    """Return the root mean square of a batch, in the unit of its values: [N] -> float."""
    return values_N.square().mean().sqrt().item()


def normalise(advantages_N: Tensor, least: float = 0.0) -> Tensor:
    """Divide advantages by their root mean square over the batch: [N] -> [N], without unit.

    For advantages with mean zero, this is their standard deviation. The mean is not subtracted, because that would add
    a second baseline and could change signs. All zeros stay zeros.

    Args:
        least: smallest divisor, in reward units. Without it, a batch that has nearly nothing to teach would count as
            much as any other.
    """
    return advantages_N / max(root_mean_square(advantages_N), least, 1e-8)


# ---- policy and value losses ---------------------------------------------------------------------------------------


def value_loss(values_N: Tensor, returns_N: Tensor, old_values_N: Tensor | None = None, clip: float = 0.0) -> Tensor:
    """Compute the mean squared error mean_n (V_n - G_n)^2 in squared reward units: [N], [N] -> scalar.

    Returns are taken as constants.

    Args:
        old_values_N: the critic's predictions before the update.
        clip: largest change of a prediction that pays, in reward units: the error is the larger one of V and of V
            clipped to `old_values_N` ± this (the value loss of PPO's first implementations, and of TRL). 0 is none.
    """
    errors_N = (values_N - returns_N.detach()).square()
    if old_values_N is not None and clip > 0:
        clipped_N = old_values_N + (values_N - old_values_N).clamp(-clip, clip)
        errors_N = torch.maximum(errors_N, (clipped_N - returns_N.detach()).square())
    return errors_N.mean()


def explained_variance(values_N: Tensor, returns_N: Tensor) -> float:
    """Compute the critic's explained variance 1 - Var(G - V) / Var(G): [N], [N] -> float.

    1 is a perfect critic, 0 is no better than a constant, and below 0 is worse. The result is 0 if the returns do not
    vary, since there is nothing to explain.
    """
    variance = returns_N.var(correction=0).item()
    if not variance > 0:
        return 0.0
    return 1.0 - (returns_N - values_N.detach()).var(correction=0).item() / variance
