"""What offline learning learns from: prompts with a completion each, in text or among the actions of an environment.

Both are scored through the engine, which pads nothing: a completion's log-probabilities depend on its own prompt only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from reflectrl.config import OfflineConfig
from reflectrl.episodes import task_key
from reflectrl.learn.batch import make_batch, policy_pass
from reflectrl.learn.sft import Example
from reflectrl.models.engine import packed_hidden
from reflectrl.models.lm import LanguageModel
from reflectrl.models.packing import Ids, pack, portions
from reflectrl.models.precision import autocast
from reflectrl.players.policy import Policy
from reflectrl.samples.sample import Sample
from reflectrl.types import Episode, UserError


class Completions(Protocol):
    """Prompts, each with one completion.

    Attributes:
        prompts: their token ids.
        answers: what tells the completions of one prompt apart: token ids, or the index of the action.
        about: how they are scored (kind, temperature ...), as JSON values.
    """

    lm: LanguageModel
    prompts: list[Ids]
    answers: list[Ids]
    about: dict[str, object]

    def __len__(self) -> int: ...

    def logprobs(self, index: Sequence[int]) -> Tensor:
        """Log-probabilities (n, T) of the completions' tokens, in nats, padded with 0; gradients flow."""
        ...

    def lengths(self, index: Sequence[int]) -> Tensor:
        """How many of the T are a completion's own, (n,)."""
        ...


class TextCompletions:
    """Completions in text, end-of-text included: each token under the whole vocabulary.

    Args:
        examples: token ids of prompt and completion.
    """

    def __init__(self, lm: LanguageModel, examples: Sequence[Example]) -> None:
        self.lm, self.examples = lm, examples
        self.prompts = [row.ids[: row.start] for row in examples]
        self.answers = [row.ids[row.start :] for row in examples]
        self.about: dict[str, object] = {"kind": "text"}

    def __len__(self) -> int:
        return len(self.examples)

    def lengths(self, index: Sequence[int]) -> Tensor:
        return torch.tensor([len(self.answers[i]) for i in index])

    def logprobs(self, index: Sequence[int]) -> Tensor:
        with autocast(self.lm.device, self.lm.mixed):
            logits_MV, _, targets_M = completion_logits(self.lm, [self.examples[i] for i in index])
        logp_M = -functional.cross_entropy(logits_MV, targets_M, reduction="none")
        return pad_sequence(logp_M.split(self.lengths(index).tolist()), batch_first=True)


def completion_logits(lm: LanguageModel, rows: Sequence[Example]) -> tuple[Tensor, Tensor, Tensor]:
    """Of all tokens of some completions, M, row behind row: logits, what they were made of, and the tokens.

    What the rows have in common is encoded once, and the head is computed where it predicts a completion's token only.

    Returns:
        (logits (M, V) in float32, hidden states (M, D), token ids (M,)); gradients flow.
    """
    packing = pack([row.ids[:-1] for row in rows])
    places = [place for i, row in enumerate(rows) for place in packing.places(i)[row.start - 1 :]]
    hidden_MD = packed_hidden(lm, packing, places)
    targets_M = torch.tensor([token for row in rows for token in row.ids[row.start :]], device=lm.device)
    return lm.logits(hidden_MD).float(), hidden_MD, targets_M


class StepCompletions:
    """The choices of logged steps: one log-probability each, among the legal actions and at the policy's temperature,
    as it is when the policy plays. A turn is one action, so its ratio stands alone; steps are never multiplied.
    """

    def __init__(self, policy: Policy, episodes: Sequence[Episode], gamma: float = 1.0) -> None:
        self.policy, self.lm = policy, policy.lm
        self.batch = make_batch(policy, episodes, gamma)
        self.prompts = self.batch.prompts
        self.answers: list[Ids] = [(label,) for label in self.batch.labels_N.tolist()]
        temperature = policy.sampling.temperature or 1.0
        self.about: dict[str, object] = {"kind": "steps", "temperature": temperature, "scoring": policy.scoring}

    def __len__(self) -> int:
        return len(self.batch)

    def lengths(self, index: Sequence[int]) -> Tensor:
        return torch.ones(len(index), dtype=torch.long)

    def logprobs(self, index: Sequence[int]) -> Tensor:
        logp_NA, _ = policy_pass(self.policy, self.batch, index)
        return logp_NA.gather(1, self.batch.labels_N[list(index)].to(logp_NA.device)[:, None])


@dataclass(frozen=True)
class Affine:
    """How rewards were mapped: x -> (x - shift) · scale."""

    shift: float = 0.0
    scale: float = 1.0

    def __call__(self, values: Tensor) -> Tensor:
        return (values - self.shift) * self.scale


