"""Advantages: how much better each choice turned out than expected, by comparison of episodes or by a critic.

All estimators read `steps.Steps`: K episodes per task, which began at the same point, flattened into N steps.
Advantages are in reward units, or without unit if they are divided by a group's standard deviation. None carries a
gradient. `docs/learner.md` explains which of them are biased, and how. `python -m benchmarks.gradients` compares them
with the exact gradient of a small environment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reflectrl.core.config import RLConfig
from reflectrl.core.types import Episode
from reflectrl.learn.batch import Batch
from reflectrl.learn.exploration import ObservationCounts
from reflectrl.learn.losses import baseline_leave_one_out, gae

if TYPE_CHECKING:
    from reflectrl.learn.steps import Steps


def critic(steps: Steps, config: RLConfig, values_N: Tensor | None) -> Tensor:
    """Compute advantages by generalised advantage estimation (GAE) with the critic's values.

    A time limit is not an end: what would have followed counts with the critic's value of the last observation (Pardo
    et al. 2018, "Time Limits in Reinforcement Learning", partial-episode bootstrapping).
    """
    assert values_N is not None
    rest_E = torch.zeros(len(steps.ends)) if steps.rest_E is None else steps.rest_E
    parts = []
    for span, rest in zip(steps.spans(), rest_E.tolist(), strict=True):
        parts.append(gae(steps.rewards_N[span], values_N[span], config.gamma, config.gae_lambda, rest))
    return torch.cat(parts)


COMPARISONS: dict[str, Callable[[Tensor], Tensor]] = {
    "leave-one-out": lambda totals_K: totals_K - baseline_leave_one_out(totals_K),
    "dr-grpo": lambda totals_K: totals_K - totals_K.mean(),
    "grpo": lambda totals_K: (totals_K - totals_K.mean()) / totals_K.std(correction=0).clamp_min(1e-8),
}
"""Comparisons of the returns within a group, the K episodes of a task. Returns of whole episodes are compared, because
rewards-to-go of different episodes belong to states that cannot be compared.

- "leave-one-out" subtracts the mean of the others: unbiased (RLOO, Ahmadian et al. 2024, "Back to Basics: Revisiting
  REINFORCE-Style Optimization").
- "dr-grpo" subtracts the mean of all, which is leave-one-out times (K - 1) / K: unbiased in direction where all groups
  are equally large (Dr. GRPO, Liu et al. 2025, "Understanding R1-Zero-Like Training").
- "grpo" divides that by the group's standard deviation, so tasks that are nearly always won or lost weigh more: a bias
  (GRPO, Shao et al. 2024, "DeepSeekMath", section 4.1).
"""


def compared(steps: Steps, config: RLConfig, values_N: Tensor | None) -> Tensor:
    """Compare each episode's return with the other returns of its task. All steps of an episode share an advantage.

    With GRPO, every episode has the same weight whatever its length, so steps of short episodes weigh more. That is a
    second bias, which Dr. GRPO avoids. A task whose episodes all have the same return gives zeros. Otherwise
    normalisation would give rounding errors the weight of wins.
    """
    advantages_N, groups = torch.zeros(len(steps)), defaultdict[str, list[slice]](list)
    for task, span in zip(steps.task_ids, steps.spans(), strict=True):
        groups[task].append(span)
    for spans in groups.values():
        totals_K = torch.stack([steps.rewards_N[span].sum() for span in spans])
        if is_level(totals_K):
            continue
        for span, advantage in zip(spans, COMPARISONS[config.baseline](totals_K), strict=True):
            weight = len(steps) / len(steps.ends) / (span.stop - span.start) if config.baseline == "grpo" else 1.0
            advantages_N[span] = weight * advantage
    return advantages_N


def gigpo(steps: Steps, config: RLConfig, values_N: Tensor | None) -> Tensor:
    """Add `step_coef` times a step-level advantage to Dr. GRPO's: the reward-to-go minus its mean over equal states.

    Steps are grouped by task and by equal observation (state and legal actions), whichever episode they belong to. A
    step that is alone in its group adds nothing, so there is a bias towards states that are met often (GiGPO, Feng et
    al. 2025, "Group-in-Group Policy Optimization", equations 4 to 8, with their F_norm = 1).
    """
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for task, span in zip(steps.task_ids, steps.spans(), strict=True):
        for n in range(span.start, span.stop):
            groups[task, ObservationCounts.key(steps.observations[n])].append(n)
    of_step_N = torch.zeros(len(steps))
    for members in groups.values():
        of_step_N[members] = steps.returns_N[members] - steps.returns_N[members].mean()
    of_episode_N = compared(steps, replace(config, baseline="dr-grpo"), None)
    return of_episode_N + config.step_coef * of_step_N


ADVANTAGES: dict[str, Callable[[Steps, RLConfig, Tensor | None], Tensor]] = {
    **dict.fromkeys(COMPARISONS, compared),
    "gigpo": gigpo,
    "critic": critic,
}
"""Estimators by values of `rl.baseline`, except "none" and "mean"."""

COMPARING = (*COMPARISONS, "gigpo")
"""Estimators that compare the episodes of a task with each other."""


def is_level(totals_K: Tensor) -> bool:
    """Return whether several episodes all have the same return, apart from rounding."""
    return len(totals_K) > 1 and float(totals_K.max() - totals_K.min()) <= 1e-6 * max(1.0, float(totals_K.abs().max()))


def with_signal(episodes: Sequence[Episode], group: int, rewards_of: Callable[[Episode], Tensor]) -> list[Episode]:
    """Return the episodes of the groups whose returns differ.

    Args:
        episodes: all episodes, group by group.
        group: number of episodes per group.
        rewards_of: returns the rewards [T] of an episode's steps.
    """
    selected: list[Episode] = []
    for start in range(0, len(episodes), group):
        members = episodes[start : start + group]
        totals_K = torch.stack([rewards_of(episode).sum() for episode in members])
        if not is_level(totals_K):  # equal returns have no advantages to learn from
            selected += members
    return selected


def imitate_gains(batch: Batch, spans: Sequence[slice]) -> list[float]:
    """Turn a batch of past successes into a batch for self-imitation, in place. Return the episodes' new priorities.

    Only steps that turned out better than expected count, for policy and critic. They are treated as if the current
    policy had chosen them (Oh et al. 2018, "Self-Imitation Learning", equations 1 to 3). The expectation is the
    critic's value, or without a critic the baseline.

    Returns:
        For each episode, the mean gain of its steps plus a small constant, so that every episode can be drawn.
    """
    gains_N = batch.advantages_N.clamp(min=0)
    if batch.values_N is not None:
        gains_N = (batch.returns_N - batch.values_N).clamp(min=0)
        batch.returns_N = batch.values_N + gains_N  # where a step turned out worse, the critic's error is 0
    # With NaN, the update takes its own log-probabilities as the old ones.
    batch.advantages_N, batch.old_logp_N = gains_N, torch.full_like(batch.old_logp_N, torch.nan)
    return [float(gains_N[span].mean()) + 1e-3 for span in spans]
