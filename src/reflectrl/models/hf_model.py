"""Parts of a Hugging Face causal language model: its layers, its head, the way in which it attends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn


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
    """What a body returns: hidden states, and None for everything else that might be read from it."""

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
