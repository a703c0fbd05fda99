"""Models in 4 and 8 bits with LoRA on top, and paged AdamW, as far as a CPU goes."""

import sys

import pytest
import torch

from reflectrl.core.config import ModelConfig, SFTConfig, from_dict
from reflectrl.core.types import UserError
from reflectrl.learn.optim import make_optimizers
from reflectrl.models.load import load_model
from reflectrl.models.sharing import no_sharing

BASE = {"context": 64, "mixed_precision": "off", "device": "cpu", "lora_rank": 4, "lora_alpha": 16}


def nll(lm) -> torch.Tensor:
    ids = [3, 4, 5, 6, 7, 8]
    logits = lm.backend.logits(lm.backend.read(no_sharing([tuple(ids[:-1])]), "all"))
    return torch.nn.functional.cross_entropy(logits.float(), torch.tensor(ids[1:]))


@pytest.mark.parametrize("family", ["gpt2", "llama", "canon_llama"])
@pytest.mark.parametrize("bits", ["nf4", "int8"])
@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*")
@pytest.mark.filterwarnings("ignore:.*inputs will be cast")
def test_an_adapter_on_a_quantised_backbone_learns(tiny_folder, family, bits):
    whole = load_model(tiny_folder(family), ModelConfig(**BASE), "policy")
    lm = load_model(tiny_folder(family), ModelConfig(**BASE, quantisation=bits), "policy")
    kinds = {type(module).__name__ for module in lm.core.modules()}
    assert ("Linear4bit" if bits == "nf4" else "Linear8bitLt") in kinds
    with torch.no_grad():
        first = nll(lm)
        assert first == pytest.approx(float(nll(whole)), rel=0.2)
    frozen = [p.clone() for p in lm.model.parameters() if not p.requires_grad]
    (optimizer,) = make_optimizers(lm, SFTConfig(optimizer="paged_adamw", lr=0.01))
    for _ in range(5):
        nll(lm).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert nll(lm) < first
    assert all(map(torch.equal, frozen, [p for p in lm.model.parameters() if not p.requires_grad]))


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*")
def test_an_adapter_that_was_trained_on_a_quantised_backbone_is_loaded_again(tiny_folder, tmp_path):
    settings = ModelConfig(**BASE, quantisation="nf4")
    lm = load_model(tiny_folder("llama"), settings, "policy")
    with torch.no_grad():
        for weight in lm.parameters():
            weight.normal_(std=0.1)
    lm.save(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(nll(load_model(tmp_path, settings, "policy")), nll(lm))


def test_without_the_package_one_line_says_which_is_missing(tiny_folder, pair, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)  # as if it were not installed
    with pytest.raises(UserError, match=r"need bitsandbytes; .*\[qlora\]"):
        load_model(tiny_folder("gpt2"), ModelConfig(**BASE, quantisation="nf4"), "policy")
    with pytest.raises(UserError, match=r"need bitsandbytes; .*\[qlora\]"):
        make_optimizers(pair("gpt2", True)[0], SFTConfig(optimizer="paged_adamw"))


def test_quantisation_without_lora_is_refused():
    with pytest.raises(UserError, match="'quantisation' nf4 freezes the backbone; set 'lora_rank'"):
        from_dict(ModelConfig, {"quantisation": "nf4"}, "recipe")
