"""From written completions to what an update needs: records per token, advantages, the policy's pass over a slice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reflectrl.config import RLConfig
from reflectrl.learn.losses import baseline_leave_one_out, baseline_mean, gae, rewards_to_go
from reflectrl.learn.offline_losses import k3
from reflectrl.learn.sft import Example
from reflectrl.learn.value import ValueHead
from reflectrl.models.lm import LanguageModel
from reflectrl.wings.text.learn.text_dataset import completion_logits
from reflectrl.wings.text.learn.written import Written


@dataclass
class TextBatch:
    """The completions of one update: K rows with N tokens in all, row behind row, end-of-text included.

    Attributes:
        rows: prompt and completion as tokens.
        old_logp_N: log-probabilities of the tokens when they were drawn, at the temperature of drawing.
        advantages_N: not yet normalised.
        returns_N: reward-to-go of every token, penalties included (scaled reward units).
        values_N: what the critic expected of it before this update; None without a critic.
        kl: divergence from the reference (k3, nats per completion); None without a reference.
    """

    rows: list[Example]
    old_logp_N: Tensor
    advantages_N: Tensor
    returns_N: Tensor
    values_N: Tensor | None = None
    kl: float | None = None

    def __len__(self) -> int:
        return sum(lengths_of(self.rows))

    def slices(self, size: int) -> Iterator[tuple[list[Example], slice]]:
        """Rows, `size` at a time, and where their tokens stand."""
        start = 0
        for rows in _sliced(self.rows, size):
            stop = start + sum(lengths_of(rows))
            yield rows, slice(start, stop)
            start = stop


def make_batch(
    lm: LanguageModel,
    reference: LanguageModel | None,
    critic: ValueHead | None,
    written: Sequence[Written],
    scores_K: Tensor,
    config: RLConfig,
) -> TextBatch:
    """What an update needs to know: one pass of the policy over the completions, and one of the reference.

    The policy's pass gives the critic's values, and the log-probability of end-of-text, which writing does not record.

    Args:
        written: completions of one prompt stand together, `config.group` of each.
        scores_K: their scaled rewards.
    """
    rows = [one.example for one in written]
    lengths = lengths_of(rows)
    padded = [(*one.logprobs, *[torch.nan] * (n - len(one.logprobs))) for one, n in zip(written, lengths, strict=True)]
    drawn_N = torch.tensor([logp for row in padded for logp in row], device=lm.device)
    logp_N, values_N = _read(lm, rows, config, critic)
    rewards_N, kl = torch.zeros_like(logp_N), None
    if reference is not None:
        ref_N, _ = _read(reference, rows, config)
        rewards_N = -config.kl_coef * (logp_N - ref_N)
        kl = float(k3(ref_N - logp_N).sum()) / len(rows)
    rewards_N[torch.tensor(lengths, device=lm.device).cumsum(0) - 1] += scores_K.to(rewards_N)
    returns_N = torch.cat([rewards_to_go(part_T, config.gamma) for part_T in rewards_N.split(lengths)])
    advantages_N = token_advantages(rewards_N, values_N, lengths, config)
    return TextBatch(rows, torch.where(drawn_N.isnan(), logp_N, drawn_N), advantages_N, returns_N, values_N, kl)


def token_advantages(rewards_N: Tensor, values_N: Tensor | None, lengths: Sequence[int], config: RLConfig) -> Tensor:
    """How much better each token turned out than expected, (N,), not yet normalised.

    "critic": generalised advantage estimation over the tokens. The others compare whole completions, and all tokens of
    one share its advantage: the sum of its rewards, minus nothing ("none"), minus the mean of the batch ("mean"), or
    minus the mean of the other completions of its prompt ("leave-one-out", Ahmadian et al. 2024).

    Args:
        lengths: tokens of each completion; completions of one prompt are neighbours, `config.group` of each.
    """
    parts = rewards_N.split(list(lengths))
    if values_N is not None:
        values = values_N.split(list(lengths))
        return torch.cat(
            [gae(r_T, v_T, config.gamma, config.gae_lambda) for r_T, v_T in zip(parts, values, strict=True)]
        )
    totals_K = torch.stack([part_T.sum() for part_T in parts])
    if config.baseline == "mean":
        totals_K = totals_K - baseline_mean(totals_K)
    elif config.baseline == "leave-one-out":
        totals_K = totals_K - torch.cat([baseline_leave_one_out(group) for group in totals_K.split(config.group)])
    return totals_K.repeat_interleave(torch.tensor(lengths, device=totals_K.device))


def token_logp(lm: LanguageModel, rows: Sequence[Example], temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Of the tokens of some completions: log-probabilities of all tokens (N, V), of those that were written (N,), and
    the hidden states (N, D) that they were predicted from. The temperature is that of writing; gradients flow.
    """
    logits_NV, hidden_ND, targets_N = completion_logits(lm, rows)
    logp_NV = (logits_NV / temperature).log_softmax(-1)
    return logp_NV, logp_NV.gather(1, targets_N[:, None])[:, 0], hidden_ND


@torch.no_grad()
def _read(
    lm: LanguageModel, rows: Sequence[Example], config: RLConfig, critic: ValueHead | None = None
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities (N,) of all tokens of the completions, and the critic's values (N,) of them."""
    logps, values = [], []
    for part in _sliced(rows, config.minibatch):
        _, chosen_N, hidden_ND = token_logp(lm, part, config.temperature)
        logps.append(chosen_N)
        if critic is not None:
            values.append(critic(hidden_ND))
    return torch.cat(logps), torch.cat(values) if values else None


def _sliced(rows: Sequence[Example], size: int) -> Iterator[list[Example]]:
    return (list(rows[start : start + size]) for start in range(0, len(rows), size))


def lengths_of(rows: Sequence[Example]) -> list[int]:
    """Tokens of each completion."""
    return [len(row.ids) - row.start for row in rows]
