"""Learning from texts in hindsight: the loss, the gates, the texts, and the episodes with which they come.

After its episodes, a text h is made for each state s in which the policy chose. The policy is scored in its own states
once without and once with h, which stands where a reflection stands. It learns the difference, beside (or instead of)
the policy gradient:

    loss = coef * mean_n g_n KL(pi(.|s_n, h_n) || pi(.|s_n))

The divergence is exact, since the listed actions are few. The teacher is the same policy before the update, without
gradient. Gates g_n in {0, 1} choose the steps (`GATES`). The policy must have learned to read such texts, so it starts
from the SFT policy of a pair. With `sft.reflection_dropout`, that policy can also choose without any text.

Sources: on-policy self-distillation from privileged context (SDPG, arXiv 2606.04036; SDAR, arXiv 2605.15155); direction
by the reward (SERL, arXiv 2605.19447); failures only (RESD, arXiv 2605.12741); the next observation as the text (HERO,
arXiv 2606.11559). The formulas are our own reading, for exact probabilities of actions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from reflectrl.core.config import RLConfig
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.envs.teacher import ask
from reflectrl.core.rollout import advance
from reflectrl.core.teach.outcomes import best_of, outcome_text, outcomes
from reflectrl.core.types import Episode, UserError, named_seed
from reflectrl.learn.batch import Batch
from reflectrl.learn.losses import categorical_kl
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.learn.steps import Steps, flatten, policy_pass
from reflectrl.learn.value import ValueHead
from reflectrl.methods.hints.config import HindsightConfig
from reflectrl.models.players import Policy

SIDE_BY_SIDE = 8
"""Continuations that are played at the same time."""

# ---- the loss --------------------------------------------------------------------------------------------------------


def hindsight_loss(logp_NA: Tensor, teacher_NA: Tensor, gates_N: Tensor) -> Tensor:
    """Compute mean_n g_n KL(teacher_n || policy_n) in nats, exactly (summed over the actions).

    Args:
        logp_NA: [N, A] log-probabilities of the policy, with gradient; -inf for illegal actions.
        teacher_NA: [N, A] log-probabilities of the teacher over the same legal actions, taken as constants.
        gates_N: [N] weights of the steps; 0 leaves a step out.
    """
    return (gates_N * categorical_kl(teacher_NA.detach(), logp_NA)).mean()


Gate = Callable[[Tensor, Tensor, Tensor], Tensor]

GATES: dict[str, Gate] = {
    "all": lambda gains_N, advantages_N, won_N: torch.ones_like(gains_N),
    "agree": lambda gains_N, advantages_N, won_N: (gains_N * advantages_N > 0).to(gains_N.dtype),
    "lost": lambda gains_N, advantages_N, won_N: 1.0 - won_N,
}
"""Gates by values of `hindsight.gate`. Arguments are, for each step, the gain in log-probability of the action taken by
the text, the advantage of that action, and 1.0 if the episode was won. The result is 0 or 1 per step."""


# ---- the texts -------------------------------------------------------------------------------------------------------


def ending(episode: Episode) -> str:
    """Name the end of an episode in a word or two."""
    return "won" if episode.success else "cut off" if episode.truncated else "lost"


def taken(episode: Episode) -> list[str]:
    """Return the actions taken, as texts."""
    return [step.observation.actions[step.action] for step in episode.steps]


def outcome_texts(episode: Episode) -> list[str]:
    """Write, for each step, the action taken and how the episode ended after it."""
    actions = taken(episode)
    return [f"{action}: {ending(episode)} {len(actions) - i} steps later" for i, action in enumerate(actions)]


def observation_texts(episode: Episode) -> list[str]:
    """Write, for each step, the action taken and the state that followed, on one line."""
    states = [" ".join(step.observation.state.split()) for step in episode.steps[1:]]
    return [f"{action}: {text}" for action, text in zip(taken(episode), [*states, ending(episode)], strict=True)]


def analyst_texts(episode: Episode, env: TextEnv) -> list[str]:
    """Play an episode again in an environment whose teacher is an analyst. Return the analysis of each state.

    Raises:
        UserError: the environment has no analyst, or an analysis is invalid.
    """
    texts = []
    advance(env, episode.task, None, named_seed(episode.seed, "env") % 2**32)
    for step in episode.steps:
        try:
            texts.append(ask(env, episode.task, "analyse", len(step.observation.actions)))
        except NotImplementedError as error:
            raise UserError(f"hindsight.text is 'analyst', and {error}; 'continuations' needs none") from error
        advance(env, episode.task, step.action)
    return texts


def continuation_texts(
    episode: Episode, envs: Sequence[TextEnv], policy: Policy, settings: HindsightConfig, seed: int
) -> list[str | None]:
    """Try the actions of each state, and write how often each won. States in which no action won get no text."""
    steps = range(len(episode.steps))
    tried = outcomes(episode, steps, envs, policy, settings.continuations, settings.actions, seed)
    texts: list[str | None] = []
    for i, step in enumerate(episode.steps):
        won = any(one.won for one in tried[i])
        texts.append(outcome_text(step.observation.actions, tried[i], best_of(tried[i])) if won else None)
    return texts


# ---- the episodes ----------------------------------------------------------------------------------------------------


class HindsightRollouts(EpisodeRollouts):
    """Episodes of a policy without a reflector, whose batches also hold the loss of the texts in hindsight.

    Args:
        policy: policy that can read reflections.
        reward: learn from reward as well. Otherwise advantages only open gates.
    """

    def __init__(
        self,
        policy: Policy,
        make_env: Callable[[], TextEnv],
        config: RLConfig,
        settings: HindsightConfig,
        seed: int,
        reward: bool = True,
    ) -> None:
        # Without reward there is nothing to replay: past wins have no texts.
        super().__init__(policy, None, make_env, config if reward else replace(config, replay=0), seed)
        self.settings, self.reward = settings, reward
        self.envs = [make_env() for _ in range(SIDE_BY_SIDE if settings.text == "continuations" else 1)]

    def collect(self, update: int, critic: ValueHead | None) -> Batch:
        batch = super().collect(update, critic)
        texts = [text for episode in self.latest.learned for text in self.texts(episode)]
        teacher_NA, gates_N, metrics = self.taught(batch, texts)
        batch.auxiliary = partial(self.auxiliary, teacher_NA, gates_N)
        batch.metrics |= metrics
        if not self.reward:
            batch.advantages_N = torch.zeros_like(batch.advantages_N)
        return batch

    def close(self) -> None:
        for env in self.envs:
            env.close()
        super().close()

    def texts(self, episode: Episode) -> Sequence[str | None]:
        """Return a text for each step of an episode; None for steps about which there is nothing to say."""
        settings = self.settings
        if settings.text == "analyst":
            return analyst_texts(episode, self.envs[0])
        if settings.text == "continuations":
            return continuation_texts(episode, self.envs, self.policy, settings, named_seed(self.seed, episode.seed))
        return outcome_texts(episode) if settings.text == "outcome" else observation_texts(episode)

    @torch.no_grad()
    def taught(self, batch: Batch, texts: Sequence[str | None]) -> tuple[Tensor, Tensor, dict[str, float]]:
        """Score the steps with and without their texts.

        Returns:
            The teacher's log-probabilities [N, A], the gates [N], and metrics: the share of steps that learn, and the
            mean gain of the actions taken.
        """
        policy, learned = self.policy, self.latest.learned
        steps = flatten(policy, learned, self.config.gamma, self.shaping)
        orders = [step.choice.order if step.choice else () for episode in learned for step in episode.steps]
        informed = [
            policy.prompt(seen, text, order) if text is not None else prompt
            for seen, text, order, prompt in zip(steps.observations, texts, orders, steps.prompts, strict=True)
        ]
        with_text, without_NA = replace(steps, prompts=informed), self.scored(steps)
        teacher_NA = self.scored(with_text)
        chosen_N1 = steps.labels_N[:, None]
        gains_N = (teacher_NA.gather(1, chosen_N1) - without_NA.gather(1, chosen_N1))[:, 0]
        won_N = torch.tensor([float(episode.success) for episode in learned for _ in episode.steps])
        written_N = torch.tensor([float(text is not None) for text in texts])
        gates_N = written_N * GATES[self.settings.gate](gains_N, batch.advantages_N, won_N)
        gain = float((gains_N * written_N).sum() / written_N.sum().clamp(min=1))
        return teacher_NA, gates_N, {"hindsight_share": float(gates_N.mean()), "hindsight_gain": gain}

    def scored(self, steps: Steps) -> Tensor:
        """Return log-probabilities [N, A] of all steps, computed in passes of `rl.minibatch` steps."""
        width = max(map(len, steps.actions))
        logp_NA = torch.full((len(steps), width), -torch.inf)
        for start in range(0, len(steps), self.config.minibatch):
            part = list(range(start, min(start + self.config.minibatch, len(steps))))
            part_NA = policy_pass(self.policy, steps, part)[0].cpu()
            logp_NA[part, : part_NA.shape[1]] = part_NA
        return logp_NA

    def auxiliary(self, teacher_NA: Tensor, gates_N: Tensor, logp_NA: Tensor, index: Sequence[int]) -> Tensor:
        """Return the weighted loss of some steps, given the policy's log-probabilities [n, A] for them."""
        teacher_nA, gates_n = teacher_NA[index, : logp_NA.shape[1]], gates_N[index]
        return self.settings.coef * hindsight_loss(logp_NA, teacher_nA.to(logp_NA.device), gates_n.to(logp_NA.device))
