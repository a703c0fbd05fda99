"""Optimisers of SFT and offline learning: AdamW for every weight, or Muon for hidden matrices and AdamW for the rest.

Paged AdamW (Dettmers et al. 2023, "QLoRA") is AdamW whose state moves to the CPU's memory where the GPU's is full.
Muon (Jordan et al. 2024; `muon.py`) orthogonalises the momentum of each matrix. Small models made from scratch
learn their reflections with it in about half as many steps.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from reflectrl.config import OfflineConfig, SFTConfig
from reflectrl.learn.muon import Muon
from reflectrl.models.lm import LanguageModel
from reflectrl.models.load import bitsandbytes


def make_optimizers(lm: LanguageModel, config: SFTConfig | OfflineConfig) -> list[torch.optim.Optimizer]:
    """One or two optimisers over `lm.parameters()`; each group remembers its peak rate as "initial_lr".

    Raises:
        UserError: paged AdamW is asked for, and bitsandbytes is not installed.
    """
    hidden = _hidden_matrices(lm) if config.optimizer == "muon" else []
    chosen = {id(p) for p in hidden}
    rest = [p for p in lm.parameters() if id(p) not in chosen]
    adamw = _paged if config.optimizer == "paged_adamw" else partial(torch.optim.AdamW, betas=(0.9, 0.95), fused=True)
    optimizers: list[torch.optim.Optimizer] = [adamw(rest, lr=config.lr, weight_decay=config.weight_decay)]
    if hidden:
        optimizers.append(Muon(hidden, lr=config.muon_lr, weight_decay=config.weight_decay))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


def _paged(parameters: list[nn.Parameter], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """With the betas of QLoRA; on a CPU its state stays where it is."""
    optimizers = bitsandbytes().optim
    made: torch.optim.Optimizer = optimizers.PagedAdamW32bit(
        [p for p in parameters if p.requires_grad], lr=lr, weight_decay=weight_decay, betas=(0.9, 0.999)
    )
    return made


def set_rate(optimizers: list[torch.optim.Optimizer], share: float) -> None:
    """Set every group's learning rate to a share of its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * share


def clipped_step(optimizer: torch.optim.Optimizer, max_grad_norm: float) -> float:
    """One step along gathered gradients, which are then forgotten; returns the first group's norm before clipping.

    Groups are clipped apart: a critic far off must not starve the policy.
    """
    groups = optimizer.param_groups
    norms = [torch.nn.utils.clip_grad_norm_(group["params"], max_grad_norm) for group in groups]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(norms[0])


def _hidden_matrices(lm: LanguageModel) -> list[nn.Parameter]:
    """Trainable matrices between the embeddings and the LM head, both of which look tokens up rather than mix them."""
    tables = {id(p) for module in lm.model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    head = lm.core.get_output_embeddings()  # type: ignore[operator]
    tables |= {id(p) for p in head.parameters()}
    return [p for p in lm.parameters() if p.ndim == 2 and id(p) not in tables]
