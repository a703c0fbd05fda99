"""Critics of states and actions, their targets and losses, and the policy that a critic and a language model define.

Tensor names: N states or steps of a batch, A listed actions, D the width of a hidden state. If a state has fewer than A
actions, its log-probabilities end in -inf, and a critic's values there have no effect.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reflectrl.core.types import named_seed

WIDTH = 128
"""Width of the heads' hidden layers."""


class UtteranceCritic(nn.Module):
    """Two heads for Q(s, a) and one for V(s). Their initial output is the same constant everywhere.

    Q reads the concatenated features of state and action, as in Zhou et al. 2024, "ArCHer: Training Language Model
    Agents via Hierarchical Multi-Turn RL" (arXiv 2402.19446). The lower of the two Q is used (Fujimoto et al. 2018).

    Args:
        width: D, the width of the features.
        mean: initial output of all heads.
    """

    def __init__(self, width: int, mean: float = 0.0) -> None:
        super().__init__()
        self.q = nn.ModuleList([_head(2 * width, mean) for _ in range(2)])
        self.v = _head(width, mean)

    def q_values(self, states_ND: Tensor, actions_ND: Tensor) -> Tensor:
        """Return both estimates of Q(s, a), (2, N)."""
        read = torch.cat([states_ND, actions_ND], 1).float()
        return torch.stack([head(read)[:, 0] for head in self.q])

    def lower_q(self, states_ND: Tensor, actions_NAD: Tensor) -> Tensor:
        """Return the lower Q of every listed action, (N, A)."""
        count = actions_NAD.shape[1]
        flat = self.q_values(states_ND.repeat_interleave(count, 0), actions_NAD.flatten(0, 1))
        return flat.amin(0).view(-1, count)

    def values(self, states_ND: Tensor) -> Tensor:
        """Return V(s) of states (N, D) as (N,), in reward units."""
        values_N: Tensor = self.v(states_ND.float())[:, 0]
        return values_N


def _head(width: int, mean: float) -> nn.Module:
    last = nn.Linear(WIDTH, 1)
    nn.init.zeros_(last.weight)
    nn.init.constant_(last.bias, mean)
    inner = (nn.Linear(width, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
    return nn.Sequential(nn.LayerNorm(width), *inner, last)


def make_critic(width: int, seed: int, mean: float = 0.0) -> UtteranceCritic:
    """Return a new critic whose weights depend on the seed alone."""
    with torch.random.fork_rng():
        torch.manual_seed(named_seed(seed, "critic"))
        return UtteranceCritic(width, mean)


def follow(target: nn.Module, critic: nn.Module, rate: float) -> None:
    """Move a target network towards its critic: theta' ← (1 - rate) theta' + rate theta."""
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
            slow.lerp_(fast, rate)


# ---- values, as pure functions ---------------------------------------------------------------------------------------


def td_targets(rewards_N: Tensor, following_N: Tensor, ends_N: Tensor, gamma: float) -> Tensor:
    """Return targets of Q(s, a): r + gamma · V(s'), or r alone where the episode ended; (N,) in reward units."""
    return rewards_N + gamma * following_N.masked_fill(ends_N, 0.0)


def expected_value(logp_NA: Tensor, q_NA: Tensor) -> Tensor:
    """Return V(s) = sum_a pi(a|s) Q(s, a), (N,)."""
    return (logp_NA.exp() * q_NA).sum(-1)


def regularised_value(prior_NA: Tensor, q_NA: Tensor, kl_lambda: float) -> Tensor:
    """Return V(s) = lambda log sum_a pi_LM(a|s) exp(Q(s, a) / lambda), (N,).

    It is the maximum of sum_a pi(a|s) Q(s, a) - lambda KL(pi ‖ pi_LM) over all pi, attained by `guided_logp` (Zhang et
    al. 2024, "How Can LLM Guide RL? A Value-Based Approach", arXiv 2402.16181).

    Args:
        prior_NA: log-probabilities of the language model.
        kl_lambda: lambda in reward units. Towards 0, V becomes the best Q; towards infinity, the model's expected Q.
    """
    return kl_lambda * torch.logsumexp(prior_NA + q_NA / kl_lambda, -1)


def guided_logp(prior_NA: Tensor, q_NA: Tensor, kl_lambda: float) -> Tensor:
    """Return log-probabilities (N, A) of pi(a|s) ∝ pi_LM(a|s) exp(Q(s, a) / lambda)."""
    return torch.log_softmax(prior_NA + q_NA / kl_lambda, -1)


def td_loss(q_2N: Tensor, targets_N: Tensor) -> Tensor:
    """Return the squared error, summed over both Q and averaged over steps. Targets are treated as constants."""
    return (q_2N - targets_N.detach()).square().sum(0).mean()


def policy_gradient_loss(logp_NA: Tensor, advantages_NA: Tensor, weights_NA: Tensor) -> Tensor:
    """Return -mean_n sum_a w_a A_a log pi(a|s_n), whose gradient is minus the policy gradient.

    Args:
        logp_NA: log-probabilities with gradient.
        advantages_NA: constants, finite everywhere.
        weights_NA: constants. With 1 for the sampled action and 0 elsewhere, this is REINFORCE. With the policy's
            probabilities, it sums over all actions instead of sampling one (Allen et al. 2017, "Mean Actor Critic").
    """
    finite_NA = logp_NA.masked_fill(logp_NA.isneginf(), 0.0)
    return -(weights_NA * advantages_NA * finite_NA).sum(-1).mean()
