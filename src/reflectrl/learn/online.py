"""Online reinforcement learning with REINFORCE, PPO, or any other loss of `losses.POLICY_LOSSES`, in one linear loop.

The loop serves agents, where a unit is an action (`rollouts.EpisodeRollouts`), and text, where a unit is a token. The
interface `batch.Rollouts` hides the difference, which is how a batch is collected and read.

Source: Reflect-RL, section on online RL. Departures from its released code:

- Rewards are reported without the entropy bonus.
- The critic reads the hidden state of the whole prompt.
- Dropout is off, so ratios are 1 before the first update.
- Illegal actions have probability 0.
- Success is an event.
- Everything needed to continue after a kill is saved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from reflectrl.core.config import RLConfig
from reflectrl.learn import losses
from reflectrl.learn.batch import Batch, Rollouts
from reflectrl.learn.critic_batches import fit_critic
from reflectrl.learn.trainer import SCHEDULES, Log, Metrics, Model, Trainer, accumulate
from reflectrl.learn.value import ValueHead, make_critic


def after_imitation(config: RLConfig) -> RLConfig:
    """Return the settings of RL for a policy taught by imitation: a warm-up of the critic, a lower learning rate."""
    warmup = max(config.critic_warmup, config.hold_warmup)
    return replace(config, critic_warmup=warmup, lr=config.lr * config.hold_lr)


def held_kl(config: RLConfig, step: int) -> float:
    """Return the weight of the KL divergence at an update, for a policy that is held near its initial weights.

    It falls linearly to `kl_coef`, over `hold` updates from the first in which the policy learns.
    """
    elapsed = max(0, step - config.critic_warmup)
    return config.kl_coef + config.hold_kl * max(0.0, 1 - elapsed / config.hold)


def train_online(
    rollouts: Rollouts,
    config: RLConfig,
    seed: int,
    log: Log,
    state_folder: Path | None = None,
    hold: bool = False,
) -> None:
    """Train `rollouts.lm` in place. It ends with the weights that did best on validation tasks.

    Args:
        rollouts: source of batches, and the model to train.
        hold: hold the policy near the initial one at first (`held_kl`). The rollouts need a reference for that.
        log: callback for metrics, which may end the training (see `Trainer.updates`).
        state_folder: folder in which the state is saved at every evaluation, so that a killed training can continue.
    """
    lm = rollouts.lm
    critic = None
    groups = [{"params": lm.parameters(), "lr": config.lr, "initial_lr": config.lr}]
    if config.baseline == "critic":
        critic = make_critic(lm.hidden_size, config.critic, seed).to(lm.device)
        rates = {"lr": config.critic_lr, "initial_lr": config.critic_lr}
        groups.append({"params": list(critic.parameters()), **rates})
    optimizer = OPTIMIZERS[config.optimizer](groups, weight_decay=config.weight_decay, fused=True)
    parts: dict[str, Model | None] = {"critic": critic, "reference": rollouts.reference}
    trainer = Trainer(lm, [optimizer], config.max_grad_norm, state_folder, parts)
    epochs = config.update_epochs
    if config.algorithm in losses.SINGLE_EPOCH:
        epochs = 1

    for metrics in trainer.updates(rollouts, config, log):
        # A constant rate is left as it is, unless the KL divergence or a roll-back has changed it.
        if config.schedule != "constant" or config.target_kl or trainer.rate != 1.0:
            fall = SCHEDULES[config.schedule](trainer.step, config.updates, config.warmup)
            trainer.set_rate(fall)
            metrics["lr"] = config.lr * trainer.rate * fall
        kl_coef = config.kl_coef
        if hold:
            kl_coef = held_kl(config, trainer.step)
        rollouts.compares = kl_coef > 0
        batch = rollouts.collect(trainer.step, critic)
        warming = critic is not None and trainer.step < config.critic_warmup
        waiting = rollouts.waiting
        is_due = (trainer.step + 1) % config.critic_every == 0
        learning = None  # the critic, in the updates in which it learns beside the policy
        if warming or (is_due and waiting is None):
            learning = critic
        settings = replace(config, kl_coef=kl_coef)
        metrics |= update(trainer, learning, batch, settings, epochs, warming)
        # While the critic warms up, or without advantages, the policy cannot move, so its KL says nothing.
        if config.target_kl and not warming and batch.advantages_N.any():
            trainer.rate = adapted(trainer.rate, metrics["approx_kl"], config.target_kl)
        # Past wins come last and once: they were played by other weights, and must not outweigh the fresh episodes.
        if (past := rollouts.replay(critic)) is not None:
            metrics["replay_loss"] = update(trainer, learning, past, settings, 1, warming)["loss"]
        if critic is not None and waiting is not None and not warming:
            waiting.add(batch)
            if past is not None:
                waiting.add(past)
            if is_due:
                metrics |= fit_critic(trainer, critic, waiting.batches, config)
                waiting.clear()


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}
"""Optimisers, for each `rl.optimizer`."""


def adapted(rate: float, moved: float, target: float) -> float:
    """Adapt the learning rate to the KL divergence of an update. Return the new share of the peak, from 0.01 to 10.

    Args:
        rate: share of the peak so far.
        moved: KL divergence of the update (nats).
        target: wanted KL divergence (nats).

    Source: the adaptive rate of PPO in rsl_rl (Rudin et al. 2022, "Learning to Walk in Minutes").
    """
    if moved > 2 * target:
        return max(0.01, rate / 1.5)
    if moved < target / 2:
        return min(10.0, rate * 1.5)
    return rate


NOISE = 1e-3
"""Share of the returns below which advantages count as noise. Normalisation does not amplify them to unit size."""


def update(
    trainer: Trainer, critic: ValueHead | None, batch: Batch, config: RLConfig, epochs: int, warming: bool = False
) -> Metrics:
    """Take an optimiser step per minibatch and epoch, with gradients accumulated over slices.

    loss = policy loss − entropy_coef · entropy + kl_coef · KL(policy ‖ reference) + critic_coef · value error
    + brier_coef · Brier score of the choices,
    each a mean over the minibatch's units. If several processes train together, each computes some of the slices.

    Args:
        warming: train the critic only.

    Returns:
        Metrics of the last epoch.
    """
    advantages_N = batch.advantages_N
    if config.centre:
        advantages_N = advantages_N - advantages_N.mean()
    if config.normalise:
        # Over the whole batch, so that minibatches stay comparable.
        least = max(batch.scale, NOISE * losses.root_mean_square(batch.returns_N))
        advantages_N = losses.normalise(advantages_N, least)
    for _ in range(epochs):
        metrics: Metrics = {}
        for minibatch in batch.minibatches:
            totals, size = Metrics(), sum(len(part.units) for part in minibatch)
            for part in trainer.team.stripe(minibatch):
                # While it warms up, only the critic learns. It reads detached states, so the pass needs no gradient.
                with torch.set_grad_enabled(not warming):
                    logp_NA, hidden_ND = part.read()
                labels_N, old_logp_N, advantage_N, returns_N = (
                    tensor_N[part.units].to(logp_NA.device)
                    for tensor_N in (batch.labels_N, batch.old_logp_N, advantages_N, batch.returns_N)
                )
                logp_N = logp_NA.gather(1, labels_N[:, None])[:, 0]
                # Where no probability was recorded, the policy counts as if it had chosen now: its ratio is 1.
                old_logp_N = torch.where(old_logp_N.isnan(), logp_N.detach(), old_logp_N)
                terms = losses.POLICY_LOSSES[config.algorithm](logp_N, old_logp_N, advantage_N, config)
                loss = terms["policy_loss"]
                with torch.set_grad_enabled(config.entropy_coef > 0 and config.entropy_in == "loss"):
                    entropy_N = losses.entropy(logp_NA)
                terms["entropy"] = bonus = entropy_N.mean()
                if config.entropy_floor:
                    bonus = entropy_N.clamp(max=config.entropy_floor).mean()
                if config.entropy_in == "loss":
                    loss = loss - config.entropy_coef * bonus
                if config.brier_coef and batch.won_N is not None:
                    terms["brier"] = losses.brier_score(logp_N, batch.won_N[part.units].to(logp_N.device)).mean()
                    loss = loss + config.brier_coef * terms["brier"]
                if part.ref_logp_NA is not None:
                    terms["kl"] = losses.categorical_kl(logp_NA, part.ref_logp_NA).mean()
                    loss = loss + config.kl_coef * terms["kl"]
                if batch.auxiliary is not None:
                    terms["auxiliary_loss"] = batch.auxiliary(logp_NA, part.units)
                    loss = loss + terms["auxiliary_loss"]
                if critic is not None:
                    if warming or not config.critic_shares:
                        hidden_ND = hidden_ND.detach()  # the critic's gradient does not reach the policy
                    old_values_N = None
                    if config.value_clip and batch.values_N is not None:
                        old_values_N = batch.values_N[part.units].to(hidden_ND.device)
                    terms["value_loss"] = losses.value_loss(
                        critic(hidden_ND), returns_N, old_values_N, config.value_clip
                    )
                    value_term = config.critic_coef * terms["value_loss"]
                    loss = value_term if warming else loss + value_term
                # The parts of a minibatch differ in size, so a mean over it weighs each by its share of the units.
                terms["loss"], share = loss, len(part.units) / size
                (loss * share).backward()
                accumulate(totals, terms, share)
            accumulate(metrics, trainer.update(totals), size / len(batch.labels_N))
    if batch.values_N is not None:
        metrics["explained_variance"] = losses.explained_variance(batch.values_N, batch.returns_N)
    return metrics | batch.metrics
