"""Backbones in 4 or 8 bits, by bitsandbytes."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from transformers import BitsAndBytesConfig

from reflectrl.advice import install
from reflectrl.config import ModelConfig
from reflectrl.types import UserError


def quantisation(config: ModelConfig, device: torch.device) -> dict[str, Any]:
    """What the loader is told of quantisation: NF4 twice quantised, as in QLoRA (Dettmers et al. 2023), or LLM.int8.

    Raises:
        UserError: bitsandbytes is not installed.
    """
    if config.quantisation == "none":
        return {}
    bitsandbytes()
    how = BitsAndBytesConfig(
        load_in_4bit=config.quantisation == "nf4",
        load_in_8bit=config.quantisation == "int8",
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, config.dtype),
    )
    return {"quantization_config": how, "device_map": {"": device}}


def bitsandbytes() -> Any:
    """The package; UserError if it is not installed."""
    try:
        return importlib.import_module("bitsandbytes")
    except ImportError as error:
        raise UserError(f"models in 4 or 8 bits and paged_adamw need bitsandbytes; {install('qlora')}") from error


def let_gradients_flow(model: Any) -> None:
    """Have a model in 4 bits learn on every CPU: some compute quickly in a form through which no gradient flows."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
