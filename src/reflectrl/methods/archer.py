"""ArCHer: a critic of single actions learns off-policy from all transitions; a policy gradient follows it.

An update plays episodes, takes TD steps of the critic on the replay buffer, and then takes steps of the policy in
states of the buffer. There, the critic says which actions are better, instead of the episode's return.

Source: Zhou et al. 2024, "ArCHer: Training Language Model Agents via Hierarchical Multi-Turn RL" (arXiv 2402.19446),
with each action as an utterance. An action is chosen as a whole, by one probability per listed action, so the source's
two levels (a critic of utterances, a policy gradient over their tokens) are one here. Departures: the critic reads
hidden states of the frozen policy before RL, where the source trains an encoder; V and the policy learn from all
actions that the buffer holds in a state, where the source samples one of the policy's (see `values.actor_actions`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reflectrl.core.types import named_seed
from reflectrl.methods.shared.values import SETTINGS, CriticLearner, ValuesConfig, draw_transitions, train_by_values
from reflectrl.runs.arms import Arm, plain, policy, reflector
from reflectrl.runs.artifact import CHECKPOINT, Artifact, Build, Plan, Source, artifact

if TYPE_CHECKING:  # these bring torch, which a dry run does without
    from reflectrl.core.config import RLConfig
    from reflectrl.learn.rollouts import EpisodeRollouts
    from reflectrl.learn.trainer import Log, Metrics

SECTIONS = {"values": ValuesConfig}


# ---- the loop --------------------------------------------------------------------------------------------------------


def train_archer(
    rollouts: EpisodeRollouts,
    config: RLConfig,
    values: ValuesConfig,
    seed: int,
    log: Log,
    state_folder: Path | None = None,
) -> None:
    """Train the policy of `rollouts` in place. It ends with the weights that did best on validation tasks.

    Args:
        rollouts: source of episodes and evaluations.
        log: callback for metrics (see `Trainer.updates`).
        state_folder: folder in which every evaluation saves the state, so that a killed training can resume.
    """
    import torch

    from reflectrl.learn import losses
    from reflectrl.learn.trainer import Trainer, accumulate
    from reflectrl.methods.shared.buffer import END, TransitionBuffer
    from reflectrl.methods.shared.critic import (
        expected_value,
        follow,
        make_critic,
        policy_gradient_loss,
        td_loss,
        td_targets,
    )
    from reflectrl.methods.shared.features import choice_logp, choice_table
    from reflectrl.models.players import Policy

    lm, policy, device = rollouts.lm, rollouts.policy, rollouts.lm.device
    buffer = TransitionBuffer(values.buffer, Policy(lm.frozen_copy(), scoring=policy.scoring), config.temperature)
    critic, target, fitting = CriticLearner.of(make_critic(lm.hidden_size, seed).to(device), config)
    actor = torch.optim.AdamW(lm.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True)
    parts = {"critic": critic, "target": target, "buffer": buffer}
    trainer = Trainer(lm, [actor, fitting], config.max_grad_norm, state_folder, parts)

    for metrics in trainer.updates(rollouts, config, log, {"questions": buffer}):
        generator = torch.Generator().manual_seed(named_seed(seed, "archer", trainer.step))
        drawn = draw_transitions(rollouts, buffer, values, trainer.step, generator)

        # The critic: Q(s, a) ← r + gamma V'(s') and V(s) ← sum_a pi(a|s) Q'(s, a). Primes mark the target network.
        # Each distinct state is read once by the policy, although many transitions share it.
        states_S, index_N = drawn.state_N.unique(return_inverse=True)
        questions = [buffer.questions[i] for i in states_S.tolist()]
        policy_SA = choice_table(policy, questions, buffer.prior_SA.shape[1]).to(device)
        # Q of an action that was never taken in a state is a guess, which neither V nor the policy is to follow.
        support_SA = policy_SA.isfinite()
        if values.actor_actions == "tried":
            support_SA = buffer.tried()[states_S].to(device)
        policy_SA = losses.restricted_log_softmax(policy_SA, support_SA)
        for rows in torch.arange(len(index_N)).split(values.critic_batch):
            state_N, label_N, reward_N, next_N = (tensor[rows].to(device) for tensor in drawn)
            states_ND, actions_NAD, _ = buffer.features(state_N)
            with torch.no_grad():
                following_N = target.values(buffer.features(next_N).states_ND)
                targets_N = td_targets(reward_N, following_N, next_N == END, config.gamma)
                mean_N = expected_value(policy_SA[index_N[rows]], target.lower_q(states_ND, actions_NAD))
            q_2N = critic.q_values(states_ND, actions_NAD[torch.arange(len(rows)), label_N])
            q_loss, v_loss = td_loss(q_2N, targets_N), losses.value_loss(critic.values(states_ND), mean_N)
            (q_loss + v_loss).backward()
            trainer.update({"critic_loss": float(q_loss.detach()), "value_loss": float(v_loss.detach())})
            follow(target, critic, values.target_rate)
        metrics |= trainer.means()

        # The policy, in some of these states: towards the actions of higher Q(s, a).
        states_SD, actions_SAD, prior_SA = buffer.features(states_S)
        with torch.no_grad():
            q_SA, values_S = critic.lower_q(states_SD, actions_SAD), critic.values(states_SD)
        taken = values.actor_steps if trainer.step >= config.critic_warmup else 0  # a new critic would mislead it
        for rows in torch.randint(len(index_N), (taken, values.actor_batch), generator=generator):
            totals: Metrics = {}
            for states in index_N[rows].sort().values.split(config.minibatch):  # equal states are neighbours
                logp_NA = choice_logp(policy, [questions[i] for i in states.tolist()])
                listed = slice(logp_NA.shape[1])
                q_NA, terms = q_SA[states, listed], {}
                if values.actor_actions == "sampled":
                    drawn_N = logp_NA.detach().exp().cpu().multinomial(1, generator=generator).to(device)
                    weights_NA = torch.zeros_like(q_NA).scatter_(1, drawn_N, 1.0)
                    advantages_NA = q_NA - values_S[states, None]
                    terms["policy_loss"] = policy_gradient_loss(logp_NA, advantages_NA, weights_NA)
                else:
                    # The mean Q needs no baseline. It moves probability between the actions with support only.
                    supported_NA = losses.restricted_log_softmax(logp_NA, support_SA[states, listed])
                    terms["policy_loss"] = -expected_value(supported_NA, q_NA).mean()
                terms["entropy"] = losses.entropy(logp_NA).mean()
                terms["kl"] = losses.categorical_kl(logp_NA, prior_SA[states, listed]).mean()
                # No entropy bonus, as in the source: beside advantages in reward units, that of [rl] would be large.
                loss = terms["policy_loss"] + config.kl_coef * terms["kl"]
                share = len(states) / len(rows)
                (share * loss).backward()
                accumulate(totals, terms, share)
            trainer.update(totals)
        metrics |= trainer.means() if taken else {}


# ---- the arms --------------------------------------------------------------------------------------------------------


@artifact("values", "rl", CHECKPOINT, settings=SETTINGS)
def archer(build: Build, *, reflector: Source | None, policy: Source) -> None:
    """Train a policy online by the advantages of a critic of single actions (ArCHer)."""
    train_by_values(build, reflector, policy, train_archer)


def archer_pair(plan: Plan) -> Artifact:
    """Plan ArCHer's policy, which reads reflections."""
    return archer(plan, "archer", reflector=reflector(plan), policy=policy(plan))


def archer_alone(plan: Plan) -> Artifact:
    """Plan ArCHer's policy without a reflector."""
    return archer(plan, "archer-no-reflection", reflector=None, policy=plain(plan))


ARMS = {
    "archer": Arm("SFT + ArCHer: RL by a critic of single actions", archer_pair, reflector),
    "archer-no-reflection": Arm("SFT + ArCHer without a reflector", archer_alone),
}
