"""Gradient checkpointing (Chen et al. 2016): activations are recomputed in the backward pass instead of being kept.

The library's own switch cannot be used here. It works in training mode only, but RL learns in evaluation mode. It would
also recompute a packed pass with the attention of an unpacked pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from reflectrl.core.types import UserError
from reflectrl.models.attention import Attend, recomputed
from reflectrl.models.canon import looking_back, present_lookback
from reflectrl.models.hf_forward import attending, present_attention
from reflectrl.models.lookback import Lookback


def recompute_layers(core: Any, name: str) -> None:
    """Make a model keep only the inputs of its layers when gradients are computed.

    Args:
        core: a Hugging Face causal language model.
        name: the model's name, for errors.

    Raises:
        UserError: the library's code for this family does not support it.
    """
    layers = layers_of(core)
    if not layers:
        raise UserError(f"model {name!r} ({core.config.model_type}) cannot learn with model.gradient_checkpointing")
    for layer in layers:
        layer.forward = partial(_recomputed, layer.forward)
    core.recomputes = True


def layers_of(core: Any) -> list[Any]:
    """Return a Hugging Face model's layers, the lowest first. Empty if the library's code does not mark its layers."""
    return [module for module in core.modules() if isinstance(module, GradientCheckpointingLayer)]


def _recomputed(forward: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Call a layer, through torch's checkpoint if gradients are computed."""
    if not torch.is_grad_enabled():
        return forward(*given, **options)
    # Both are kept, since the pass will be over when the layer is recomputed.
    attend, lookback = present_attention(), present_lookback()

    def contexts() -> tuple[Any, Any]:
        return _within(attend, lookback), _within(attend, lookback)

    return checkpoint(partial(forward, **options), *given, use_reentrant=False, context_fn=contexts)


@contextmanager
def _within(attend: Attend | None, lookback: Lookback | None) -> Iterator[None]:
    """Set attention and convolution for a layer under gradient checkpointing, within the block."""
    token = recomputed.set(True)
    try:
        with attending(attend), looking_back(lookback):
            yield
    finally:
        recomputed.reset(token)
