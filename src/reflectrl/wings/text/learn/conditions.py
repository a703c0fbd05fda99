"""Return-conditioned text: a prompt begins with the reward of its completion, as one of ten ranks.

The model imitates all completions, good and bad, each behind its own rank. It is then asked for the highest.

Source: Emmons et al. 2022, "RvS: What is Essential for Offline RL via Supervised Learning?" (arXiv 2112.10751). Ranks
among the training samples replace rewards, because the scale and spread of rewards differ from task to task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from reflectrl.wings.text.samples.sample import Sample

KEY = "reflectrl: condition"
"""Key of `Sample.meta` for the text at the beginning of a prompt. The sample's own prompt is not changed, since rewards
read it."""
RANKS = 10


def with_ranks(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples, each with the rank of its reward among them, from 1 to 10."""
    rewards = np.array([sample.reward for sample in samples])
    edges = np.quantile(rewards, np.arange(1, RANKS) / RANKS)
    ranks = 1 + np.searchsorted(edges, rewards)
    return [_with_rank(sample, int(rank)) for sample, rank in zip(samples, ranks, strict=True)]


def asked_for_the_best(prompts: Sequence[Sample]) -> list[Sample]:
    """Return the prompts, each with the highest rank."""
    return [_with_rank(sample, RANKS) for sample in prompts]


def _with_rank(sample: Sample, rank: int) -> Sample:
    return replace(sample, meta={**sample.meta, KEY: f"Reward {rank} of {RANKS}. "})


def condition_of(sample: Sample) -> str:
    """Return the text that the prompt of a sample begins with; "" if it has no condition."""
    return str(sample.meta.get(KEY, ""))
