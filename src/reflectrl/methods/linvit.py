"""Value-guided sampling similar to LINVIT: the language model is a prior that a critic reweights.

The model's weights stay fixed. Each update plays episodes by pi(a|s) ∝ pi_LM(a|s) exp(Q(s, a) / lambda), then takes TD
steps of the critic on the replay buffer, towards the values of this policy:

    Q(s, a) ← r + gamma V(s'),    V(s) = lambda log sum_a pi_LM(a|s) exp(Q(s, a) / lambda)

The fixed point is the largest return minus lambda times the KL divergence from the model, summed over the episode.

Source: Zhang et al. 2024, "How Can LLM Guide RL? A Value-Based Approach" (arXiv 2402.16181). Departures: the source
fits tables or rolls out a simulator, and adds an exploration bonus for rare states; here a double critic on hidden
states learns with a target network, and the only exploration is sampling from the policy.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectrl.core.types import named_seed
from reflectrl.methods.shared.values import (
    SETTINGS,
    CriticLearner,
    ValuesConfig,
    draw_transitions,
    train_by_values,
    values_settings,
)
from reflectrl.runs.arms import Arm, base, plain, policy, reflector
from reflectrl.runs.artifact import CHECKPOINT, Artifact, Build, Plan, Source, artifact

if TYPE_CHECKING:  # these bring torch, which a dry run does without
    from reflectrl.core.config import RLConfig
    from reflectrl.learn.rollouts import EpisodeRollouts
    from reflectrl.learn.trainer import Log
    from reflectrl.models.players import Policy

SECTIONS = {"values": ValuesConfig}


# ---- the loop --------------------------------------------------------------------------------------------------------


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
    import torch

    from reflectrl.learn.trainer import Trainer
    from reflectrl.methods.shared.buffer import END, TransitionBuffer
    from reflectrl.methods.shared.critic import follow, regularised_value, td_loss, td_targets
    from reflectrl.methods.shared.guided import ValueGuidedPolicy

    policy, device = rollouts.policy, rollouts.lm.device
    assert isinstance(policy, ValueGuidedPolicy)
    buffer = TransitionBuffer(values.buffer, policy)
    critic, target, fitting = CriticLearner.of(policy.critic, config)
    trainer = Trainer(critic, [fitting], config.max_grad_norm, state_folder, {"target": target, "buffer": buffer})

    for metrics in trainer.updates(rollouts, config, log, {"questions": buffer}):
        generator = torch.Generator().manual_seed(named_seed(seed, "linvit", trainer.step))
        drawn = draw_transitions(rollouts, buffer, values, trainer.step, generator)
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
    # The critic is saved with the model, as its heads.
    rollouts.lm.heads = {key: tensor.cpu() for key, tensor in critic.state_dict().items()}


# ---- the arms --------------------------------------------------------------------------------------------------------


@artifact("values", "rl", CHECKPOINT, settings=SETTINGS)
def linvit(build: Build, *, reflector: Source | None, policy: Source) -> None:
    """Train a critic that guides an unchanged policy (LINVIT). The policy's checkpoint contains the critic."""
    from reflectrl.methods.shared.critic import make_critic
    from reflectrl.methods.shared.guided import ValueGuidedPolicy

    def guided_by_new_critic(policy: Policy, seed: int) -> Policy:
        critic = make_critic(policy.lm.hidden_size, seed).to(policy.lm.device)
        return ValueGuidedPolicy(policy, critic, values_settings(build.recipe).kl_lambda)

    train_by_values(build, reflector, policy, train_linvit, guided_by_new_critic)


def linvit_pair(plan: Plan) -> Artifact:
    """Plan LINVIT's policy, which reads reflections, with its critic."""
    return linvit(plan, "linvit", reflector=reflector(plan), policy=policy(plan))


def linvit_alone(plan: Plan) -> Artifact:
    """Plan LINVIT's policy without a reflector, with its critic."""
    return linvit(plan, "linvit-no-reflection", reflector=None, policy=plain(plan))


def linvit_untaught(plan: Plan) -> Artifact:
    """Plan LINVIT's policy with its critic. The prior is the base model, which has seen no demonstrations."""
    return linvit(plan, "linvit-untaught", reflector=None, policy=base(plan))


def guided(*arguments: Any) -> Any:
    """Return the player of a finished arm: the policy, guided by the critic of its checkpoint."""
    from reflectrl.methods.shared.guided import value_guided

    return value_guided(*arguments)


GUIDED = partial(Arm, guide=guided, settings=("values.kl_lambda",))
ARMS = {
    "linvit": GUIDED("SFT as a prior, sampled by a learned value (LINVIT)", linvit_pair, reflector),
    "linvit-no-reflection": GUIDED("SFT as a prior for LINVIT, without a reflector", linvit_alone),
    "linvit-untaught": GUIDED("the base model as a prior for LINVIT, without SFT", linvit_untaught),
}
