"""Generation of completions for prompts, appended to a file line by line so that a killed run can resume."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from reflectrl.core.episodes.log import drop_half_line
from reflectrl.core.json_lines import parse_json, read_json_lines
from reflectrl.core.types import Sampling, named_seed
from reflectrl.models.lm import LanguageModel
from reflectrl.wings.text.learn.written import write
from reflectrl.wings.text.samples.sample import Sample


def one_per_prompt(samples: Iterable[Sample]) -> list[Sample]:
    """Return the first sample of each group, whose prompts are to be completed."""
    first_by_group: dict[str, Sample] = {}
    for sample in samples:
        first_by_group.setdefault(sample.group, sample)
    return list(first_by_group.values())


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
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Sample]:
    """Write `draws` completions for each prompt. Completions that the file already holds are not written again.

    A completion depends only on the model, its prompt, the seed and its own index, not on the rest of its batch.

    Args:
        prompts: samples whose prompt, group and meta count; one per prompt.
        path: file to append to. It belongs to one model, sampling and seed.
        most_tokens: longest completion in tokens. A shorter completion ended with end-of-text.
        prompt_tokens: longest prompt in tokens. Longer prompts lose their beginning, as in training.
        progress: progress callback; receives the number of completions so far and in total.

    Returns:
        The completions in the order of the prompts, with their log-probability under `sampling`. Their reward is NaN
        until they are scored.

    Raises:
        UserError: the file holds anything but completions, or a prompt does not fit the model's context.
    """
    wanted = repeated(prompts, draws)
    done = read_completions(path)
    missing = [sample for sample in wanted if sample.id not in done]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for start in range(0, len(missing), batch_size):
            progress(len(wanted) - len(missing) + start, len(wanted))
            part = missing[start : start + batch_size]
            generators = [np.random.default_rng(named_seed(seed, "completion", sample.id)) for sample in part]
            for sample, _, _ in write(lm, part, sampling, generators, most_tokens, prompt_tokens):
                done[sample.id] = sample
                row = {key: value for key, value in vars(sample).items() if key != "reward"}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
    progress(len(wanted), len(wanted))
    return [done[sample.id] for sample in wanted]


def repeated(prompts: Sequence[Sample], draws: int) -> list[Sample]:
    """Return every prompt `draws` times, with an id for each completion. A single one has the id of its prompt."""
    if draws == 1:
        return list(prompts)
    return [replace(prompt, id=f"{prompt.id}#{k}") for prompt in prompts for k in range(draws)]


def read_completions(path: Path) -> dict[str, Sample]:
    """Read the completions of a file, by id; none if there is no such file. A half-written last line is dropped.

    Raises:
        UserError: the file holds anything but completions.
    """
    drop_half_line(path)
    if not path.exists():
        return {}
    remedy = "remove the file to write the completions again"
    return {sample.id: sample for _, sample in read_json_lines(path, _completion, "not a completion", remedy)}


def _completion(line: str) -> Sample:
    return Sample(**parse_json(line), reward=math.nan)
