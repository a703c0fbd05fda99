"""Backbones in 4 or 8 bits, by bitsandbytes."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from transformers import BitsAndBytesConfig

from reflectrl.core.advice import install
from reflectrl.core.config import ModelConfig
from reflectrl.core.types import UserError


def quantisation(config: ModelConfig, device: torch.device) -> dict[str, Any]:
    """Return the loader's options for NF4 with double quantisation, as in QLoRA (Dettmers et al. 2023), or LLM.int8.

    Raises:
        UserError: bitsandbytes is not installed.
    """
    if config.quantisation == "none":
        return {}
    bitsandbytes()
    settings = BitsAndBytesConfig(
        load_in_4bit=config.quantisation == "nf4",
        load_in_8bit=config.quantisation == "int8",
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, config.dtype),
    )
    return {"quantization_config": settings, "device_map": {"": device}}


def bitsandbytes() -> Any:
    """Import the package. Raise UserError if it is not installed."""
    try:
        return importlib.import_module("bitsandbytes")
    except ImportError as error:
        raise UserError(f"models in 4 or 8 bits and paged_adamw need bitsandbytes; {install('qlora')}") from error


def let_gradients_flow(model: Any) -> None:
    """Let gradients flow through a 4-bit model on every CPU. On some, the faster weight layout has no backward pass."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