def onto_unit(values: Tensor) -> Affine:
    """The map that takes the least value to 0 and the greatest to 1; equal values all go to 0."""
    low, high = float(values.min()), float(values.max())
    return Affine(low, 1 / (high - low) if high > low else 1.0)


@dataclass(frozen=True)
class Dataset:
    """Completions and what they earned; N of them.

    Attributes:
        rewards_N: mapped by `affine`: between 0 and 1 for steps, as they are for text.
        groups: what completions of one prompt share; preferences are made within a group.
        units: what a held-out slice must not tear apart: the task of a step, the group of a text.
    """

    completions: Completions
    rewards_N: Tensor
    groups: Sequence[str]
    units: Sequence[str]
    affine: Affine = Affine()

    def __len__(self) -> int:
        return len(self.completions)

    def fingerprint(self) -> str:
        """Identifies the data: tokens, rewards, and how they are scored."""
        digest = hashlib.sha256(repr((self.completions.about, self.affine)).encode())
        for rows in (self.completions.prompts, self.completions.answers, self.groups, self.units):
            digest.update(repr([tuple(row) if not isinstance(row, str) else row for row in rows]).encode())
        digest.update(self.rewards_N.double().numpy().tobytes())
        return digest.hexdigest()[:16]

    def portions(self, index: Sequence[int]) -> Iterable[Sequence[int]]:
        """The rows of `index`, as many at a time as a pass without gradients takes well."""
        prompts, answers = self.completions.prompts, self.completions.answers
        sizes = [len(prompts[i]) + len(answers[i]) for i in index]
        return (index[rows] for rows in portions(sizes, self.completions.lm.pass_tokens))


def text_dataset(lm: LanguageModel, samples: Sequence[Sample], config: OfflineConfig) -> Dataset:
    """Samples as tokens. Prompts that are too long lose their beginning, completions their end (end-of-text included).

    Raises:
        UserError: there are no samples, or a completion leaves no room in the context for any of its prompt.
    """
    if not samples:
        raise UserError("offline: no samples")
    examples = [_example(lm, sample, config) for sample in samples]
    rewards_N = torch.tensor([sample.reward for sample in samples])
    groups = [sample.group for sample in samples]
    units = [str(sample.meta.get("instance", sample.group)) for sample in samples]  # a step belongs to its task
    return Dataset(TextCompletions(lm, examples), rewards_N, groups, units)


def _example(lm: LanguageModel, sample: Sample, config: OfflineConfig) -> Example:
    answer = [*lm.encode(sample.completion), lm.tokenizer.eos_token_id][: config.completion_tokens]
    prompt = prompt_ids(lm, sample, config.prompt_tokens, len(answer))
    return Example((*prompt, *answer), len(prompt))


def prompt_ids(lm: LanguageModel, sample: Sample, most: int, completion: int) -> Ids:
    """A sample's prompt as tokens, in training and in writing: at most `most`, without its beginning if it is longer.

    Args:
        completion: how many tokens of the context the completion needs.

    Raises:
        UserError: nothing is left for the prompt; names the sample.
    """
    bos, end = lm.tokenizer.bos_token_id, lm.tokenizer.eos_token_id
    start = (bos,) if bos is not None and bos != end else ()
    room = min(most, lm.context - completion) - len(start)
    if room < 1:
        about = f"{completion} tokens leave no room for its prompt in the model's context of {lm.context}"
        raise UserError(f"sample {sample.id!r}: {about} (lower offline.completion_tokens)")
    return (*start, *lm.encode(sample.prompt)[-room:]) or (end,)  # something has to predict the first token


def shortened(lm: LanguageModel, samples: Sequence[Sample], config: OfflineConfig) -> tuple[int, int]:
    """How many prompts and how many completions `text_dataset` cuts."""
    examples = [_example(lm, sample, config) for sample in samples]
    prompts = sum(row.start < len(lm.encode(s.prompt)) for row, s in zip(examples, samples, strict=True))
    completions = sum(row.ids[-1] != lm.tokenizer.eos_token_id for row in examples)
    return prompts, completions


def step_dataset(policy: Policy, episodes: Sequence[Episode], config: OfflineConfig) -> Dataset:
    """The steps of logged episodes; a step's reward is its reward-to-go, mapped onto [0, 1].

    Raises:
        UserError: there are no steps.
    """
    episodes = [episode for episode in episodes if episode.steps]
    if not episodes:
        raise UserError("offline: the log holds no steps")
    completions = StepCompletions(policy, episodes, config.gamma)
    returns_N = completions.batch.returns_N
    affine = onto_unit(returns_N)
    groups = [hashlib.sha256(repr(prompt).encode()).hexdigest()[:16] for prompt in completions.prompts]
    units = list(chain.from_iterable([task_key(episode.task)] * len(episode.steps) for episode in episodes))
    return Dataset(completions, affine(returns_N), groups, units, affine)
