"""The critic: a head on the policy's hidden state that predicts the return."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from reflectrl.core.types import named_seed


class ValueHead(nn.Module):
    """Head that predicts the return from a hidden state. It starts out predicting 0 everywhere.

    With a zero-initialised last layer, the first advantages equal the returns instead of noise. The head works in its
    own dtype (float32 unless moved), whatever the backbone's.

    Args:
        hidden_size: D, the width of the hidden states.
        kind: "linear" (one linear map), or "mlp" (layer norm, linear, ReLU, linear; the MLP critic of Reflect-RL,
            Zhou et al. 2024).
    """

    def __init__(self, hidden_size: int, kind: Literal["linear", "mlp"] = "linear") -> None:
        super().__init__()
        self.out = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        self.body: nn.Module = nn.Identity()
        if kind == "mlp":
            self.body = nn.Sequential(nn.LayerNorm(hidden_size), nn.Linear(hidden_size, hidden_size), nn.ReLU())

    def forward(self, hidden_ND: Tensor) -> Tensor:
        """Predict returns [N] in reward units from hidden states [N, D]."""
        return self.out(self.body(hidden_ND.to(self.out.weight.dtype))).squeeze(-1)


def make_critic(hidden_size: int, kind: Literal["linear", "mlp"], seed: int) -> ValueHead:
    """Make a fresh value head whose weights depend on the seed alone."""
    with torch.random.fork_rng():
        torch.manual_seed(named_seed(seed, "critic"))
        return ValueHead(hidden_size, kind)
