"""Episodes of an agent, flattened into steps, and the policy's pass over these steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from reflectrl.core.types import Choice, Episode, Observation, Step
from reflectrl.learn.curriculum import replayed
from reflectrl.learn.losses import restricted_log_softmax, rewards_to_go
from reflectrl.models.players import Actions, Policy, Question
from reflectrl.models.sharing import Ids


@dataclass
class Steps:
    """Steps of some episodes, flattened to N steps.

    Attributes:
        prompts: token ids of each step's policy prompt.
        actions: legal actions at each step.
        labels_N: index of the chosen action in the order in which the actions were listed.
        old_logp_N: log-probability of the choice when it was sampled; NaN if no model sampled it.
        rewards_N: the learner's reward for each step.
        returns_N: discounted reward-to-go (environment units).
        ends: index after the last step of each episode.
        task_ids: task of each episode, plus its starting point if that is not the beginning. Episodes with the same
            value can be compared.
        observations: observation at each step.
        cut_offs: prompt and actions at the point where a limit cut an episode off, by the episode's number.
        rest_E: estimated return after the last step of each episode: 0 where it ended, the critic's value where it was
            cut off. None stands for zeros.
        won_N: 1 for steps of an episode that was won, 0 for others.
        supports: for each step, the labels that top-k and top-p sampling left to choose from, or an empty tuple for
            all; empty if sampling never leaves any out.
    """

    prompts: list[Ids]
    actions: list[Actions]
    labels_N: Tensor
    old_logp_N: Tensor
    rewards_N: Tensor
    returns_N: Tensor
    ends: list[int]
    task_ids: list[str]
    observations: list[Observation] = field(default_factory=list)
    cut_offs: dict[int, Question] = field(default_factory=dict)
    rest_E: Tensor | None = None
    won_N: Tensor | None = None
    supports: list[tuple[int, ...]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.prompts)

    def spans(self) -> list[slice]:
        """Return the slice of steps of each episode."""
        return [slice(start, end) for start, end in zip([0, *self.ends[:-1]], self.ends, strict=True)]


def flatten(
    policy: Policy,
    episodes: Sequence[Episode],
    gamma: float,
    shaped_rewards: Callable[[Episode], Tensor] | None = None,
) -> Steps:
    """Flatten episodes that the policy has played, or that were read from a log, into steps.

    The prompts are the ones that the policy read in play. They are rendered again only for steps from a file. Steps
    that were only repeated to reach an episode's starting point are left out.

    Args:
        shaped_rewards: returns the rewards [T] of all steps of an episode; None takes the environment's.
    """
    prompts, actions, labels, old_logp, observations = [], [], list[int](), list[float](), []
    rewards, returns, won, ends, task_ids = [], [], [], [], []
    cut_offs: dict[int, Question] = {}
    supports = list[tuple[int, ...]]()
    rendered: dict[Hashable, Ids] = {}  # a log repeats its first observations in many episodes
    for episode_index, episode in enumerate(episodes):
        # Only repeated steps may lack a choice. Elsewhere it would be missing data, which must not pass silently.
        first = replayed(episode) if "started_from" in episode.provenance else 0
        for step in episode.steps[first:]:
            choice = step.choice
            assert choice is not None, "learning from a step needs the choice that was made there"
            prompts.append(choice.prompt_ids or render(policy, step, rendered))
            actions.append(step.observation.actions)
            label, logprob = step.action, torch.nan
            if choice.order:
                label = choice.order.index(step.action)
            if choice.logprobs:
                logprob = choice.logprobs[0]
            if policy.sampling.truncated:
                supports.append(support_labels(choice))
            labels.append(label)
            old_logp.append(logprob)
            observations.append(step.observation)
        rewards_T = torch.tensor([step.reward for step in episode.steps])
        if shaped_rewards is not None:
            rewards_T = shaped_rewards(episode)
        rewards.append(rewards_T[first:])
        returns.append(rewards_to_go(rewards_T[first:], gamma))
        won.append(torch.full((len(episode.steps) - first,), float(episode.success)))
        ends.append(len(prompts))
        if (cut := episode.cut_off) is not None and cut.observation.actions:
            cut_offs[episode_index] = (policy.prompt(cut.observation, cut.reflection), cut.observation.actions)
        group = episode.task.id
        if first:  # returns from there on cannot be compared with returns of whole episodes
            group = f"{group} from step {first}"
        task_ids.append(group)
    return Steps(
        prompts,
        actions,
        torch.tensor(labels),
        torch.tensor(old_logp),
        torch.cat(rewards),
        torch.cat(returns),
        ends,
        task_ids,
        observations,
        cut_offs,
        won_N=torch.cat(won),
        supports=supports,
    )


def support_labels(choice: Choice) -> tuple[int, ...]:
    """Return the labels of the actions that sampling left to choose from; empty if it left none out."""
    if not choice.order:
        return choice.support
    return tuple(sorted(choice.order.index(action) for action in choice.support))


def render(policy: Policy, step: Step, rendered: dict[Hashable, Ids]) -> Ids:
    """Return the prompt of a step's choice as token ids. Equal prompts are rendered once."""
    assert step.choice is not None
    key = (step.observation, step.reflection, step.choice.order)
    if key not in rendered:
        rendered[key] = policy.prompt(*key)
    return rendered[key]


