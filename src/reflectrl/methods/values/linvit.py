"""Value-guided sampling similar to LINVIT: the language model is a prior that a critic reweights. One linear loop.

The model's weights stay fixed. Each update plays episodes by pi(a|s) ∝ pi_LM(a|s) exp(Q(s, a) / lambda), then takes TD
steps of the critic on the replay buffer, towards the values of this policy:

    Q(s, a) ← r + gamma V(s'),    V(s) = lambda log sum_a pi_LM(a|s) exp(Q(s, a) / lambda)

The fixed point is the largest return minus lambda times the KL divergence from the model, summed over the episode.

Source: Zhang et al. 2024, "How Can LLM Guide RL? A Value-Based Approach" (arXiv 2402.16181). Departures: the source
fits tables or rolls out a simulator, and adds an exploration bonus for rare states; here a double critic on hidden
states learns with a target network, and the only exploration is sampling from the policy.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import torch

from reflectrl.core.config import RLConfig
from reflectrl.core.types import named_seed
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.learn.steps import flatten
from reflectrl.learn.trainer import Log, Trainer
from reflectrl.methods.values.buffer import END, TransitionBuffer
from reflectrl.methods.values.config import ValuesConfig
from reflectrl.methods.values.critic import follow, regularised_value, td_loss, td_targets
from reflectrl.methods.values.guided import ValueGuidedPolicy


def train_linvit(
    rollouts: EpisodeRollouts,
    config: RLConfig,
    values: ValuesConfig,
    seed: int,
    log: Log,
    state_folder: Path | None = None,
) -> None:
    """Train the critic of `rollouts.policy` in place. It ends with the weights that did best on validation tasks.

    Args:
        rollouts: source of episodes and evaluations, with a value-guided policy.
        log: callback for metrics (see `Trainer.updates`).
        state_folder: folder in which every evaluation saves the state, so that a killed training can resume.
    """
    policy, device = rollouts.policy, rollouts.lm.device
    assert isinstance(policy, ValueGuidedPolicy)
    critic, buffer = policy.critic, TransitionBuffer(values.buffer, policy)
    target = deepcopy(critic).requires_grad_(False)
    fitting = torch.optim.AdamW(critic.parameters(), lr=config.critic_lr, fused=True)
    trainer = Trainer(critic, [fitting], config.max_grad_norm, state_folder, {"target": target, "buffer": buffer})

    for metrics in trainer.updates(rollouts, config, log, {"questions": buffer}):
        rollouts.collect(trainer.step, None)
        played = rollouts.latest.played
        buffer.add(flatten(policy, played, config.gamma, rollouts.shaping), played)
        generator = torch.Generator().manual_seed(named_seed(seed, "linvit", trainer.step))
        drawn = buffer.draw(values.critic_steps * values.critic_batch, generator)
        for rows in torch.arange(len(drawn.state_N)).split(values.critic_batch):
            state_N, label_N, reward_N, next_N = (tensor[rows].to(device) for tensor in drawn)
            states_ND, actions_NAD, _ = buffer.features(state_N)
            after_ND, after_NAD, prior_NA = buffer.features(next_N)
            with torch.no_grad():
                q_NA = target.lower_q(after_ND, after_NAD)
                following_N = regularised_value(prior_NA, q_NA, values.kl_lambda)
                targets_N = td_targets(reward_N, following_N, next_N == END, config.gamma)
            q_2N = critic.q_values(states_ND, actions_NAD[torch.arange(len(rows)), label_N])
            loss = td_loss(q_2N, targets_N)
            loss.backward()
            going_on_N = next_N != END  # the mean leaves out steps without a next state
            value = float((following_N * going_on_N).sum() / going_on_N.sum().clamp(min=1))
            trainer.update({"critic_loss": float(loss.detach()), "value": value})
            follow(target, critic, values.target_rate)
        metrics |= trainer.means()
