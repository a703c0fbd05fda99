"""The packed backend: the fast engine. Tokens of all rows are concatenated, so nothing is padded.

Common prefixes of prompts are computed once: within a call by packing, and between the steps of an episode by KV caches
(both in `sharing.py`). Labels need only a few rows of the head, and texts are written by speculative decoding
(`generation.py`). A row's result does not depend on the other rows of its batch, apart from rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from reflectrl.models.attention import Attend, BlockAttention, DecodingAttention, to_device
from reflectrl.models.backend import Candidates, Completion, Draw, Scoring
from reflectrl.models.batched import BatchedAttention, WholeAttention, share_nothing
from reflectrl.models.forward import Walk, head_logits, hidden_states, walk_of
from reflectrl.models.generation import END, Draft, DraftModel
from reflectrl.models.graphs import DecodingGraphs, GraphDecoding
from reflectrl.models.lookback import Lookback, PassLookback
from reflectrl.models.options import option_logits
from reflectrl.models.plain import own_logits
from reflectrl.models.rounding import compiles_by_shape, rounded, without_spare
from reflectrl.models.sharing import REUSE, Block, Ids, KVCache, Packing, chunks, no_sharing, pack, remainders
from reflectrl.models.text_scoring import text_logits

if TYPE_CHECKING:
    from reflectrl.models.lm import LanguageModel

WORTH_SHARING = 0.5
"""Largest share of a batch's tokens left after sharing for which sharing pays on a GPU."""

SMALL = 4_500
"""Largest `mean_size` of a pass's blocks for which a CPU attends them in padded batches. A call per block costs the
same however little it computes, while padded batches cost copies in proportion to that size. Measured by
`benchmarks.blocks` (docs/results/engine.md)."""

FEW = 8
"""Smallest number of blocks for which a CPU makes padded batches."""


def mean_size(blocks: Sequence[Block], width: int) -> float:
    """Return the mean of (new tokens + visible tokens / 4) · width over the blocks of a pass.

    Args:
        width: width of the model.
    """
    sizes = (len(block.ids) + (block.start + len(block.ids)) / 4 for block in blocks)
    return width * sum(sizes) / len(blocks)


def are_small(blocks: Sequence[Block], width: int) -> bool:
    """Return whether a CPU attends the blocks of a pass faster in padded batches than one by one.

    Args:
        width: width of the model.
    """
    return len(blocks) >= FEW and mean_size(blocks, width) <= SMALL


