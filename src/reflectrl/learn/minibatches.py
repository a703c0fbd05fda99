"""From flattened steps to a training batch: minibatches, passes that fit in memory, values, and advantages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from reflectrl.core.config import RLConfig
from reflectrl.core.distributed import ALONE, Team
from reflectrl.learn import examples
from reflectrl.learn.advantages import ADVANTAGES
from reflectrl.learn.batch import Batch, Minibatch, Slice
from reflectrl.learn.steps import Steps, policy_pass
from reflectrl.learn.value import ValueHead
from reflectrl.models.players import Policy, Question
from reflectrl.models.sharing import Ids


@torch.no_grad()
def make_batch(
    policy: Policy,
    reference: Policy | None,
    critic: ValueHead | None,
    steps: Steps,
    config: RLConfig,
    baseline: float | Tensor,
    rng: np.random.Generator | None = None,
    team: Team = ALONE,
) -> Batch:
    """Make a batch of steps: advantages, slices for one pass each, and the reference's log-probabilities.

    Args:
        baseline: mean return that baseline "mean" subtracts, as a number for all steps or (N,) for each.
        rng: assigns the steps to `config.steps_per_epoch` minibatches (`assign_minibatches`); None makes a single
            minibatch.
        team: processes that train together. Each computes a part of the values, and of the reference's
            log-probabilities.
    """
    all_steps = np.arange(len(steps))
    questions = list(zip(steps.prompts, steps.actions, strict=True))
    slicer = Slicer(policy, questions, config.minibatch, team.size)
    shares = [all_steps]
    if rng is not None and config.steps_per_epoch > 1:
        shares = assign_minibatches(slicer.prompt_N, config, rng)

    # Passes without a gradient depend on no minibatch, so one over the whole batch serves all minibatches and epochs.
    all_slices = slicer(all_steps)
    values_N = None
    if critic is not None:
        values_N = torch.zeros(len(steps))
        for part in team.stripe(all_slices):
            values_N[part] = critic(policy_pass(policy, steps, part)[1]).cpu()
        team.sum(values_N)  # each process has left 0 in the rows of the others
        steps.rest_E = values_after_cut_offs(policy, critic, steps, config.minibatch)
    ref_logp_NA = None
    if reference is not None:
        ref_logp_NA = torch.zeros(len(steps), max(map(len, steps.actions)), device=policy.lm.device)
        for part in team.stripe(all_slices):
            logp_NA = policy_pass(reference, steps, part)[0]
            ref_logp_NA[part] = -torch.inf
            ref_logp_NA[part, : logp_NA.shape[1]] = logp_NA
        team.sum(ref_logp_NA)

    minibatches: list[Minibatch] = []
    for share in shares:
        minibatch = []
        for part in slicer(share):
            reference_nA = None
            if ref_logp_NA is not None:
                widest = max(len(steps.actions[i]) for i in part)  # as many columns as the policy's pass returns
                reference_nA = ref_logp_NA[part, :widest]
            minibatch.append(Slice(part, partial(policy_pass, policy, steps, part), reference_nA))
        minibatches.append(minibatch)
    advantages_N = compute_advantages(steps, config, baseline, values_N)
    targets_N = steps.returns_N
    if values_N is not None:
        # The critic learns the lambda-returns that advantages are computed from: they vary less than whole returns.
        targets_N = values_N + advantages_N
    choices = (steps.labels_N, steps.old_logp_N)
    return Batch(minibatches, *choices, advantages_N, targets_N, values_N, won_N=steps.won_N, steps=steps)


def values_after_cut_offs(policy: Policy, critic: ValueHead, steps: Steps, most: int) -> Tensor:
    """Return the critic's value of the point at which each episode was cut off; 0 for episodes that ended.

    Args:
        most: largest number of prompts per pass.
    """
    rest_E, distinct = torch.zeros(len(steps.ends)), sorted(set(steps.cut_offs.values()))
    values = dict[Question, float]()
    for start in range(0, len(distinct), most):
        part = distinct[start : start + most]
        prompts, actions = map(list, zip(*part, strict=True))
        _, hidden_PD = policy.logits(prompts, actions)
        values |= zip(part, critic(hidden_PD).tolist(), strict=True)
    for episode, question in steps.cut_offs.items():
        rest_E[episode] = values[question]
    return rest_E


class Slicer:
    """Cuts steps into slices for one pass each. All steps of a prompt stay together, next to prompts that begin alike.

    Args:
        questions: prompt and actions of each step.
        most: largest number of distinct prompts in a slice.
        processes: smallest number of slices, so that each process has one.

    Attributes:
        prompt_N: number of each step's question in the sorted order of distinct questions.
    """

    def __init__(self, policy: Policy, questions: Sequence[Question], most: int, processes: int) -> None:
        self.policy, self.most, self.processes = policy, most, processes
        # Sorted, so that prompts with a common beginning become neighbours, and a pass encodes the beginning once.
        self.distinct = sorted(set(questions))
        index_of = dict(zip(self.distinct, range(len(self.distinct)), strict=True))
        self.prompt_N = np.array([index_of[question] for question in questions])
        longest = max(len(ids) for ids, _ in self.distinct)
        self.bytes_per_prompt = longest * policy.activation_bytes

    def __call__(self, steps: np.ndarray) -> list[list[int]]:
        """Cut the steps with these indices."""
        question_P, position_n = np.unique(self.prompt_N[steps], return_inverse=True)
        most = min(self.most, -(-len(question_P) // self.processes))
        slice_P = np.arange(len(question_P)) // most
        # Half of the memory is the estimate's margin: texts of actions are read too.
        if most * self.bytes_per_prompt > self.policy.lm.pass_bytes / 2:
            slice_P = memory_slices(self.policy, [self.distinct[i] for i in question_P], most)
        slice_n = slice_P[position_n]
        return [steps[slice_n == k].tolist() for k in range(slice_P[-1] + 1)]


def memory_slices(policy: Policy, questions: Sequence[Question], most: int) -> np.ndarray:
    """Return the number of each prompt's pass. A pass has at most `most` prompts, and no more than memory allows."""
    rows, scored = list[Ids](), list[int]()
    for ids, actions in questions:
        text = policy.action_tokens(actions)
        rows.append(ids + text)
        scored.append(max(1, len(text)))  # labels are scored by the logits of a single token
    parts = examples.passes(policy.lm, rows, scored, most)
    return np.repeat(np.arange(len(parts)), [part.stop - part.start for part in parts])