def begun_near_win(episodes: Sequence[Episode]) -> Tensor:
    """Return a boolean tensor (N,): True for steps of episodes that began part-way into an earlier episode."""
    near: list[bool] = []
    for episode in episodes:
        first = replayed(episode)
        near += [first > 0] * (len(episode.steps) - first)
    return torch.tensor(near, dtype=torch.bool)


def policy_pass(
    policy: Policy, steps: Steps, index: Sequence[int], packing: Callable[[list[Ids]], Sequence[Ids]] = list
) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities (N, A) over the listed actions, and last hidden states (N, D), of the steps in `index`.

    Steps with the same prompt and actions share a single computation, and gradients sum over them. Common prefixes of
    prompts, above all an episode's history, are encoded once. Actions beyond a step's own count are -inf. The sampling
    temperature is applied, so that ratios are 1 before the first update. For the same reason, actions that top-k and
    top-p left out when the step was sampled (`Steps.supports`) are -inf, whatever the weights make of them now. So the
    action that was taken always has a probability (DeepSeek-AI 2025, "DeepSeek-V3.2", keep sampling mask).

    Args:
        packing: `list` leaves packing to the backend, `no_sharing` encodes each prompt by itself.
    """
    question_rows: dict[Question, int] = {}  # row of each distinct question, in the order of their first steps
    row_of_step = list[int]()
    for i in index:
        question = (steps.prompts[i], steps.actions[i])
        row_of_step.append(question_rows.setdefault(question, len(question_rows)))
    row_N = torch.tensor(row_of_step, device=policy.lm.device)
    prompts, actions = map(list, zip(*question_rows, strict=True))
    logits_PA, hidden_PD = policy.logits(packing(prompts), actions)
    counts = torch.tensor(list(map(len, actions)), device=policy.lm.device)
    legal_PA = torch.arange(logits_PA.shape[1], device=policy.lm.device)[None] < counts[:, None]
    scaled_PA = logits_PA / (policy.sampling.temperature or 1.0)
    supports = [steps.supports[i] for i in index] if steps.supports else []
    if not any(supports):
        return restricted_log_softmax(scaled_PA, legal_PA)[row_N], hidden_PD[row_N]
    # Steps with the same prompt may have been sampled by different weights, so each has its own mask.
    support_NA = legal_PA[row_N]
    for n, labels in enumerate(supports):
        if labels:
            support_NA[n] = False
            support_NA[n, list(labels)] = True
    return restricted_log_softmax(scaled_PA[row_N], support_NA), hidden_PD[row_N]
