"""Gradient checkpointing: the same gradients, in less memory, on every way through a model."""

import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from reflectrl.core.config import ModelConfig
from reflectrl.core.types import UserError
from reflectrl.models.lm import LanguageModel
from reflectrl.models.load import load_model
from reflectrl.models.sharing import pack
from tests.device import DEVICE

HISTORY = tuple(range(20, 60))
PROMPTS = [(*HISTORY, 7, 8, 9), (*HISTORY, 11, 12), (5, 6, 7)]


def learned(lm: LanguageModel) -> tuple[Tensor, Tensor, float]:
    """Logits, gradients of all that may learn, and bytes that were kept between forward and backward."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    own = {p.untyped_storage().data_ptr() for p in lm.model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = lm.backend.logits(lm.backend.read(pack(PROMPTS)), torch.tensor([7, 3, 11], device=lm.device))
    logits.log_softmax(-1)[:, 0].sum().backward()
    gradients = torch.cat([p.grad.flatten() for p in lm.parameters() if p.grad is not None])
    return logits.detach(), gradients, sum(size for place, size in kept.items() if place not in own)


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral", "canon_llama"])
@pytest.mark.parametrize("backend", ["packed", "plain"])
@pytest.mark.parametrize("rank", [0, 4])
def test_gradients_are_equal_and_less_is_kept(
    family: str, backend: str, rank: int, tiny_folder: Callable[[str], Path]
) -> None:
    found = []
    for checkpointing in (False, True):
        config = ModelConfig(
            context=128, backend=backend, lora_rank=rank, gradient_checkpointing=checkpointing, device=DEVICE
        )
        lm = load_model(tiny_folder(family), config, "policy")
        with torch.random.fork_rng():
            torch.manual_seed(1)
            for weight in lm.parameters() if rank else ():
                weight.data.normal_(std=0.2)
        found.append(learned(lm))
    (logits, gradients, kept), (again_logits, again, less) = found
    torch.testing.assert_close(again_logits, logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(again, gradients, atol=1e-4, rtol=1e-4)
    assert gradients.abs().sum() > 0
    if backend == "packed":
        assert less < 0.6 * kept


@pytest.mark.parametrize("family", ["llama", "gpt2", "canon_llama"])
@pytest.mark.parametrize("batched", [False, True])
def test_nothing_of_attention_is_kept(
    family: str, batched: bool, tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its inputs live on in plain training, and die with their layer under gradient checkpointing."""
    seen: list[weakref.ref[Any]] = []
    plain = functional.scaled_dot_product_attention

    def watched(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Tensor:
        seen.extend(weakref.ref(part.untyped_storage()) for part in (query, key, value))
        return plain(query, key, value, *rest, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", watched)
    alive, gradients = [], []
    for checkpointing in (False, True):
        lm = load_model(tiny_folder(family), ModelConfig(context=128, gradient_checkpointing=checkpointing))
        lm = replace(lm, engine_options=replace(lm.engine_options, batched=batched))
        seen.clear()
        logits = lm.backend.logits(lm.backend.read(pack(PROMPTS)), torch.tensor([7, 3, 11], device=lm.device))
        assert len(seen) > 6
        alive.append(sum(one() is not None for one in seen))
        logits.log_softmax(-1)[:, 0].sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in lm.parameters() if p.grad is not None]))
    assert alive[0] > 0 and alive[1] == 0
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


def test_play_is_as_it_was(tiny_folder: Callable[[str], Path]) -> None:
    read = []
    for checkpointing in (False, True):
        lm = load_model(tiny_folder("llama"), ModelConfig(context=128, gradient_checkpointing=checkpointing))
        with torch.inference_mode():
            read.append(lm.backend.read(PROMPTS))
    assert torch.equal(*read)


def test_a_family_without_such_layers_is_refused(tiny_folder: Callable[[str], Path]) -> None:
    from reflectrl.models.checkpointing import recompute_layers

    class Config:
        model_type = "other"

    model = torch.nn.Linear(2, 2)
    model.config = Config()  # type: ignore[assignment]
    with pytest.raises(UserError, match="'mine' \\(other\\) cannot learn with model.gradient_checkpointing"):
        recompute_layers(model, "mine")