def assign_minibatches(prompt_N: np.ndarray, config: RLConfig, rng: np.random.Generator) -> list[np.ndarray]:
    """Assign N steps at random to the minibatches of an epoch: one by one, or all steps with the same prompt together.

    Args:
        prompt_N: number of each step's prompt, from 0 on.

    Returns:
        Indices of the steps of each minibatch. Minibatches are about equally large, and none is empty.
    """
    count = min(config.steps_per_epoch, len(prompt_N))
    if config.deal == "steps":
        return np.array_split(rng.permutation(len(prompt_N)), count)
    position_N = rng.permutation(prompt_N.max() + 1)[prompt_N]  # prompts in a new order
    steps_P = np.bincount(position_N)
    # All steps of a prompt go to the minibatch that its first step falls into.
    minibatch_P = (steps_P.cumsum() - steps_P) * count // len(prompt_N)
    return [np.flatnonzero(minibatch_P[position_N] == k) for k in np.unique(minibatch_P)]


def compute_advantages(steps: Steps, config: RLConfig, baseline: float | Tensor, values_N: Tensor | None) -> Tensor:
    """Compute the advantages (N,) of the steps, not yet normalised.

    With `config.baseline` "none" they are the rewards-to-go, and with "mean" the rewards-to-go minus `baseline`. All
    other values are in `advantages.ADVANTAGES`.
    """
    if config.baseline in ADVANTAGES:
        return ADVANTAGES[config.baseline](steps, config, values_N)
    if config.baseline == "mean":
        return steps.returns_N - baseline
    return steps.returns_N - 0.0  # a copy, which the update may change
