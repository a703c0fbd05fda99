"""Policy of a language model guided by a critic: pi(a|s) ∝ pi_LM(a|s) exp(Q(s, a) / lambda)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reflectrl.core.config import Recipe
from reflectrl.core.players.base import LiveEpisode
from reflectrl.core.types import Sampling, UserError
from reflectrl.methods.shared.critic import UtteranceCritic, guided_logp
from reflectrl.methods.shared.features import read_states
from reflectrl.methods.shared.values import values_settings
from reflectrl.models.players import Policy, Question
from reflectrl.models.sharing import KVCache


class ValueGuidedPolicy(Policy):
    """A policy with the language model's probabilities, reweighted towards actions of higher Q.

    Args:
        policy: provides model, prompts and sampling. Temperature 1 samples from the formula above, other temperatures
            sharpen or flatten it, and 0 takes the most probable action.
        critic: critic on the model's hidden states. Call `clear_cache` after each change of its weights.
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
        """Return the log-probabilities of the listed actions.

        Raises:
            UserError: a value of the critic is not finite.
        """
        seen = read_states(self, keys)
        logp_NA = guided_logp(seen.logp_NA, self.critic.lower_q(seen.states_ND, seen.actions_NAD), self.kl_lambda)
        rows = [row[: len(actions)] for row, (_, actions) in zip(logp_NA.cpu(), keys, strict=True)]
        if not all(row.isfinite().all() for row in rows):
            raise UserError("the critic's values are not finite; train it again with a lower rl.critic_lr")
        return [row.double().numpy() for row in rows]


def value_guided(recipe: Recipe, policy: Policy) -> ValueGuidedPolicy:
    """Return the player of a finished arm, with the critic from the policy's checkpoint.

    Raises:
        UserError: the checkpoint has no critic.
    """
    if not policy.lm.heads:
        raise UserError(f"the policy {policy.lm.base!r} comes without a critic; train it again")
    critic = UtteranceCritic(policy.lm.hidden_size)
    critic.load_state_dict(policy.lm.heads)
    return ValueGuidedPolicy(policy, critic.to(policy.lm.device).eval(), values_settings(recipe).kl_lambda)
