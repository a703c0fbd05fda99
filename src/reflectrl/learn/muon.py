"""Muon where bfloat16 is slow: torch's computes its matrix products in bfloat16, which most CPUs imitate, a hundred
times slower than float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from reflectrl.models.precision import has_fast_bfloat16


class Muon(torch.optim.Muon):
    """`torch.optim.Muon` (Jordan et al. 2024), on CPUs without fast bfloat16 in float32; the state is the same.

    Learning rates are adjusted to shapes as in the original, which is torch's default.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step along the gradients; as torch's where its matrix products are fast."""
        device = self.param_groups[0]["params"][0].device
        if closure is not None or device.type != "cpu" or has_fast_bfloat16(device):
            return super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._move(p, p.grad, group)
        return None

    def _move(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(grad)
        average = state["momentum_buffer"].lerp_(grad, 1 - group["momentum"])
        update = grad.lerp(average, group["momentum"]) if group["nesterov"] else average
        rows, columns = p.shape
        p.mul_(1 - group["lr"] * group["weight_decay"])
        direction = orthogonalised(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
        p.add_(direction, alpha=-group["lr"] * math.sqrt(max(1.0, rows / columns)))


def orthogonalised(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Roughly U Vᵀ of a matrix (R, C) = U S Vᵀ, by a Newton-Schulz iteration of fifth order."""
    a, b, c = coefficients
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x_MN = wide / matrix.norm().clamp(min=eps)
    for _ in range(steps):
        gram_MM = x_MN @ x_MN.T
        x_MN = torch.addmm(x_MN, torch.addmm(gram_MM, gram_MM, gram_MM, beta=b, alpha=c), x_MN, beta=a)
    return x_MN if matrix.shape[0] <= matrix.shape[1] else x_MN.T
