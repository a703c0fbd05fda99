"""The plain forward pass: a model's own code, one sequence at a time, with nothing shared and nothing kept.

Short, slow, and right for every architecture: what the engine is held against (`proof.py`), and what a model runs on
where the engine would differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from reflectrl.models.packing import Block, Ids, Packing, Trie


def plain_pass(core: Any, ids: Sequence[int], **options: Any) -> tuple[Tensor, Tensor, Any]:
    """One sequence through a model's own forward pass.

    Args:
        core: a Hugging Face causal language model.
        options: what else its forward pass is told.

    Returns:
        Hidden states (T, D) that its layers hand to whatever computes logits; logits (T, V); its whole output.
    """
    found: list[Tensor] = []
    hook = body_of(core).register_forward_hook(lambda module, given, output: found.append(output[0]))
    device = core.get_input_embeddings().weight.device
    try:
        output = core(input_ids=torch.tensor([ids], device=device), **{"use_cache": False, **options})
    finally:
        hook.remove()
    return found[-1][0], output.logits[0], output


def body_of(core: Any) -> nn.Module:
    """The part of a causal language model that its forward pass calls for hidden states of text."""
    embeddings = core.get_input_embeddings()
    for found in (core.get_decoder(), core.base_model):  # some families call other things a decoder, or a base
        if found is not core and any(module is embeddings for module in found.modules()):
            return found
    return core.model


def own_logits(core: Any, hidden_ND: Tensor) -> Tensor:
    """Logits (N, V) of hidden states by the model's own code: its forward pass, with the layers left out.

    So whatever a family does beside the head's product (scaling, soft caps, transformations) is done.
    """
    ids_1N = torch.zeros(1, len(hidden_ND), dtype=torch.long, device=hidden_ND.device)
    with _replaced(body_of(core), lambda *_, **__: _Output(hidden_ND[None])):
        logits: Tensor = core(input_ids=ids_1N, use_cache=False).logits[0]
    return logits


class _Output(SimpleNamespace):
    """What a body returns: hidden states, and nothing of all else that might be asked for."""

    def __init__(self, hidden_1ND: Tensor) -> None:
        super().__init__(last_hidden_state=hidden_1ND)

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]


@contextmanager
def _replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Within the block, a module computes something else."""
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before


@contextmanager
def attention(core: Any, implementation: str) -> Iterator[None]:
    """Within the block, attention is computed so; "eager" writes it out, while fused ones ignore what they lack."""
    before = core.config._attn_implementation
    core.set_attn_implementation(implementation)
    try:
        yield
    finally:
        core.set_attn_implementation(before)


# ---- as the engine has it --------------------------------------------------------------------------------------------


def plain_hidden(core: Any, packing: Packing) -> Tensor:
    """Hidden states (N, D) of all tokens of a packing, in the order of its blocks; gradients flow.

    Every block is read with all that stands before it, and every branch of a trie by itself.
    """
    return torch.cat([_block_hidden(core, packing, block) for block in packing.blocks])


def _block_hidden(core: Any, packing: Packing, block: Block) -> Tensor:
    before = tuple(token for number, count in block.context for token in packing.blocks[number].ids[:count])
    if block.trie is None:
        return plain_pass(core, before + block.ids)[0][len(before) :]
    return _trie_hidden(core, before, block.trie)


def _trie_hidden(core: Any, before: Ids, trie: Trie) -> Tensor:
    found: dict[int, Tensor] = {}
    for path in sorted(trie.paths, key=len, reverse=True):
        if not found.keys() >= set(path):
            ids = tuple(trie.ids[node] for node in path)
            found.update(zip(path, plain_pass(core, before + ids)[0][len(before) :], strict=True))
    return torch.stack([found[node] for node in range(len(trie.ids))])


class Continuation:
    """One text that grows, read by a model's own forward pass.

    Args:
        cached: whether the library's own cache keeps what was read; otherwise all is read anew for each token.
    """

    def __init__(self, core: Any, cached: bool) -> None:
        self.core, self.cached = core, cached
        self._ids: Ids = ()
        self._cache: Any = None

    def add(self, ids: Sequence[int]) -> Tensor:
        """Read more tokens; returns the hidden state (D,) behind them."""
        self._ids = (*self._ids, *ids)
        if not self.cached:
            return plain_pass(self.core, self._ids)[0][-1]
        hidden_TD, _, output = plain_pass(self.core, ids, use_cache=True, past_key_values=self._cache)
        self._cache = output.past_key_values
        return hidden_TD[-1]
