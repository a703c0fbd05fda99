"""The policy that a critic makes of a language model: pi(a|s) ∝ pi_LM(a|s) exp(Q(s, a) / lambda)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reflectrl.config import Recipe
from reflectrl.models.sharing import KVCache
from reflectrl.players.base import LiveEpisode
from reflectrl.players.policy import Policy, Question
from reflectrl.types import Sampling, UserError
from reflectrl.values.config import values_settings
from reflectrl.values.critic import UtteranceCritic, guided_logp
from reflectrl.values.features import read_states


class ValueGuidedPolicy(Policy):
    """Chooses as the language model would, tilted towards what the critic expects more of.

    Args:
        policy: whose model, prompts and sampling it has; temperature 1 samples from the formula above, others sharpen
            or flatten it, 0 takes its most probable action.
        critic: reads the model's hidden states. Call `clear_cache` whenever it has learned.
        kl_lambda: lambda, in reward units.
    """

    def __init__(self, policy: Policy, critic: UtteranceCritic, kl_lambda: float) -> None:
        super().__init__(
            policy.lm, policy.sampling, policy.shuffle_labels, policy.memory, policy.pool.limit, policy.scoring
        )
        self.critic, self.kl_lambda = critic, kl_lambda

    def with_sampling(self, sampling: Sampling) -> ValueGuidedPolicy:
        return ValueGuidedPolicy(super().with_sampling(sampling), self.critic, self.kl_lambda)

    def _compute(
        self, keys: Sequence[Question], episodes: Sequence[LiveEpisode], caches: Sequence[KVCache] | None
    ) -> list[np.ndarray]:
        """Log-probabilities of the listed actions."""
        seen = read_states(self, keys)
        logp_NA = guided_logp(seen.logp_NA, self.critic.lower_q(seen.states_ND, seen.actions_NAD), self.kl_lambda)
        rows = [row[: len(actions)] for row, (_, actions) in zip(logp_NA.cpu(), keys, strict=True)]
        if not all(row.isfinite().all() for row in rows):
            raise UserError("the critic's values are not finite: its weights are broken (a learning rate too high?)")
        return [row.double().numpy() for row in rows]


def value_guided(recipe: Recipe, policy: Policy) -> ValueGuidedPolicy:
    """The player of a finished arm, whose checkpoint holds the critic.

    Raises:
        UserError: it holds none.
    """
    if not policy.lm.heads:
        raise UserError(f"the policy {policy.lm.base!r} comes without a critic; train it again")
    critic = UtteranceCritic(policy.lm.hidden_size)
    critic.load_state_dict(policy.lm.heads)
    return ValueGuidedPolicy(policy, critic.to(policy.lm.device).eval(), values_settings(recipe).kl_lambda)
