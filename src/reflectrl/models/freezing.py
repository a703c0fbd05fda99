"""Layers that stay as they were pretrained, whatever learns above them.

The lowest layers of a pretrained model know how words are put together, and few tasks need that changed. Kept as they
are, they need no gradients: a step takes two thirds less of the time that they took, and the optimiser keeps nothing
for them (Howard and Ruder 2018, who thaw layers one by one; Lee et al. 2019 on how few have to learn).
"""

from __future__ import annotations

from typing import Any

from torch import nn

from reflectrl.models.checkpointing import layers_of
from reflectrl.types import UserError


def freeze(core: Any, layers: int, name: str) -> None:
    """Let no training change a model's embeddings, nor its lowest `layers` layers. A head tied to them stays as well.

    Args:
        core: a Hugging Face causal language model.
        name: the model's name, for errors.

    Raises:
        UserError: the model has no more layers than that, or the library does not say which they are.
    """
    found = layers_of(core)
    if not found:
        raise UserError(f"model {name!r} ({core.config.model_type}) cannot learn with model.frozen_layers")
    if layers >= len(found):
        raise UserError(f"model {name!r} has {len(found)} layers; model.frozen_layers must be less, not {layers}")
    tables = [module for module in core.modules() if isinstance(module, nn.Embedding)]
    for module in (*tables, *found[:layers]):
        module.requires_grad_(False)
