"""Weights that may be divided among the ranks of a run (`sharded.py`), and adapters that take turns on one backbone.

What is needed for every model, divided or not, so it imports nothing of torch's that takes seconds to import.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor

from reflectrl.distributed import is_divided


def whole(tensor: Tensor) -> Tensor:
    """A tensor itself; of one that is divided all of it, on every rank, all of which call this."""
    found: Tensor = cast(Any, tensor).full_tensor() if is_divided(tensor) else tensor
    return found


def wholes(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`whole` of several, in the machine's memory, on the first rank; the others keep what they have."""
    return {name: _on_first(tensor) if is_divided(tensor) else tensor for name, tensor in named.items()}


def _on_first(tensor: Any) -> Tensor:
    full: Tensor = tensor.full_tensor()
    first: bool = dist.get_rank() == 0
    return full.cpu() if first else cast(Tensor, tensor)


def piece(tensor: Tensor, like: Tensor) -> Tensor:
    """What this rank keeps of a whole tensor where `like` is divided; otherwise the tensor itself."""
    if not is_divided(like) or is_divided(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    own, spread = tensor.to(like.device), cast(Any, like)
    return distribute_tensor(own, spread.device_mesh, spread.placements, src_data_rank=None)


def activate(peft: Any, adapter: str) -> None:
    """Make an adapter the one that computes.

    PEFT's own switch also freezes all other adapters, so gradients of passes that they have made would be lost;
    here what may be trained stays as it is.
    """
    if peft.active_adapter != adapter:
        trainable = [p for p in peft.parameters() if p.requires_grad]
        peft.set_adapter(adapter)
        peft.requires_grad_(False)
        for parameter in trainable:
            parameter.requires_grad_(True)
