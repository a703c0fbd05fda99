"""Weights that may be sharded across ranks (`sharded.py`), and adapters that take turns on a shared backbone.

Every model needs this module, sharded or not, so it avoids the parts of torch that take seconds to import.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor

from reflectrl.core.distributed import is_divided


def whole(tensor: Tensor) -> Tensor:
    """Return the full tensor. Gathers a sharded tensor, so all ranks must call this together."""
    found: Tensor = cast(Any, tensor).full_tensor() if is_divided(tensor) else tensor
    return found


def wholes(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gather sharded tensors into the first rank's main memory. The other ranks keep their shards."""
    return {name: _on_first(tensor) if is_divided(tensor) else tensor for name, tensor in named.items()}


def _on_first(tensor: Any) -> Tensor:
    full: Tensor = tensor.full_tensor()
    first: bool = dist.get_rank() == 0
    return full.cpu() if first else cast(Tensor, tensor)


def piece(tensor: Tensor, like: Tensor) -> Tensor:
    """Return this rank's shard of a full tensor if `like` is sharded; otherwise the tensor itself."""
    if not is_divided(like) or is_divided(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    own, spread = tensor.to(like.device), cast(Any, like)
    return distribute_tensor(own, spread.device_mesh, spread.placements, src_data_rank=None)


def activate(peft: Any, adapter: str) -> None:
    """Switch a backbone to another adapter without changing which weights are trainable.

    PEFT's own switch also freezes all other adapters, so gradients of their earlier passes would be lost.
    """
    if peft.active_adapter != adapter:
        trainable = [p for p in peft.parameters() if p.requires_grad]
        peft.set_adapter(adapter)
        peft.requires_grad_(False)
        for parameter in trainable:
            parameter.requires_grad_(True)