@dataclass
class _Row:
    """A text that is being written.

    Attributes:
        prompt: the prompt's tokens as characters, for the draft model.
        pending: tokens that the latest pass has read: the last written token, and a draft.
        ids, logprobs: the tokens written so far, and their log-probabilities.
        text: the same tokens as characters, with `END` once the text has ended.
        kept: number of tokens drawn in this pass, which is also how many of the pending tokens are kept.
    """

    limit: int
    generator: np.random.Generator
    prompt: str
    pending: list[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    draft: Draft = field(default_factory=Draft)
    kept: int = 0
    text: str = ""
    done: bool = False


class PackedBackend:
    """Fast implementation of `backend.Backend`, where the methods are documented.

    Args:
        lm: the player's model. `lm.engine_options` selects the options of the engine.
    """

    def __init__(self, lm: LanguageModel) -> None:
        self.lm, self.core, self.device, self.ends = lm, lm.core, lm.device, lm.ends
        self.walk: Walk | None = None
        if lm.engine_options.blocks:
            self.walk = walk_of(lm.core, lm.engine_options.compiled)
        self.pass_tokens = lm.pass_tokens
        self.taps = lm.taps
        self.graphs: DecodingGraphs | None = None
        if lm.engine_options.graphs and self.walk is not None:
            self.graphs = DecodingGraphs(self._forward, lambda: list(self.core.parameters()), self.device)

    def _forward(self, ids_N: Tensor, positions_N: Tensor, attend: Attend, lookback: Lookback | None) -> Tensor:
        return hidden_states(self.core, ids_N, positions_N, attend, None, self.walk, lookback)

    def encode(
        self, packing: Packing, at: Sequence[int] | Literal["all"], caches: Sequence[KVCache] | None = None
    ) -> Tensor:
        """Compute hidden states (M, D) of a packing in one forward pass, for all tokens or for the indices `at`.

        Args:
            caches: the KV cache of each block. It holds the tokens before the block, and afterwards also the block
                itself, unless that is a trie. With caches there are no gradients.
        """
        if self.lm.adapter is not None:
            self.lm.activate()
        blocks, at_W = packing.blocks, None if at == "all" else np.asarray(at)
        attend = self._attention(blocks, caches)
        lookback = PassLookback(blocks, caches, self.taps, self.device) if self.taps > 1 else None
        # Each wanted token is computed once, in ascending order, however often and in whatever order it is asked for.
        ascending, order = np.array([], dtype=int), np.array([], dtype=int)
        if at_W is not None:
            ascending, order = np.unique(at_W, return_inverse=True)
        count = sum(len(block.ids) for block in blocks)
        ids = np.concatenate([block.ids for block in blocks])
        positions = np.concatenate([block.positions() for block in blocks])
        if caches is None and compiles_by_shape(self.device):
            # Both numbers of rows are rounded up with spare tokens. Attention leaves them out, and nothing reads them.
            spare = rounded(len(ascending)) - len(ascending)
            spare_ids = np.zeros(rounded(count + spare) - count, dtype=ids.dtype)
            if len(spare_ids):
                attend = without_spare(attend, count, len(ascending))
            ascending = np.concatenate([ascending, count + np.arange(spare)])
            ids, positions = np.concatenate([ids, spare_ids]), np.concatenate([positions, spare_ids])
        ids_N, positions_N, wanted_W, order_M = to_device(self.device, ids, positions, ascending, order)
        wanted = None if at_W is None else wanted_W
        with torch.set_grad_enabled(torch.is_grad_enabled() and caches is None):
            hidden_WD = hidden_states(self.core, ids_N, positions_N, attend, wanted, self.walk, lookback)
            if lookback is not None:
                lookback.keep()
        # The next prompt could reuse only one branch of a trie, so caches keep plain runs only.
        runs = [block for block in packing.blocks if block.trie is None]
        for block, cache in zip(runs, caches or (), strict=False):
            cache.ids += block.ids
        self.lm.counters.passes += 1
        self.lm.counters.encoded += count
        self.lm.counters.reused += sum(packing.lengths())
        for block in packing.blocks:
            n = len(block.ids)
            self.lm.counters.pairs += n * block.start + n * (n + 1) // 2
            if block.trie is None:
                self.lm.counters.reused -= n
        if wanted is None:
            return hidden_WD[:count]
        return hidden_WD[order_M]

    def _attention(self, blocks: Sequence[Block], caches: Sequence[KVCache] | None) -> Attend:
        """Choose the implementation of attention for the blocks of a pass."""
        # A cache holds its keys contiguously, so with caches a call per block copies nothing.
        is_small = caches is None and are_small(blocks, self.lm.hidden_size)
        if not self.lm.engine_options.batched and not is_small:
            return BlockAttention(blocks, caches)
        if caches is None and share_nothing(blocks):
            return WholeAttention(blocks, self.device)
        return BatchedAttention(blocks, caches, self.lm.layers, self.device)

    def pack(self, prompts: Sequence[Ids]) -> Packing:
        """Pack prompts into blocks with common prefixes shared, on a GPU only if that saves half of the tokens.

        On a GPU, tokens are cheap compared with launches. Prompts that share nothing are attended as they are, while
        branching prompts need masks and copies of the keys that they see, in every layer.
        """
        packing = pack(prompts)
        if self.lm.engine_options.batched:
            tokens, tokens_apart = sum(len(block.ids) for block in packing.blocks), sum(map(len, prompts))
            if tokens > tokens_apart * WORTH_SHARING:
                return no_sharing(prompts)
        return packing

    def read(
        self,
        prompts: Sequence[Ids],
        at: Sequence[int] | Literal["ends", "all"] = "ends",
        caches: Sequence[KVCache] | None = None,
    ) -> Tensor:
        """Read prompts in one pass. With caches, read them in passes of about `pass_tokens` new tokens."""
        if caches is None:
            packing = prompts if isinstance(prompts, Packing) else self.pack(prompts)
            if at == "ends":
                at = packing.ends()
            return self.encode(packing, at)
        new = [len(prompt) - cache.match(prompt, REUSE) for prompt, cache in zip(prompts, caches, strict=True)]
        ends = []
        for rows in chunks(new, self.pass_tokens):
            packing = remainders(prompts[rows], caches[rows])
            ends.append(self.encode(packing, packing.ends(), caches[rows]))
        return torch.cat(ends)

    def score(
        self,
        prompts: Sequence[Ids],
        candidates: Sequence[Candidates],
        scoring: Scoring = "enumeration",
        caches: Sequence[KVCache] | None = None,
        share: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Score actions, in a single pass while learning.

        While playing (in inference mode), prompts without caches are split into passes of about `pass_tokens` tokens.
        Prompts are sorted first, so that common prefixes fall into the same pass.
        """
        if caches is None and not isinstance(prompts, Packing):
            pack_prompts = self.pack if share else no_sharing
            if not torch.is_inference_mode_enabled():
                return self.score(pack_prompts(prompts), candidates, scoring)
            order = sorted(range(len(prompts)), key=lambda i: prompts[i])
            rows, ends = [Tensor()] * len(prompts), [Tensor()] * len(prompts)
            for part in chunks([len(prompts[i]) for i in order], self.pass_tokens):
                packing = pack_prompts([prompts[i] for i in order[part]])
                logits_PA, hidden_PD = self.score(packing, [candidates[i] for i in order[part]], scoring)
                for i, row_A, end_D in zip(order[part], logits_PA, hidden_PD, strict=True):
                    rows[i], ends[i] = row_A, end_D
            return pad_sequence(rows, batch_first=True, padding_value=-torch.inf), torch.stack(ends)
        if scoring == "options":
            head_D = self.lm.ensure_option_head()
            if self.lm.taps:
                return text_logits(self, prompts, candidates, "trie", caches, head_D)
            return option_logits(self, prompts, candidates, head_D, caches)
        if scoring != "enumeration":
            return text_logits(self, prompts, candidates, scoring, caches)
        hidden_PD = self.read(prompts, caches=caches)
        # All prompts use the labels of the longest list. Those with fewer actions use the first of them.
        longest = max(candidates, key=lambda listed: len(listed.ids))
        (labels_A,) = to_device(self.device, [ids[0] for ids in longest.ids])
        return self.logits(hidden_PD, labels_A).float(), hidden_PD

    def logits(self, hidden_ND: Tensor, rows: Tensor | None = None) -> Tensor:
        """Compute logits of the tokens `rows` only, unless the model's own head must compute all of them."""
        if self.lm.engine_options.rows:
            logits = head_logits(self.core, hidden_ND, rows)
            self.lm.counters.logits += logits.numel()
            return logits
        logits_NV = self._own_logits(hidden_ND)
        if rows is None:
            return logits_NV
        return logits_NV[:, rows]

    def token_logits(self, hidden_RD: Tensor, where_E: Tensor, tokens_E: Tensor) -> Tensor:
        """Compute logits (E,) in float32 of the tokens `tokens_E` after the hidden states `hidden_RD[where_E]`."""
        if not self.lm.engine_options.rows:
            return self._own_logits(hidden_RD).float()[where_E, tokens_E]
        self.lm.counters.logits += len(tokens_E)
        return head_logits(self.core, hidden_RD[where_E], tokens_E, each=True)

    def _own_logits(self, hidden_ND: Tensor) -> Tensor:
        self.lm.activate()
        logits_NV = own_logits(self.core, hidden_ND)
        self.lm.counters.logits += logits_NV.numel()
        return logits_NV

    @torch.no_grad()
    def write(
        self,
        prompts: Sequence[Ids],
        max_new_tokens: int | Sequence[int],
        draw: Draw,
        generators: Sequence[np.random.Generator],
        caches: Sequence[KVCache] | None = None,
        draft_model: DraftModel | None = None,
    ) -> list[Completion]:
        """Continue all prompts together, each until its own end."""
        limits = max_new_tokens
        if isinstance(limits, int):
            limits = [limits] * len(prompts)
        if caches is None:
            caches = [KVCache() for _ in prompts]
        rows = []
        for prompt, limit, generator in zip(prompts, limits, generators, strict=True):
            text = "".join(map(chr, prompt)) if draft_model else ""  # the draft model searches tokens as characters
            rows.append(_Row(limit, generator, text, [prompt[-1]]))
        hidden_ND = self.read(prompts, caches=caches)
        decoding = self._begin_writing(caches, max(limits, default=0))
        writing = rows
        while writing:
            self._draw(self.logits(hidden_ND).float(), writing, draw)
            stay = [slot for slot, row in enumerate(writing) if not row.done]
            # Keys and values of rejected guesses are dropped, and those of finished texts with them.
            decoding.keep([row.kept for row in writing], stay)
            if draft_model is not None:
                for row in writing:
                    draft_model.learn(row.draft, row.kept - 1, row.text if row.done else None)
            writing = [writing[slot] for slot in stay]
            if not writing:
                break
            for row in writing:
                if draft_model is not None:
                    row.draft = draft_model.draft(row.prompt, row.text, row.limit - len(row.ids) - 1)
                # The last token was drawn but not read yet, so the next pass reads it with the guesses after it.
                row.pending, row.kept = [row.ids[-1], *map(ord, row.draft.tokens)], 0
            pending = [row.pending for row in writing]
            if isinstance(decoding, GraphDecoding):
                hidden_ND = decoding.read(pending)
            else:
                ids_N, positions_N = decoding.advance(pending)
                lookback = decoding.convolve if self.taps > 1 else None
                hidden_ND = self._forward(ids_N, positions_N, decoding, lookback)
            self.lm.counters.passes += 1
            self.lm.counters.decoded += len(hidden_ND)
            self.lm.counters.drafted += len(hidden_ND) - len(writing)
            self.lm.counters.pairs += decoding.pairs
        return [(tuple(row.ids), tuple(row.logprobs)) for row in rows]

    def _begin_writing(self, caches: Sequence[KVCache], room: int) -> GraphDecoding | DecodingAttention:
        """Copy caches that hold the rows' prompts, for texts of at most `room` tokens."""
        if self.graphs is not None:
            recorded = self.graphs.begin(caches, room)
            if recorded is not None:
                return recorded
        return DecodingAttention(caches, room, self.device, self.lm.engine_options.batched)

    def _draw(self, logits_NV: Tensor, rows: Sequence[_Row], draw: Draw) -> None:
        """Draw the next token of each row, and further tokens as long as the row's draft agrees with the draws.

        On a CPU, tokens are drawn one after another, which takes the least computation. On a GPU, where waiting for
        each result is slow, all are drawn at once (`_ahead`).
        """
        starts = [0, *accumulate(len(row.pending) for row in rows)]
        states, ahead = [], list[tuple[int, float]]()
        if self.lm.engine_options.batched:
            states = [row.generator.bit_generator.state for row in rows]
            ahead = self._ahead(logits_NV, rows, draw)
        active, depth = list(range(len(rows))), 0
        while active:
            indices = [starts[slot] + depth for slot in active]
            if ahead:
                drawn = [ahead[index] for index in indices]
            else:
                logits_BV = logits_NV if len(indices) == len(logits_NV) else logits_NV[indices]
                tokens_B, logp_B = draw(logits_BV, [rows[slot].generator for slot in active])
                drawn = list(zip(tokens_B.tolist(), logp_B.tolist(), strict=True))
            agreeing = []
            for slot, (token, logprob) in zip(active, drawn, strict=True):
                row = rows[slot]
                row.kept += 1
                ended = token in self.ends
                row.text += END if ended else chr(token)
                if not ended:
                    row.ids.append(token)
                    row.logprobs.append(logprob)
                row.done = ended or len(row.ids) >= row.limit
                if not row.done and row.pending[row.kept : row.kept + 1] == [token]:
                    agreeing.append(slot)
            active, depth = agreeing, depth + 1
        for row, state in zip(rows, states, strict=False):
            # `_ahead` took a number for every pending token. Rewind, then take one per kept token, as a CPU would.
            if row.generator.bit_generator.state != state:
                row.generator.bit_generator.state = state
                row.generator.random(row.kept)

    def _ahead(self, logits_NV: Tensor, rows: Sequence[_Row], draw: Draw) -> list[tuple[int, float]]:
        """Draw a token and its log-probability after each pending token, as if the draft before it were right."""
        tokens_N, logp_N = draw(logits_NV, [row.generator for row in rows for _ in row.pending])
        both_N2 = torch.stack([tokens_N.float(), logp_N], 1)  # one transfer; no vocabulary reaches 2**24
        return [(int(token), logprob) for token, logprob in both_N2.tolist()]
