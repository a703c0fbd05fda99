"""A reference that moves during a training: the view that the current reference has of the data, as saved state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reflectrl.methods.shared.offline.reference_cache import ReferenceCache


class MovingReference(nn.Module):
    """Current reference of a training. Its tensors are buffers, so a trainer saves and restores them with the weights.

    Args:
        cache: the first reference's view of the data.

    Attributes:
        score: validation score of the reference's weights.
        since: step from which on the training uses this reference.
    """

    score: Tensor
    since: Tensor

    def __init__(self, cache: ReferenceCache) -> None:
        super().__init__()
        for name, tensor in vars(cache).items():
            self.register_buffer(name, tensor.clone())
        self.register_buffer("score", torch.tensor(-torch.inf, dtype=torch.float64))
        self.register_buffer("since", torch.tensor(0))

    @property
    def cache(self) -> ReferenceCache:
        """The reference's view of the data."""
        return ReferenceCache(*(self.get_buffer(name) for name in ReferenceCache.__dataclass_fields__))

    def is_beaten(self, score: float, gain: float) -> bool:
        """Return whether a validation score is above the reference's by more than `gain`."""
        return score > float(self.score) + gain

    def become(self, cache: ReferenceCache, score: float, step: int) -> None:
        """Replace the reference by the weights of a step, with their view of the data and their validation score."""
        self.load_state_dict({**vars(cache), "score": torch.tensor(score), "since": torch.tensor(step)})
