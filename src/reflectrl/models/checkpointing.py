"""Gradient checkpointing (Chen et al. 2016): layers are computed again on the way back instead of being kept.

It is done here and not by the library's own switch, which works in training mode alone (RL learns in evaluation mode)
and would compute a packed pass again with the attention of an unpacked one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from reflectrl.models.hf_forward import attending, present_attention
from reflectrl.types import UserError


def recompute_layers(core: Any, name: str) -> None:
    """Let a model keep only what enters each layer, whenever there is a gradient to be computed.

    Args:
        core: a Hugging Face causal language model.
        name: of the model, for errors.

    Raises:
        UserError: the library's code for this family has no layers that may be computed again.
    """
    layers = [module for module in core.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UserError(f"model {name!r} ({core.config.model_type}) cannot learn with model.gradient_checkpointing")
    for layer in layers:
        layer.forward = partial(_recomputed, layer.forward)
    core.recomputes = True


def _recomputed(forward: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """What a layer computes; with a gradient, by way of torch's checkpoint."""
    if not torch.is_grad_enabled():
        return forward(*given, **options)
    attend = present_attention()  # the pass will be over when the layer is computed again

    def contexts() -> tuple[Any, Any]:
        return nullcontext(), attending(attend)

    return checkpoint(partial(forward, **options), *given, use_reentrant=False, context_fn=contexts)
