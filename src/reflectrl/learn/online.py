"""Online reinforcement learning with REINFORCE, PPO, or any other loss of `losses.POLICY_LOSSES`, in one linear loop.

The loop serves agents, where a unit is an action (`rollouts.EpisodeRollouts`), and text, where a unit is a token. The
difference, how a batch is collected and read, is behind the interface `batch.Rollouts`.

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
from pathlib import Path
from typing import Any

import torch

from reflectrl.core.config import RLConfig
from reflectrl.learn import losses
from reflectrl.learn.batch import Batch, Rollouts
from reflectrl.learn.trainer import Metrics, Trainer, Verdict, cosine, linear
from reflectrl.learn.value import ValueHead, make_critic
from reflectrl.models.machine import release_memory

Log = Callable[[dict[str, Any]], Verdict | None]


def train_online(rollouts: Rollouts, config: RLConfig, seed: int, log: Log, state_folder: Path | None = None) -> None:
    """Train `rollouts.lm` in place. It ends with the weights that did best on validation tasks.

    Args:
        rollouts: source of batches, and the model to train.
        log: callback that receives one flat dictionary per update, and one for the evaluation after the last. If it
            returns "stop", the model is evaluated once more and training ends. With "roll-back", training continues
            from the best weights so far with half the learning rate.
        state_folder: folder in which the state is saved at every evaluation, so that a killed training can continue.
    """
    lm = rollouts.lm
    critic = make_critic(lm.hidden_size, config.critic, seed).to(lm.device) if config.baseline == "critic" else None
    groups = [{"params": lm.parameters(), "lr": config.lr, "initial_lr": config.lr}]
    if critic is not None:
        rates = {"lr": config.critic_lr, "initial_lr": config.critic_lr}
        groups.append({"params": list(critic.parameters()), **rates})
    optimizer = torch.optim.AdamW(groups, weight_decay=config.weight_decay, fused=True)
    further = {"critic": critic, "reference": rollouts.reference}
    parts = {name: part for name, part in further.items() if part is not None}
    trainer = Trainer(lm, [optimizer], config.max_grad_norm, state_folder, parts)
    epochs = 1 if config.algorithm in losses.SINGLE_EPOCH else config.update_epochs
    if trainer.resumed is not None:
        rollouts.load(trainer.resumed)

    while True:
        metrics: dict[str, Any] = {"step": trainer.step, **rollouts.about()}
        if trainer.is_due(config.eval_every, config.updates):
            scores = rollouts.evaluate()
            metrics |= scores
            trainer.keep_if_best(list(scores.values()))
            trainer.save(logged=trainer.step - 1, **rollouts.state())
        if trainer.has_ended(config.updates):
            break
        if config.schedule != "constant" or config.target_kl or trainer.rate != 1.0:
            fall = SCHEDULES[config.schedule](trainer.step, config.updates, config.warmup)
            trainer.set_rate(fall)
            metrics["lr"] = config.lr * trainer.rate * fall
        batch = rollouts.collect(trainer.step, critic)
        warming = critic is not None and trainer.step < config.critic_warmup
        metrics |= update(trainer, critic, batch, config, epochs, warming)
        # While the critic warms up, or without advantages, the policy cannot move, so its KL says nothing.
        if config.target_kl and not warming and batch.advantages_N.any():
            trainer.rate = adapted(trainer.rate, metrics["approx_kl"], config.target_kl)
        if (past := rollouts.replay(critic)) is not None:
            metrics["replay_loss"] = update(trainer, critic, past, config, 1, warming)["loss"]
        metrics |= rollouts.end_update()
        release_memory()
        trainer.step += 1
        trainer.heed(log(metrics))
    log(metrics)
    trainer.finish()
    rollouts.close()


SCHEDULES: dict[str, Callable[[int, int, float], float]] = {
    "constant": lambda step, steps, warmup: 1.0,
    "linear": linear,
    "cosine": cosine,
}
"""Functions that return the share of the peak learning rate at an update, for each `rl.schedule`."""


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
    return min(10.0, rate * 1.5) if moved < target / 2 else rate


NOISE = 1e-3
"""Share of the returns below which advantages count as noise. Normalisation does not amplify them to unit size."""


def update(
    trainer: Trainer, critic: ValueHead | None, batch: Batch, config: RLConfig, epochs: int, warming: bool = False
) -> Metrics:
    """Take an optimiser step per minibatch and epoch, with gradients accumulated over slices.

    loss = policy loss − entropy_coef · entropy + kl_coef · KL(policy ‖ reference) + critic_coef · value error,
    each a mean over the minibatch's units. If several processes train together, each computes some of the slices.

    Args:
        warming: train the critic only.

    Returns:
        Metrics of the last epoch.
    """
    advantages_N = batch.advantages_N
    if config.normalise:
        advantages_N = losses.normalise(
            advantages_N, max(batch.scale, NOISE * losses.root_mean_square(batch.returns_N))
        )
    for _ in range(epochs):
        metrics: Metrics = {}
        for i, slices in enumerate(batch.minibatches):
            totals, size = Metrics(), 0
            for _, index in slices:
                size += len(batch.labels_N[index])
            for j, (rows, index) in [*enumerate(slices)][trainer.rank :: trainer.ranks]:
                with torch.set_grad_enabled(not warming):
                    logp_NA, hidden_ND = batch.read(rows)
                known = (batch.labels_N, batch.old_logp_N, advantages_N, batch.returns_N)
                labels_N, old_N, advantage_N, returns_N = (tensor_N[index].to(logp_NA.device) for tensor_N in known)
                chosen_N = logp_NA.gather(1, labels_N[:, None])[:, 0]
                old_N = torch.where(old_N.isnan(), chosen_N.detach(), old_N)  # unknown: as if the policy had chosen now
                terms = losses.POLICY_LOSSES[config.algorithm](chosen_N, old_N, advantage_N, config)
                with torch.set_grad_enabled(config.entropy_coef > 0):
                    entropy_N = losses.entropy(logp_NA)
                terms["entropy"] = entropy_N.mean()
                bonus = entropy_N.clamp(max=config.entropy_floor).mean() if config.entropy_floor else terms["entropy"]
                loss = terms["policy_loss"] - config.entropy_coef * bonus
                if batch.ref_logp:
                    terms["kl"] = losses.categorical_kl(logp_NA, batch.ref_logp[i][j]).mean()
                    loss = loss + config.kl_coef * terms["kl"]
                if batch.auxiliary is not None:
                    terms["auxiliary_loss"] = batch.auxiliary(logp_NA, index)
                    loss = loss + terms["auxiliary_loss"]
                if critic is not None:
                    # With detached states, the critic's gradient does not reach the policy (never while it warms up).
                    read_ND = hidden_ND if config.critic_shares and not warming else hidden_ND.detach()
                    terms["value_loss"] = losses.value_loss(critic(read_ND), returns_N)
                    loss = (0.0 if warming else loss) + config.critic_coef * terms["value_loss"]
                terms["loss"], share = loss, len(labels_N) / size
                trainer.backward(loss * share)
                totals = {name: totals.get(name, 0.0) + share * float(term.detach()) for name, term in terms.items()}
            noted, weight = trainer.update(totals), size / len(batch.labels_N)
            metrics = {name: metrics.get(name, 0.0) + weight * value for name, value in noted.items()}
    if batch.values_N is not None:
        metrics["explained_variance"] = losses.explained_variance(batch.values_N, batch.returns_N)
    return metrics | batch.metrics
