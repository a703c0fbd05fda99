"""Policy losses of online RL, by the values of `rl.algorithm`.

They are defined in the core because the recipe's key takes its values from the table below. So this file imports no
torch, and uses only methods of tensors. `learn/losses.py` explains the names of tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Clips(Protocol):
    """Settings of [rl] that policy losses read."""

    @property
    def clip_coef(self) -> float: ...

    @property
    def clip_high(self) -> float: ...

    @property
    def dual_clip(self) -> float: ...


def reinforce_loss(logp_N: Tensor, advantages_N: Tensor) -> Tensor:
    """Compute the REINFORCE loss -mean_n A_n log pi(a_n|s_n) (Williams 1992).

    Its gradient is minus the policy gradient.

    Args:
        logp_N: [N] log-probabilities of the actions taken, with gradient.
        advantages_N: [N] advantages, taken as constants.

    Returns:
        Scalar; only its gradient is meaningful.
    """
    return -(advantages_N.detach() * logp_N).mean()


def ppo_loss(
    logp_N: Tensor,
    old_logp_N: Tensor,
    advantages_N: Tensor,
    clip_coef: float,
    clip_high: float = 0.0,
    dual_clip: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Compute PPO's clipped surrogate loss: -mean_n min(rho_n A_n, clip(rho_n, 1 - c, 1 + h) A_n).

    rho_n = pi(a_n|s_n) / pi_old(a_n|s_n). At rho = 1 the gradient equals REINFORCE's (Schulman et al. 2017,
    "Proximal Policy Optimization Algorithms", equation 7).

    Args:
        logp_N: [N] log-probabilities of the actions taken, with gradient.
        old_logp_N: [N] the same under the policy that played, taken as constants.
        advantages_N: [N] advantages, taken as constants.
        clip_coef: c > 0, the clip range below 1. A ratio gains nothing by falling further.
        clip_high: h > 0, the clip range above 1 (clip-higher; Yu et al. 2025, "DAPO"); 0 means c.
        dual_clip: d > 1 limits the loss of a negative advantage to d |A_n| if the ratio is far above 1 (Ye et al.
            2020, "Mastering Complex Control in MOBA Games", equation 6); 0 means no limit.

    Returns:
        (scalar loss, scalar share of the ratios outside [1 - c, 1 + h], without gradient).
    """
    advantages_N, high = advantages_N.detach(), clip_high or clip_coef
    ratio_N = (logp_N - old_logp_N.detach()).exp()
    surrogate_N = (ratio_N * advantages_N).minimum(ratio_N.clamp(1 - clip_coef, 1 + high) * advantages_N)
    if dual_clip:
        # Where the advantage is negative, the minimum above falls without limit as the ratio grows.
        bounded_N = surrogate_N.maximum(dual_clip * advantages_N)
        surrogate_N = bounded_N.where(advantages_N < 0, surrogate_N)
    outside_N = (ratio_N.detach() < 1 - clip_coef) | (ratio_N.detach() > 1 + high)
    return -surrogate_N.mean(), outside_N.to(ratio_N.dtype).mean()


def approximate_kl(logp_N: Tensor, old_logp_N: Tensor) -> Tensor:
    """Estimate KL(pi_old || pi) in nats from actions of pi_old: mean_n (rho_n - 1 - log rho_n), never negative.

    Source: Schulman 2020, "Approximating KL Divergence", the estimator k3. [N], [N] -> scalar without gradient.
    """
    log_ratio_N = (logp_N - old_logp_N).detach()
    return (log_ratio_N.expm1() - log_ratio_N).clamp(min=0).mean()  # below 0 by rounding only


def _ppo(logp_N: Tensor, old_logp_N: Tensor, advantages_N: Tensor, config: Clips) -> dict[str, Tensor]:
    clips = (config.clip_coef, config.clip_high, config.dual_clip)
    loss, clip_fraction = ppo_loss(logp_N, old_logp_N, advantages_N, *clips)
    kl = approximate_kl(logp_N, old_logp_N)
    return {"policy_loss": loss, "clip_fraction": clip_fraction, "approx_kl": kl}


PolicyLoss = Callable[["Tensor", "Tensor", "Tensor", Any], dict[str, "Tensor"]]

POLICY_LOSSES: dict[str, PolicyLoss] = {
    "reinforce": lambda logp_N, old_logp_N, advantages_N, config: {"policy_loss": reinforce_loss(logp_N, advantages_N)},
    "ppo": _ppo,
}
"""Policy losses by values of `rl.algorithm`. Arguments are log-probabilities [N] of the choices with gradient, their
log-probabilities [N] when they were sampled, advantages [N], and the recipe's [rl]. The result holds "policy_loss" (a
mean over N) and further metrics. To add a loss, write a function above and an entry here."""

SINGLE_EPOCH = ("reinforce",)
"""Losses without an importance ratio. They are valid on-policy only, so each batch is used for one epoch."""
