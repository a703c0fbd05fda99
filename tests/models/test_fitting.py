"""What a model needs is told from its files, and what cannot fit is refused before it is loaded."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from reflectrl.cli import main
from reflectrl.config import ModelConfig, Recipe, from_dict
from reflectrl.models.fitting import GIB, adapter_bytes, estimate, shapes_of, weight_bytes
from reflectrl.models.load import load_model
from reflectrl.models.memory import available, out_of_memory_told, refuse_unless_fitting, require_memory
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
    about = {"source": str(source), "lora_rank": 0, **model}
    return from_dict(Recipe, {"name": "r", "env": {"name": "corridor"}, "model": about}, "a test")


def test_lora_and_bfloat16_need_less_than_full_training(tiny_folder: Callable[[str], Path]) -> None:
    source = tiny_folder("llama")
    full, lora = estimate(recipe(source)), estimate(recipe(source, lora_rank=2))
    half = estimate(recipe(source, lora_rank=2, dtype="bfloat16"))
    assert full is not None and lora is not None and half is not None
    assert full.weights == (lora.weights[0],) * 2 and lora.weights[1] == 0
    assert half.weights[0] * 2 == lora.weights[0] and half.caches * 2 == lora.caches
    assert full.trained == full.weights[0] and lora.trained == lora.adapter < full.trained
    assert lora.least.sft < full.least.sft < full.least.rl


def test_what_is_set_for_learning_changes_what_it_needs(tiny_folder: Callable[[str], Path]) -> None:
    made = recipe(tiny_folder("llama"))
    fewer = estimate(replace(made, rl=replace(made.rl, minibatch=made.rl.minibatch // 2)))
    unbound = estimate(replace(made, rl=replace(made.rl, kl_coef=0.0)))
    usual, thrifty = estimate(made), estimate(recipe(tiny_folder("llama"), gradient_checkpointing=True))
    assert usual is not None and thrifty is not None and fewer is not None and unbound is not None
    assert thrifty.rows[1] < usual.rows[1] and thrifty.least == usual.least
    assert fewer.rows[1] < usual.rows[1] and fewer.rows[0] == usual.rows[0]
    assert unbound.rl == usual.rl - usual.trained


def test_two_models_need_room_for_both(tiny_folder: Callable[[str], Path]) -> None:
    both = estimate(recipe(tiny_folder("llama"), lora_rank=2, reflector=str(tiny_folder("gpt2"))))
    assert both is not None and all(both.weights) and both.weights[0] != both.weights[1]


def test_what_cannot_fit_is_refused_with_what_each_setting_would_need(tiny_folder: Callable[[str], Path]) -> None:
    made = recipe(tiny_folder("llama"))
    need = estimate(made)
    assert need is not None
    require_memory(made, need.least.peak)
    with pytest.raises(
        UserError, match=r"needs about .* GiB before any text, and .* are free; with model\.lora_rank=16 "
    ):
        require_memory(made, need.least.peak - 1)
    with pytest.raises(UserError, match="take a smaller model"):
        require_memory(made, 1.0)


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


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="the system does not tell the limits")
def test_a_limit_of_the_process_counts_as_memory() -> None:
    code = (
        "import resource; from reflectrl.models.memory import available;"
        "resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34)); assert available() < 2**34, available();"
        "resource.setrlimit(resource.RLIMIT_AS, (2**20, 2**34)); assert available() < 0, available()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_memory_that_runs_out_is_told_in_a_line() -> None:
    for take in (lambda: torch.empty(2**50), lambda: bytearray(2**62)):
        with pytest.raises(UserError, match="memory is used up"), out_of_memory_told():
            take()
    with pytest.raises(RuntimeError, match="inconsistent"), out_of_memory_told():
        torch.ones(2) @ torch.ones(3)


def test_a_damaged_header_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(UserError, match=r"model\.safetensors is no safetensors file"):
        shapes_of(tmp_path)


def test_a_dry_run_shows_the_estimate(
    tiny_folder: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.toml").write_text('[env]\nname = "corridor"\n', encoding="utf-8")
    source = str(tiny_folder("llama"))
    assert main(["run", str(tmp_path / "r.toml"), "--dry-run", "--model.source", source]) == 0
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
