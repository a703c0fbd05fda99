"""Generation of completions, as text to be scored and as tokens to be learned from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from reflectrl.core.prompts.tokens import decode_behind
from reflectrl.core.types import Sampling
from reflectrl.learn.examples import Example
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import sampler
from reflectrl.wings.text.learn.text_dataset import prompt_ids
from reflectrl.wings.text.samples.sample import Sample


class Completion(NamedTuple):
    """A completion that a model has generated.

    Attributes:
        sample: the prompt's sample with the completion as text. Its reward is NaN until it is scored.
        example: prompt and completion as tokens, with end-of-text if the model generated it.
        logprobs: log-probabilities of the completion's tokens when they were drawn (nats), without end-of-text.
    """

    sample: Sample
    example: Example
    logprobs: tuple[float, ...]


def write(
    lm: LanguageModel,
    prompts: Sequence[Sample],
    sampling: Sampling,
    generators: Sequence[np.random.Generator],
    most_tokens: int,
    prompt_tokens: int,
) -> list[Completion]:
    """Generate one completion for each prompt, all in one batch.

    Args:
        most_tokens: longest completion in tokens. A shorter completion ended with end-of-text.
        prompt_tokens: longest prompt in tokens. Longer prompts lose their beginning, as in training.

    Raises:
        UserError: a prompt does not fit the model's context.
    """
    starts = [prompt_ids(lm, sample, prompt_tokens, most_tokens) for sample in prompts]
    with lm.playing():
        outputs = lm.backend.write(starts, most_tokens, sampler(sampling), generators)
    completions = []
    for sample, start, (ids, logprobs) in zip(prompts, starts, outputs, strict=True):
        text = decode_behind(lm.tokenizer, ids, start)
        components = {"tokens": len(ids)}
        filled = replace(sample, completion=text, components=components, logprob=sum(logprobs), reward=math.nan)
        end = (lm.tokenizer.eos_token_id,) if len(ids) < most_tokens else ()
        completions.append(Completion(filled, Example((*start, *ids, *end), len(start)), logprobs))
    return completions
