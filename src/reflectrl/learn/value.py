"""The critic: a head on the policy's hidden state that predicts the return."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from reflectrl.types import named_seed


class ValueHead(nn.Module):
    """Predicts the return from a hidden state; starts out predicting 0 everywhere.

    A zero-initialised last layer makes the first advantages equal to the returns instead of to noise. The head works
    in its own dtype (float32 unless moved), whatever the backbone's.

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
        """[N, D] hidden states -> [N] predicted returns in reward units."""
        return self.out(self.body(hidden_ND.to(self.out.weight.dtype))).squeeze(-1)


def make_critic(hidden_size: int, kind: Literal["linear", "mlp"], seed: int) -> ValueHead:
    """A fresh value head whose weights depend on the seed alone."""
    with torch.random.fork_rng():
        torch.manual_seed(named_seed(seed, "critic"))
        return ValueHead(hidden_size, kind)
