"""Scoring options by a learned head: each option's text is read once behind the prompt, and gets one number.

Neither labels nor a list of the options are in the prompt. Options do not see each other, and the first token of each
has the position after the prompt. So an option's score depends on the prompt and on its own text only: it is the same
in any order and beside any other options, apart from rounding. The softmax over the set makes scores probabilities.

Options that begin alike share the tokens of their common beginning, since they are read as a trie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from reflectrl.models.sharing import REUSE, Block, Ids, KVCache, Packing, remainders
from reflectrl.models.text_scoring import Trie, make_trie

if TYPE_CHECKING:
    from reflectrl.models.backend import Answers
    from reflectrl.models.packed import PackedBackend

OPTION_HEAD = "options.weight"
"""Name of the head's weight (D,) among a model's weights and in its file of heads."""

WHOLE = -1
"""Token appended to an option before its trie is built, because a trie leaves out the last token of each text."""


def new_option_head(hidden_size: int, device: torch.device) -> nn.Parameter:
    """Return the weight of an untrained head. It is 0, so that every option is equally likely at first."""
    return nn.Parameter(torch.zeros(hidden_size, device=device))


def option_scores(hidden_MD: Tensor, head_D: Tensor) -> Tensor:
    """Compute the scores (M,) of hidden states at the ends of options, in float32 even under autocast."""
    return (hidden_MD.float() * head_D.float()).sum(-1)


def option_trie(answers: Answers) -> Trie:
    """Build the trie of some options. The last node of each path is the option's last token."""
    return make_trie([(*ids, WHOLE) for ids in answers.ids])


def option_logits(
    backend: PackedBackend,
    prompts: Sequence[Ids],
    answers: Sequence[Answers],
    head_D: Tensor,
    caches: Sequence[KVCache] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return logits (P, A) of each prompt's options, padded with -inf, and hidden states (P, D) after the prompts.

    Args:
        prompts: a packing if there are no caches. Gradients flow through it.
        caches: KV cache of each prompt. Afterwards it holds the prompt, but no option.
    """
    if caches is not None:
        for prompt, cache in zip(prompts, caches, strict=True):
            cache.match(prompt, REUSE)
    packing = prompts if isinstance(prompts, Packing) else remainders(prompts, caches or ())
    tries = [option_trie(one) for one in answers]
    behind = zip(tries, packing.lengths(), packing.paths, strict=True)
    branches = [Block(trie.ids, length, path, trie) for trie, length, path in behind]
    first = sum(len(block.ids) for block in packing.blocks)
    starts = accumulate((len(trie.ids) for trie in tries), initial=first)
    ends = [start + path[-1] for start, trie in zip(starts, tries, strict=False) for path in trie.paths]
    whole = replace(packing, blocks=[*packing.blocks, *branches])
    hidden_MD = backend.encode(whole, [*packing.ends(), *ends], caches and [*caches, *caches])
    hidden_PD, hidden_OD = hidden_MD.split([len(tries), len(ends)])
    rows = option_scores(hidden_OD, head_D).split([len(one.ids) for one in answers])
    return pad_sequence(list(rows), batch_first=True, padding_value=-torch.inf), hidden_PD
