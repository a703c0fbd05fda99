"""Optimisers of SFT and offline learning: AdamW for every weight, or Muon for hidden matrices and AdamW for the rest.

Paged AdamW (Dettmers et al. 2023, "QLoRA") is AdamW whose state moves to the CPU's memory where the GPU's is full.
Muon (Jordan et al. 2024) orthogonalises the momentum of each matrix. Small models made from scratch learn their
reflections with it in about half as many steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from reflectrl.models.lm import LanguageModel
from reflectrl.models.machine import is_mixed
from reflectrl.models.quantised import bitsandbytes


class Rates(Protocol):
    """Optimiser settings of a training: [sft], and sections of a recipe with the same keys."""

    @property
    def optimizer(self) -> Literal["adamw", "paged_adamw", "muon"]: ...

    @property
    def lr(self) -> float: ...

    @property
    def muon_lr(self) -> float: ...

    @property
    def weight_decay(self) -> float: ...


def make_optimizers(lm: LanguageModel, config: Rates) -> list[torch.optim.Optimizer]:
    """Make one or two optimisers over `lm.parameters()`. Each group stores its peak learning rate as "initial_lr".

    Raises:
        UserError: bitsandbytes is not installed (for paged AdamW).
    """
    hidden = _hidden_matrices(lm) if config.optimizer == "muon" else []
    hidden_ids = {id(p) for p in hidden}
    rest = [p for p in lm.parameters() if id(p) not in hidden_ids]
    adamw = _paged if config.optimizer == "paged_adamw" else partial(torch.optim.AdamW, betas=(0.9, 0.95), fused=True)
    optimizers: list[torch.optim.Optimizer] = []
    if rest:  # adapters may be matrices alone
        optimizers.append(adamw(rest, lr=config.lr, weight_decay=config.weight_decay))
    if hidden:
        mixed = is_mixed(lm.device, lm.mixed)
        optimizers.append(Muon(hidden, lr=config.muon_lr, weight_decay=config.weight_decay, mixed=mixed))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


def _paged(parameters: list[nn.Parameter], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """Make a paged AdamW optimiser with the betas of QLoRA. On a CPU there is no paging."""
    optimizers = bitsandbytes().optim
    optimizer: torch.optim.Optimizer = optimizers.PagedAdamW32bit(
        [p for p in parameters if p.requires_grad], lr=lr, weight_decay=weight_decay, betas=(0.9, 0.999)
    )
    return optimizer


def _hidden_matrices(lm: LanguageModel) -> list[nn.Parameter]:
    """Return the trainable matrices between the embeddings and the LM head.

    Embeddings and head are excluded, because they look tokens up instead of mixing features.
    """
    tables = {id(p) for module in lm.model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    head = lm.core.get_output_embeddings()  # type: ignore[operator]
    tables |= {id(p) for p in head.parameters()}
    return [p for p in lm.parameters() if p.ndim == 2 and id(p) not in tables]


class Muon(torch.optim.Muon):
    """`torch.optim.Muon` (Jordan et al. 2024) that computes in float32 on CPUs unless training is mixed.

    Torch's version computes its matrix products in bfloat16. Most CPUs emulate that, a hundred times slower than
    float32. Learning rates are adjusted to shapes as in the original, which is torch's default. The state is the same.

    Args:
        mixed: compute the products in bfloat16 on CPUs as well.
    """

    def __init__(self, params: Iterable[nn.Parameter], mixed: bool = False, **options: Any) -> None:
        super().__init__(params, **options)
        self._mixed = mixed

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step along the gradients. Uses torch's own step where products are in bfloat16."""
        device = self.param_groups[0]["params"][0].device
        if closure is not None or device.type != "cpu" or self._mixed:
            return super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(p.grad)
                average = state["momentum_buffer"].lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(average, group["momentum"]) if group["nesterov"] else average
                rows, columns = p.shape
                p.mul_(1 - group["lr"] * group["weight_decay"])
                direction = orthogonalised(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
                p.add_(direction, alpha=-group["lr"] * math.sqrt(max(1.0, rows / columns)))
        return None


def orthogonalised(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Approximate U Vᵀ of a matrix (R, C) = U S Vᵀ by a Newton-Schulz iteration of fifth order."""
    a, b, c = coefficients
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x_MN = wide / matrix.norm().clamp(min=eps)
    for _ in range(steps):
        gram_MM = x_MN @ x_MN.T
        x_MN = torch.addmm(x_MN, torch.addmm(gram_MM, gram_MM, gram_MM, beta=b, alpha=c), x_MN, beta=a)
    return x_MN if matrix.shape[0] <= matrix.shape[1] else x_MN.T
