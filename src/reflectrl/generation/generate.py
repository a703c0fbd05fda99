"""Completions that a model writes for prompts, appended to a file line by line so that a killed run goes on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from reflectrl.episodes.log import drop_half_line
from reflectrl.models.engine import generate
from reflectrl.models.lm import LanguageModel
from reflectrl.models.packing import Ids
from reflectrl.samples.sample import Sample
from reflectrl.types import Sampling, UserError, named_seed


def one_per_prompt(samples: Iterable[Sample]) -> list[Sample]:
    """The first sample of each group: prompts to write for."""
    found: dict[str, Sample] = {}
    for sample in samples:
        found.setdefault(sample.group, sample)
    return list(found.values())


def write_completions(
    lm: LanguageModel,
    prompts: Sequence[Sample],
    path: Path,
    sampling: Sampling,
    most_tokens: int,
    prompt_tokens: int,
    seed: int = 0,
    draws: int = 1,
    batch_size: int = 64,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> list[Sample]:
    """Write `draws` completions for each prompt; what the file already holds is not written again.

    A completion depends on the model, its prompt, the seed and its own number only, not on the batch it is written in.

    Args:
        prompts: samples whose prompt, group and meta count; one per prompt.
        path: the file that is appended to. It belongs to one model, sampling and seed.
        most_tokens: longest completion in tokens; a shorter one ended with end-of-text.
        prompt_tokens: longest prompt in tokens; longer ones lose their beginning, as in training.
        tick: receives how many completions there are, and how many there will be.

    Returns:
        The completions in the order of the prompts, with their log-probability under `sampling`; their reward is
        NaN until something labels them.

    Raises:
        UserError: the file holds something else, or a prompt does not fit the model's context.
    """
    wanted = [replace(prompt, id=_name(prompt.id, k, draws)) for prompt in prompts for k in range(draws)]
    done = read_completions(path)
    left = [sample for sample in wanted if sample.id not in done]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for start in range(0, len(left), batch_size):
            tick(len(wanted) - len(left) + start, len(wanted))
            for sample in _write(lm, left[start : start + batch_size], sampling, most_tokens, prompt_tokens, seed):
                done[sample.id] = sample
                file.write(_line(sample) + "\n")
            file.flush()
    tick(len(wanted), len(wanted))
    return [done[sample.id] for sample in wanted]


def read_completions(path: Path) -> dict[str, Sample]:
    """The completions that a file holds, by id; none if there is no such file. A half-written last line is dropped.

    Raises:
        UserError: the file holds something else.
    """
    drop_half_line(path)
    if not path.exists():
        return {}
    found = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            sample = Sample(**json.loads(line), reward=math.nan)
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}:{number}: no written completion; remove the file to write it anew") from error
        found[sample.id] = sample
    return found


def prompt_ids(lm: LanguageModel, prompt: str, room: int) -> Ids:
    """A prompt's token ids, without its beginning where it is longer than `room`.

    Raises:
        UserError: there is no room at all.
    """
    bos = lm.tokenizer.bos_token_id
    start = [bos] if bos is not None and bos != lm.tokenizer.eos_token_id else []
    room -= len(start)
    if room < 1:
        raise UserError(f"the model's context of {lm.context} tokens leaves no room for a prompt beside its completion")
    return (*start, *(lm.encode(prompt)[-room:] or [lm.tokenizer.eos_token_id]))


def _write(
    lm: LanguageModel, samples: Sequence[Sample], sampling: Sampling, most: int, prompt_tokens: int, seed: int
) -> list[Sample]:
    room = min(prompt_tokens, lm.context - most)
    prompts = [prompt_ids(lm, sample.prompt, room) for sample in samples]
    generators = [np.random.default_rng(named_seed(seed, "completion", sample.id)) for sample in samples]
    with lm.playing():
        written = generate(lm, prompts, most, sampling, generators)
    return [_filled(lm, sample, *one) for sample, one in zip(samples, written, strict=True)]


def _filled(lm: LanguageModel, sample: Sample, ids: Ids, logprobs: Sequence[float]) -> Sample:
    text = lm.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return replace(sample, completion=text, components={"tokens": len(ids)}, logprob=sum(logprobs), reward=math.nan)


def _line(sample: Sample) -> str:
    row = {key: value for key, value in vars(sample).items() if key != "reward"}
    return json.dumps(row, ensure_ascii=False)


def _name(prompt: str, draw: int, draws: int) -> str:
    return prompt if draws == 1 else f"{prompt}#{draw}"
