"""Frozen layers: the lowest layers keep their pretrained weights while the layers above learn.

The lowest layers of a pretrained model encode how words are put together, and few tasks need that changed. Frozen
layers need no gradients: they take two thirds less time per step, and the optimiser keeps no state for them. See Howard
and Ruder 2018, who unfreeze layers one by one, and Lee et al. 2019 on how few layers have to learn.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from reflectrl.core.types import UserError
from reflectrl.models.checkpointing import layers_of


def freeze(core: Any, layers: int, name: str) -> None:
    """Freeze a model's embeddings and its lowest `layers` layers. A head that is tied to the embeddings is frozen too.

    Args:
        core: a Hugging Face causal language model.
        name: the model's name, for errors.

    Raises:
        UserError: the model has no more than `layers` layers, or the library does not mark its layers.
    """
    blocks = layers_of(core)
    if not blocks:
        raise UserError(f"model {name!r} ({core.config.model_type}) cannot learn with model.frozen_layers")
    if layers >= len(blocks):
        raise UserError(f"model {name!r} has {len(blocks)} layers; model.frozen_layers must be less, not {layers}")
    tables = [module for module in core.modules() if isinstance(module, nn.Embedding)]
    for module in (*tables, *blocks[:layers]):
        module.requires_grad_(False)
