"""What a model needs is told from its files, and what cannot fit is refused before it is loaded."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from reflectrl.cli import main
from reflectrl.config import ModelConfig, Recipe, from_dict
from reflectrl.models.fitting import (
    GIB,
    adapter_bytes,
    available,
    estimate,
    refuse_unless_fitting,
    shapes_of,
    weight_bytes,
)
from reflectrl.models.load import load_model
from reflectrl.types import UserError


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_and_adapters_are_counted_as_they_are_loaded(
    tiny_folder: Callable[[str], Path], family: str, dtype: str
) -> None:
    config = ModelConfig(context=64, dtype=dtype, lora_rank=4, device="cpu")
    lm = load_model(tiny_folder(family), config, "policy")
    shapes = shapes_of(tiny_folder(family))
    own = {id(p) for p in lm.parameters()}
    assert weight_bytes(shapes, config) == sum(p.nbytes for p in lm.model.parameters() if id(p) not in own)
    assert adapter_bytes(shapes, config) == 4 * sum(p.numel() for p in lm.parameters())


def recipe(source: Path, **model: object) -> Recipe:
    return from_dict(
        Recipe, {"name": "r", "env": {"name": "taxi"}, "model": {"source": str(source), **model}}, "a test"
    )


def test_lora_and_bfloat16_need_less_than_full_training(tiny_folder: Callable[[str], Path]) -> None:
    source = tiny_folder("llama")
    full, lora = estimate(recipe(source)), estimate(recipe(source, lora_rank=2))
    half = estimate(recipe(source, lora_rank=2, dtype="bfloat16"))
    assert full is not None and lora is not None and half is not None
    assert full.weights == 2 * lora.weights == 4 * half.weights
    assert full.learner == 1.5 * full.weights and lora.learner < full.learner
    assert half.caches * 2 == lora.caches


def test_nothing_is_said_of_models_made_from_scratch_or_not_at_hand(tmp_path: Path) -> None:
    assert estimate(recipe(Path("scratch"))) is None
    assert estimate(recipe(tmp_path / "nowhere")) is None


def test_a_model_that_cannot_fit_is_refused_with_settings_that_help(tiny_folder: Callable[[str], Path]) -> None:
    source = str(tiny_folder("llama"))
    needed = weight_bytes(shapes_of(Path(source)), ModelConfig())
    refuse_unless_fitting(source, ModelConfig(), needed)
    with pytest.raises(UserError, match=r"does not fit: .*bfloat16.*nf4.*a smaller model"):
        refuse_unless_fitting(source, ModelConfig(), needed - 1)
    refuse_unless_fitting(source, ModelConfig(dtype="bfloat16"), needed / 2)
    refuse_unless_fitting(source, ModelConfig(quantisation="nf4", lora_rank=2), needed - 1)
    assert 0 < available() < 2**20 * GIB


def test_a_damaged_header_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(UserError, match=r"model\.safetensors is no safetensors file"):
        shapes_of(tmp_path)


def test_a_dry_run_shows_the_estimate(tiny_folder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "taxi", "--dry-run", "--model.source", str(tiny_folder("llama"))]) == 0
    assert "# Memory: needs about " in capsys.readouterr().out


def test_a_saved_adapter_gives_the_same_logits_in_plain_peft(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    from peft import PeftModel

    lm = load_model(tiny_folder("llama"), ModelConfig(context=64, lora_rank=4, device="cpu"), "policy")
    with torch.no_grad():
        for weight in lm.parameters():
            weight.normal_(std=0.2)
    lm.save(tmp_path)
    plain = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(tiny_folder("llama")), str(tmp_path)).eval()
    ids = (5, 9, 33, 7, 4)
    with torch.inference_mode():
        found = lm.backend.logits(lm.backend.read([ids], "all"))
        wanted = plain(input_ids=torch.tensor([ids])).logits[0]
        with plain.disable_adapter():
            unadapted = plain(input_ids=torch.tensor([ids])).logits[0]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    assert float((unadapted - wanted).abs().max()) > 1e-3  # the adapter counts


def test_the_shape_of_smollm2_135m_is_counted_exactly(tmp_path: Path) -> None:
    """134,515,008 weights, by a file that holds its header alone."""
    shape = LlamaConfig(
        hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, intermediate_size=1536,
        vocab_size=49152, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(shape)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert weight_bytes(shapes, ModelConfig()) == 4 * 134_515_008
