"""Batches of online RL from generated completions: rewards and advantages per token, and passes of the policy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, chain, pairwise

import numpy as np
import torch
from torch import Tensor

from reflectrl.core.config import RLConfig
from reflectrl.learn.advantages import COMPARISONS
from reflectrl.learn.batch import Batch, Slice
from reflectrl.learn.examples import Example, completion_logits, passes
from reflectrl.learn.losses import baseline_mean, gae, rewards_to_go
from reflectrl.learn.minibatches import assign_minibatches
from reflectrl.learn.value import ValueHead
from reflectrl.methods.shared.offline.losses import k3
from reflectrl.models.lm import LanguageModel
from reflectrl.wings.text.learn.written import Completion


@torch.no_grad()
def make_batch(
    lm: LanguageModel,
    reference: LanguageModel | None,
    critic: ValueHead | None,
    written: Sequence[Completion],
    scores_K: Tensor,
    config: RLConfig,
    rng: np.random.Generator | None = None,
) -> Batch:
    """Build a batch from the N tokens of K completions, end-of-text included. A slice holds whole completions.

    A pass of the policy gives the critic's values and the log-probability of end-of-text, which generation does not
    record. A pass of the reference gives the KL penalty of each token. The metric "kl" is the divergence from the
    reference (k3 estimator, nats per completion).

    Args:
        written: completions, with the `config.group` completions of a prompt next to each other.
        scores_K: scaled rewards of the completions.
        rng: assigns the completions to `config.steps_per_epoch` minibatches; None makes a single minibatch.
    """
    rows = [completion.example for completion in written]
    lengths = lengths_of(rows)
    labels_N = torch.tensor([token for row in rows for token in row.ids[row.start :]], device=lm.device)
    slices = token_slices(lm, rows, config.minibatch, config.temperature)
    logps, values = [], []
    for part in slices:
        logp_NV, hidden_ND = part.read()
        logps.append(logp_NV.gather(1, labels_N[part.units, None])[:, 0])
        values += [critic(hidden_ND)] if critic is not None else []
    logp_N, values_N = torch.cat(logps), torch.cat(values) if values else None
    # NaN marks end-of-text, whose log-probability generation does not record. The policy's own replaces it below.
    padded = [
        (*completion.logprobs, *[torch.nan] * (n - len(completion.logprobs)))
        for completion, n in zip(written, lengths, strict=True)
    ]
    drawn_N = torch.tensor([logp for row in padded for logp in row], device=lm.device)
    rewards_N, metrics = torch.zeros_like(logp_N), dict[str, float]()
    if reference is not None:
        ref_logps = []
        for part in token_slices(reference, rows, config.minibatch, config.temperature):
            logp_NV, _ = part.read()
            ref_logps.append(logp_NV.gather(1, labels_N[part.units, None])[:, 0])
        ref_N = torch.cat(ref_logps)
        rewards_N = -config.kl_coef * (logp_N - ref_N)
        metrics["kl"] = float(k3(ref_N - logp_N).sum()) / len(rows)
    rewards_N[torch.tensor(lengths, device=lm.device).cumsum(0) - 1] += scores_K.to(rewards_N)
    returns_N = torch.cat([rewards_to_go(part_T, config.gamma) for part_T in rewards_N.split(lengths)])
    advantages_N = token_advantages(rewards_N, values_N, lengths, config)
    targets_N = returns_N if values_N is None else values_N + advantages_N  # the critic's lambda-returns
    old_logp_N = torch.where(drawn_N.isnan(), logp_N, drawn_N)
    minibatches = [slices]
    if rng is not None and config.steps_per_epoch > 1:
        shares = assign_minibatches(prompt_numbers(rows), config, rng)
        minibatches = []
        for share in shares:
            # Sorted, so that completions of one prompt stay neighbours, and a pass encodes the prompt once.
            members = sorted(share.tolist())
            minibatches.append(token_slices(lm, rows, config.minibatch, config.temperature, members))
    return Batch(minibatches, labels_N, old_logp_N, advantages_N, targets_N, values_N, metrics=metrics)


def token_slices(
    lm: LanguageModel, rows: Sequence[Example], most: int, temperature: float, share: Sequence[int] | None = None
) -> list[Slice]:
    """Split completions into slices of at most `most` completions for one pass. Their units are tokens of the batch.

    Args:
        rows: all completions of the batch.
        share: indices of the completions to split; None for all.
    """
    units_of = [range(*span) for span in pairwise(accumulate(lengths_of(rows), initial=0))]
    if share is None:
        share = range(len(rows))
    selected, slices = [rows[i] for i in share], []
    for cut in passes(lm, [row.ids for row in selected], lengths_of(selected), most):
        units = list(chain.from_iterable(units_of[i] for i in share[cut]))
        slices.append(Slice(units, partial(token_logp, lm, selected[cut], temperature)))
    return slices


def prompt_numbers(rows: Sequence[Example]) -> np.ndarray:
    """Number the distinct prompts from 0 on; return the number of each completion's prompt."""
    numbers: dict[tuple[int, ...], int] = {}
    return np.array([numbers.setdefault(row.ids[: row.start], len(numbers)) for row in rows])


def token_advantages(rewards_N: Tensor, values_N: Tensor | None, lengths: Sequence[int], config: RLConfig) -> Tensor:
    """Return the advantage of each token, (N,), not yet normalised.

    "critic" uses generalised advantage estimation over the tokens. The other baselines compare whole completions, whose
    tokens share one advantage: the sum of rewards ("none"), the sum minus the batch mean ("mean"), or a comparison with
    the other completions of the prompt (`advantages.COMPARISONS`). With "grpo", completions of any length have equal
    weight.

    Args:
        lengths: number of tokens of each completion. The `config.group` completions of a prompt are neighbours.
    """
    parts = rewards_N.split(list(lengths))
    if values_N is not None:
        pairs = zip(parts, values_N.split(list(lengths)), strict=True)
        return torch.cat([gae(rewards_T, values_T, config.gamma, config.gae_lambda) for rewards_T, values_T in pairs])
    totals_K = torch.stack([part_T.sum() for part_T in parts])
    if config.baseline == "mean":
        totals_K = totals_K - baseline_mean(totals_K)
    elif config.baseline in COMPARISONS:
        totals_K = torch.cat(list(map(COMPARISONS[config.baseline], totals_K.split(config.group))))
    if config.baseline == "grpo":
        lengths_K = torch.tensor(lengths, device=totals_K.device)
        totals_K = totals_K * lengths_K.float().mean() / lengths_K
    return totals_K.repeat_interleave(torch.tensor(lengths, device=totals_K.device))


def token_logp(lm: LanguageModel, rows: Sequence[Example], temperature: float) -> tuple[Tensor, Tensor]:
    """Return log-probabilities (N, V) over the vocabulary at each completion token, with gradient, at the sampling
    temperature; and the hidden states (N, D) that predicted them.
    """
    logits_NV, hidden_ND, _ = completion_logits(lm, rows)
    return (logits_NV / temperature).log_softmax(-1), hidden_ND


def lengths_of(rows: Sequence[Example]) -> list[int]:
    """Return the number of tokens of each completion."""
    return [len(row.ids) - row.start for row in rows]
