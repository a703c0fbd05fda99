"""Training data from samples: prompts and completions as tokens, scored under the whole vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from reflectrl.core.prompts.tokens import beginning, conventions, encode_template, ending
from reflectrl.core.types import UserError
from reflectrl.learn.examples import Example, completion_logits
from reflectrl.methods.shared.offline.completions import Dataset
from reflectrl.methods.shared.offline.config import OfflineConfig
from reflectrl.models.lm import LanguageModel
from reflectrl.models.machine import autocast
from reflectrl.models.sharing import Ids
from reflectrl.wings.text.learn.conditions import condition_of
from reflectrl.wings.text.samples import dialogue
from reflectrl.wings.text.samples.sample import Sample, imitable


class TextCompletions:
    """Text completions, end-of-text included. Each token is scored under the whole vocabulary.

    Args:
        examples: token ids of prompts and completions.
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


def text_dataset(lm: LanguageModel, samples: Sequence[Sample], config: OfflineConfig) -> Dataset:
    """Tokenize samples. Prompts that are too long lose their beginning, completions their end (end-of-text included).

    Raises:
        UserError: there are no samples, or a completion leaves no room in the context for any of its prompt.
    """
    if not samples:
        raise UserError("offline: no samples")
    examples = [_example(lm, sample, config) for sample in samples]
    rewards_N = torch.tensor([sample.reward for sample in samples])
    groups = [sample.group for sample in samples]
    units = [str(sample.meta.get("instance", sample.group)) for sample in samples]  # a step belongs to its task
    imitable_flags = tuple(map(imitable, samples))
    return Dataset(
        TextCompletions(lm, examples), rewards_N, groups, units, imitable=() if all(imitable_flags) else imitable_flags
    )


def _example(lm: LanguageModel, sample: Sample, config: OfflineConfig) -> Example:
    answer = [*lm.encode(sample.completion, behind=sample.prompt), *ending(lm.tokenizer)][: config.completion_tokens]
    prompt = prompt_ids(lm, sample, config.prompt_tokens, len(answer))
    return Example((*prompt, *answer), len(prompt))


def prompt_ids(lm: LanguageModel, sample: Sample, most: int, completion: int) -> Ids:
    """Tokenize a sample's prompt, for training and for generation. A prompt that is too long loses its beginning.

    A condition (see `conditions.py`) stands before the prompt, and is not lost.

    Args:
        most: largest number of prompt tokens.
        completion: number of tokens of the context that the completion needs.

    Raises:
        UserError: the completion leaves no room for the prompt. The error names the sample.
    """
    start = [*beginning(lm.tokenizer), *lm.encode(condition_of(sample))]
    room = min(most, lm.context - completion) - len(start)
    if room < 1:
        problem = f"{completion} tokens leave no room for its prompt in the model's context of {lm.context}"
        raise UserError(f"sample {sample.id!r}: {problem} (lower offline.completion_tokens)")
    # An empty prompt becomes end-of-text, since some token has to predict the first one.
    return (*start, *_encode_prompt(lm, sample.prompt)[-room:]) or (lm.tokenizer.eos_token_id,)


def _encode_prompt(lm: LanguageModel, prompt: str) -> list[int]:
    """Tokenize a prompt. Nothing in it becomes a control token, except for the ends of turns in DialoGPT's style."""
    if not prompt.endswith(dialogue.END) or dialogue.END not in conventions(lm.tokenizer).spelled:
        return lm.encode(prompt)
    mark, ids = encode_template(lm.tokenizer, dialogue.END), list[int]()
    for turn in prompt.split(dialogue.END)[:-1]:
        ids += [*lm.encode(turn, behind=dialogue.END if ids else ""), *mark]
    return ids


def shortened(lm: LanguageModel, samples: Sequence[Sample], config: OfflineConfig) -> tuple[int, int]:
    """Return how many prompts and how many completions `text_dataset` truncates."""
    examples, start = [_example(lm, sample, config) for sample in samples], len(beginning(lm.tokenizer))
    prompts = sum(
        row.start - start < len(_encode_prompt(lm, sample.prompt))
        for row, sample in zip(examples, samples, strict=True)
    )
    completions = sum(row.ids[-1] != lm.tokenizer.eos_token_id for row in examples)
    return prompts, completions
