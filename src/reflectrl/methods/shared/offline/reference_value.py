"""Value of the reference policy: a head that attends over the prompt's hidden states and predicts the reward.

Source: Baheti et al. 2024, section on the reference's value. The backbone is frozen and the head is float32. Departures
from the released code: only the prompt's own tokens are attended to, so padding cannot leak into a value, and the best
epoch is chosen on held-out prompts instead of the training loss.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from reflectrl.core.types import UserError, named_seed
from reflectrl.learn.losses import explained_variance, value_loss
from reflectrl.learn.trainer import Trainer
from reflectrl.methods.shared.offline.config import OfflineConfig
from reflectrl.models.lm import LanguageModel
from reflectrl.models.sharing import Ids, chunks, no_sharing, pack

LOG = logging.getLogger(__name__)

HEADS, DROPOUT = 8, 0.1
WORSE = 1.25
"""A value whose held-out loss is this many times a constant's loss is warned of; a little above 1 is chance."""

Log = Callable[[dict[str, float]], object]


class PromptValue(nn.Module):
    """Value head: one learned query attends over a prompt's hidden states, and a linear layer maps the result to V.

    Args:
        hidden_size: D, the width of the hidden states. The number of attention heads is gcd(8, D).
        max_value: scale of the sigmoid output; None makes the output linear.
    """

    def __init__(self, hidden_size: int, max_value: float | None) -> None:
        super().__init__()
        self.max_value = max_value
        self.query = nn.Parameter(torch.randn(1, 1, hidden_size) * hidden_size**-0.5)
        self.dropout = nn.Dropout(DROPOUT)
        self.attention = nn.MultiheadAttention(hidden_size, math.gcd(HEADS, hidden_size), batch_first=True)
        self.out = nn.Linear(hidden_size, 1)

    def forward(self, hidden_PTD: Tensor, own_PT: Tensor) -> Tensor:
        """Return values (P,) of prompts.

        Args:
            hidden_PTD: hidden states of the prompts' tokens, padded anywhere with anything finite.
            own_PT: True at a prompt's own tokens, False at padding.
        """
        states_PTD = self.dropout(hidden_PTD.to(self.out.weight.dtype))
        query_P1D = self.query.expand(len(states_PTD), -1, -1)
        pooled_P1D, _ = self.attention(query_P1D, states_PTD, states_PTD, key_padding_mask=~own_PT, need_weights=False)
        logits_P = self.out(pooled_P1D)[:, 0, 0]
        return logits_P if self.max_value is None else self.max_value * logits_P.sigmoid()


def fit_value(
    lm: LanguageModel,
    prompts: Sequence[Ids],
    returns_P: Tensor,
    units: Sequence[str],
    max_value: float | None,
    config: OfflineConfig,
    seed: int,
    log: Log,
) -> PromptValue:
    """Fit V by mean squared error; return the head from the epoch that is best on held-out prompts.

    Args:
        lm: the reference. It is not changed.
        returns_P: return that followed each prompt (mapped rewards).
        units: task or group of each prompt. A unit is either learned from or held out as a whole.
        log: receives {"step", "value_loss", "value_eval_loss", "explained_variance"} once per epoch. The losses are in
            squared reward units.

    A value that is worse than a constant on held-out prompts is warned of, since it misleads every advantage.

    Raises:
        UserError: fewer than two units.
    """
    train, held_out = split(units, config.held_out, seed)
    eval_losses = []
    with torch.random.fork_rng():
        torch.manual_seed(named_seed(seed, "value"))
        head = PromptValue(lm.hidden_size, max_value).to(lm.device)
    with torch.no_grad():  # start at the mean return, away from the sigmoid's flat ends
        mean = float(returns_P[train].mean())
        share = min(max(mean / max_value, 0.02), 0.98) if max_value is not None else 0.5
        head.out.bias.fill_(mean if max_value is None else math.log(share / (1 - share)))
    trainer = Trainer(head, [torch.optim.AdamW(head.parameters(), lr=config.value_lr)])
    for epoch in range(config.value_epochs):
        generator = torch.Generator().manual_seed(named_seed(seed, "value epoch", epoch))
        order = [train[i] for i in torch.randperm(len(train), generator=generator)]
        torch.manual_seed(named_seed(seed, "value dropout", epoch))
        total = 0.0
        head.train()
        for start in range(0, len(order), config.value_batch):
            rows = order[start : start + config.value_batch]
            values_P = head(*prompt_states(lm, [prompts[i] for i in rows]))
            loss = value_loss(values_P, returns_P[rows].to(values_P))
            loss.backward()
            trainer.update({})
            total += float(loss.detach()) * len(rows)
        held_out_P = prompt_values(lm, head, [prompts[i] for i in held_out])
        eval_loss = float(value_loss(held_out_P, returns_P[held_out]))
        eval_losses.append(eval_loss)
        explained = explained_variance(held_out_P, returns_P[held_out])
        losses = {"value_loss": total / len(order), "value_eval_loss": eval_loss}
        log({"step": epoch + 1, **losses, "explained_variance": explained})
        trainer.keep_if_best((-eval_loss,))
    trainer.finish()
    constant_P = torch.full_like(returns_P[held_out], float(returns_P[train].mean()))
    constant_loss = float(value_loss(constant_P, returns_P[held_out]))
    if min(eval_losses) > WORSE * constant_loss:
        LOG.warning(
            "the reference's value is worse than a constant: held-out loss %.3g, a constant has %.3g;"
            " try another offline.value_lr (it is %g)",
            *(min(eval_losses), constant_loss, config.value_lr),
        )
    return head.eval()


@torch.no_grad()
def prompt_values(lm: LanguageModel, head: PromptValue, prompts: Sequence[Ids]) -> Tensor:
    """Return V of each prompt, (P,), on the CPU. It does not depend on the other prompts or on padding."""
    head.eval()
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), prompts[i]))  # similar lengths: little padding
    values_P = torch.empty(len(prompts))
    for rows in chunks([len(prompts[i]) for i in order], lm.pass_tokens):
        part = order[rows]
        values_P[part] = head(*prompt_states(lm, [prompts[i] for i in part])).float().cpu()
    return values_P


@torch.no_grad()
def prompt_states(lm: LanguageModel, prompts: Sequence[Ids]) -> tuple[Tensor, Tensor]:
    """Return hidden states (P, T, D) of the prompts' tokens, padded on the right, and a mask of real tokens (P, T)."""
    # An encoder's states of a common beginning depend on how a prompt goes on.
    packing = no_sharing(prompts) if lm.encoder_decoder else pack(prompts)
    hidden_MD = lm.backend.read(packing, "all")
    rows = [hidden_MD[torch.as_tensor(packing.token_indices(i), device=lm.device)] for i in range(len(prompts))]
    lengths_P = torch.tensor([len(row) for row in rows], device=lm.device)
    hidden_PTD = pad_sequence(rows, batch_first=True)
    return hidden_PTD, torch.arange(hidden_PTD.shape[1], device=lm.device)[None] < lengths_P[:, None]


def split(units: Sequence[str], share: float, seed: int) -> tuple[list[int], list[int]]:
    """Split rows into training and held-out rows. A share of the units (at least one) is held out with all its rows.

    Raises:
        UserError: fewer than two units.
    """
    names = sorted(set(units), key=lambda name: named_seed(seed, "held out", name))
    if len(names) < 2:
        raise UserError("offline: some of the prompts (or tasks) are held out, so at least two are needed")
    held_out = set(names[: max(1, round(share * len(names)))])
    rows = range(len(units))
    return [i for i in rows if units[i] not in held_out], [i for i in rows if units[i] in held_out]
