"""A critic that learns less often than the policy, from the batches of several updates (`rl.critic_epochs`).

Source: the released code of Reflect-RL, where the critic learns after every fifth update, in five epochs over the
batches of these updates. There, a batch of replayed episodes counts as an update of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from reflectrl.core.config import RLConfig
from reflectrl.learn import losses
from reflectrl.learn.batch import Batch, Slice
from reflectrl.learn.steps import Steps, policy_pass
from reflectrl.learn.trainer import Metrics, Trainer, accumulate
from reflectrl.learn.value import ValueHead
from reflectrl.models.players import Policy


class CriticBatches:
    """Batches of agents' steps from which the critic has not learned yet.

    They are a part of the training's state. What is saved of a batch is what a critic needs: the prompts, the returns,
    and the steps of each pass.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.batches: list[Batch] = []

    def add(self, batch: Batch) -> None:
        """Keep a batch until `clear`."""
        self.batches.append(batch)

    def clear(self) -> None:
        """Drop all batches, because the critic has learned from them."""
        self.batches = []

    def state(self) -> list[dict[str, Any]]:
        """Return the batches, as JSON values."""
        saved = []
        for batch in self.batches:
            assert batch.steps is not None, "a batch of an agent's steps"
            minibatches = []
            for minibatch in batch.minibatches:
                minibatches.append([part.units for part in minibatch])
            saved.append(
                {
                    "prompts": batch.steps.prompts,
                    "actions": batch.steps.actions,
                    "returns": batch.returns_N.tolist(),
                    "minibatches": minibatches,
                }
            )
        return saved

    def load(self, state: Iterable[Mapping[str, Any]]) -> None:
        """Continue from a value of `state`."""
        self.batches = [self._restored(saved) for saved in state]

    def _restored(self, saved: Mapping[str, Any]) -> Batch:
        """Return a batch that holds what a critic needs. All other numbers are 0."""
        returns_N = torch.tensor(saved["returns"])
        zeros_N = torch.zeros_like(returns_N)
        prompts, actions = list(map(tuple, saved["prompts"])), list(map(tuple, saved["actions"]))
        steps = Steps(prompts, actions, zeros_N, zeros_N, zeros_N, returns_N, [len(returns_N)], [""])
        minibatches = []
        for minibatch in saved["minibatches"]:
            minibatches.append([Slice(units, partial(policy_pass, self.policy, steps, units)) for units in minibatch])
        return Batch(minibatches, zeros_N, zeros_N, zeros_N, returns_N, steps=steps)


def fit_critic(trainer: Trainer, critic: ValueHead, batches: Iterable[Batch], config: RLConfig) -> Metrics:
    """Train the critic alone, for `config.critic_epochs` epochs over some batches, with a step per minibatch.

    Returns:
        Mean metrics of the last epoch.
    """
    minibatches = list[list[tuple[Tensor, Tensor, float]]]()
    # The policy's weights stay the same meanwhile, so the hidden states of one pass serve all epochs.
    with torch.no_grad():
        for batch in batches:
            for minibatch in batch.minibatches:
                size, parts = sum(len(part.units) for part in minibatch), []
                for part in trainer.team.stripe(minibatch):
                    hidden_ND = part.read()[1]
                    parts.append((hidden_ND, batch.returns_N[part.units].to(hidden_ND.device), len(part.units) / size))
                minibatches.append(parts)
    metrics = Metrics()
    for _ in range(config.critic_epochs):
        metrics = Metrics()
        for parts in minibatches:
            totals = Metrics()
            for hidden_ND, returns_N, share in parts:
                value_loss = losses.value_loss(critic(hidden_ND), returns_N)
                (config.critic_coef * value_loss * share).backward()
                accumulate(totals, {"value_loss": value_loss}, share)
            # Without gradients, the optimiser leaves the policy's weights as they are.
            value_loss_of_step = trainer.update(totals)["value_loss"]
            accumulate(metrics, {"value_loss": value_loss_of_step}, 1 / len(minibatches))
    return metrics
