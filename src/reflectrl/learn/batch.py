"""From episodes to what an update needs: a record per step, advantages, and the policy's pass over a slice of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reflectrl.config import RLConfig
from reflectrl.learn.losses import baseline_leave_one_out, gae, restricted_log_softmax, rewards_to_go
from reflectrl.models.packing import Ids
from reflectrl.players.policy import Policy
from reflectrl.types import Episode


@dataclass
class Batch:
    """The steps of some episodes, flattened; N steps.

    Attributes:
        prompts: token ids of each step's policy prompt.
        actions: the legal actions at each step.
        labels_N: index of the chosen action in the order in which the actions were listed.
        old_logp_N: log-probability of the choice when it was sampled; NaN where no model sampled it.
        returns_N: discounted reward-to-go (environment units).
        ends: index after the last step of each episode.
        task_ids: the task of each episode, in the same order.
    """

    prompts: list[Ids]
    actions: list[tuple[str, ...]]
    labels_N: Tensor
    old_logp_N: Tensor
    rewards_N: Tensor
    returns_N: Tensor
    ends: list[int]
    task_ids: list[str]

    def __len__(self) -> int:
        return len(self.prompts)

    def spans(self) -> list[slice]:
        """The steps of each episode."""
        return [slice(start, end) for start, end in zip([0, *self.ends[:-1]], self.ends, strict=True)]


def make_batch(policy: Policy, episodes: Sequence[Episode], gamma: float) -> Batch:
    """Flatten episodes that the policy played, or that were logged; prompts are rendered as they are in play."""
    prompts, actions, labels, old, rewards, returns, ends = [], [], [], [], [], [], []
    for episode in episodes:
        for step in episode.steps:
            turn = step.choice
            assert turn is not None and turn.choice is not None
            prompts.append(policy.prompt(step.observation, step.reflection, turn.order))
            actions.append(step.observation.actions)
            labels.append(turn.order.index(turn.choice) if turn.order else turn.choice)
            old.append(turn.logprobs[0] if turn.logprobs else torch.nan)
        rewards_T = torch.tensor([step.reward for step in episode.steps])
        rewards.append(rewards_T)
        returns.append(rewards_to_go(rewards_T, gamma))
        ends.append(len(prompts))
    tasks = [episode.task.id for episode in episodes]
    return Batch(
        prompts, actions, torch.tensor(labels), torch.tensor(old), torch.cat(rewards), torch.cat(returns), ends, tasks
    )


def compute_advantages(batch: Batch, config: RLConfig, baseline: float, values_N: Tensor | None) -> Tensor:
    """How much better each choice turned out than expected, (N,), not yet normalised.

    "none": the reward-to-go. "mean": minus `baseline`. "critic": generalised advantage estimation on `values_N`.
    "leave-one-out": the episode's whole return minus the mean of the other episodes of its task, at all of its steps
    (RLOO, Ahmadian et al. 2024), since rewards-to-go of different episodes do not belong to comparable states.
    """
    if config.baseline == "critic":
        assert values_N is not None
        parts = [gae(batch.rewards_N[s], values_N[s], config.gamma, config.gae_lambda) for s in batch.spans()]
        return torch.cat(parts)
    if config.baseline == "leave-one-out":
        return _leave_one_out(batch)
    return batch.returns_N - (baseline if config.baseline == "mean" else 0.0)


def _leave_one_out(batch: Batch) -> Tensor:
    groups: dict[str, list[int]] = defaultdict(list)
    for i, task in enumerate(batch.task_ids):
        groups[task].append(i)
    advantages_N = torch.empty(len(batch))
    spans = batch.spans()
    for members in groups.values():
        totals_K = torch.stack([batch.rewards_N[spans[i]].sum() for i in members])
        for i, advantage in zip(members, totals_K - baseline_leave_one_out(totals_K), strict=True):
            advantages_N[spans[i]] = advantage
    return advantages_N


def policy_pass(
    policy: Policy, batch: Batch, index: Sequence[int], packing: Callable[[list[Ids]], Sequence[Ids]] = list
) -> tuple[Tensor, Tensor]:
    """Log-probabilities (N, A) over the listed actions, and last hidden states (N, D), of the steps in `index`.

    What their prompts share, the history of an episode above all, is encoded once. Actions beyond a step's own count
    are -inf. The temperature is that of sampling, so that ratios are 1 before the first update.

    Args:
        packing: `list` leaves packing to the backend; `apart` is the step-by-step reference.
    """
    actions = [batch.actions[i] for i in index]
    logits_NA, hidden_ND = policy.logits(packing([batch.prompts[i] for i in index]), actions)
    counts = torch.tensor([len(listed) for listed in actions], device=policy.lm.device)
    legal_NA = torch.arange(logits_NA.shape[1], device=policy.lm.device)[None] < counts[:, None]
    return restricted_log_softmax(logits_NA / (policy.sampling.temperature or 1.0), legal_NA), hidden_ND
