"""A tiny instruct model: a chat template in ChatML, whose turns end otherwise than texts do, and random weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectrl.core.config import ModelConfig
from reflectrl.core.prompts.chat import system_prompt
from reflectrl.models.scratch import make_model, train_tokenizer

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXT = (
    "a chain of rooms; you are in room 1 of 5\nReflection: Go on, the lamp is left.\n"
    "Actions: " + "; ".join(f"{i}: a{i}" for i in range(1, 13)) + "\nChoice: 1\n"
)
SHAPE = {"family": "llama", "layers": 2, "width": 32, "heads": 2, "vocab": 420, "context": 2048}

Maker = Callable[..., Path]


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """`chat_model(template)`: the folder of a model whose tokenizer has that template; None leaves it without one."""

    def make(template: Any = CHATML) -> Path:
        tokenizer = train_tokenizer([TEXT, system_prompt("Rules.", "policy"), system_prompt("", "reflector")], 420, 12)
        tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
        tokenizer.chat_template = template
        folder = tmp_path_factory.mktemp("chat")
        model = make_model(ModelConfig(**SHAPE), tokenizer, seed=3)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim == 2:
                    weight.mul_(4.0)  # which gives it opinions
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def instruct(chat_model: Maker) -> Path:
    """The folder of the model with the usual template."""
    return chat_model()
