"""Make models of known shapes with random weights, for machines without pretrained models.

    python -m benchmarks.shapes /somewhere/models --device cuda

Speed and memory depend on a model's shape, not on what it has learned. Each folder has weights, a chat template, and a
tokenizer for the text of the benchmarks' workloads and of the recipes that `gpu.py` shortens.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from transformers import LlamaConfig, LlamaForCausalLM

from reflectrl.models.scratch import train_tokenizer

from .settings import note
from .workloads import texts_of, workload

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "vocab_size": 2_048,
    },
    "4x256": {
        "hidden_size": 256, "intermediate_size": 1_024, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 4, "vocab_size": 2_048,
    },
    "smollm2-135m": {
        "hidden_size": 576, "intermediate_size": 1_536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "vocab_size": 49_152,
    },
    "llama-1.5b": {
        "hidden_size": 1_536, "intermediate_size": 8_960, "num_hidden_layers": 28, "num_attention_heads": 12,
        "num_key_value_heads": 2, "vocab_size": 151_936,
    },
}  # fmt: skip
"""Llama's layers in the shapes of a scratch model, SmolLM2-135M and Qwen2.5-1.5B (the model of `alfworld-hub`)."""

HALF = ("llama-1.5b",)
"""Shapes whose weights are saved in bfloat16, as large models are published."""

TOKENS = 1_500
"""Largest number of tokens of the tokenizer. Other rows of the embedding table are there for their cost only."""

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Settings:
    """Settings of the models to make."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Parent of the models' folders."""
    names: tuple[str, ...] = ("4x256", "smollm2-135m", "llama-1.5b")
    """Shapes: tiny, 4x256, smollm2-135m, llama-1.5b."""
    device: str = "cpu"
    """Device on which random weights are drawn; a GPU draws 1.5 billion in a second."""


def make_tokenizer() -> Any:
    """Return a tokenizer for the text of all workloads, with ChatML's control tokens and template."""
    workloads = [workload(name) for name in ("taxi", "alfworld")]
    choices = max(work.choices for work in workloads)

    def texts() -> Iterator[str]:
        for work in workloads:
            yield from texts_of(work)

    tokenizer = train_tokenizer(texts(), TOKENS - choices, choices)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHATML
    return tokenizer


def make_shape(name: str, folder: Path, device: str = "cpu", seed: int = 0) -> None:
    """Write a model of a shape, with random weights, into a folder."""
    tokenizer = make_tokenizer()
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    config = LlamaConfig(**SHAPES[name], **ends, tie_word_embeddings=True, max_position_embeddings=8192)
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if name in HALF else torch.float32)
    try:
        with torch.device(device):
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def rows(settings: Settings) -> list[dict[str, Any]]:
    """Make each model. Return rows with its size on disk and the seconds that it took."""
    table_rows = []
    for name in settings.names:
        start = time.perf_counter()
        make_shape(name, settings.folder / name, settings.device)
        size = sum(path.stat().st_size for path in (settings.folder / name).glob("*.safetensors"))
        table_rows.append(note({"shape": name, "MiB on disk": size / 2**20, "seconds": time.perf_counter() - start}))
    return table_rows


if __name__ == "__main__":
    rows(tyro.cli(Settings, description=(__doc__ or "").split("\n\n")[0]))
