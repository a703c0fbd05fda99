"""What a model's weights need is told from its files, and what cannot fit is refused before it is loaded."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from reflectrl.core.config import ModelConfig
from reflectrl.core.types import UserError
from reflectrl.models.load import load_model
from reflectrl.models.memory import available, out_of_memory_told, refuse_unless_fitting
from reflectrl.models.weights import GIB, shapes_of, weight_bytes


@pytest.mark.parametrize("family", ["gpt2", "llama", "canon_llama"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_counted_as_they_are_loaded(tiny_folder: Callable[[str], Path], family: str, dtype: str) -> None:
    config = ModelConfig(context=64, dtype=dtype, device="cpu")  # type: ignore[arg-type]
    lm = load_model(tiny_folder(family), config, "policy")
    assert weight_bytes(shapes_of(tiny_folder(family)), config) == sum(p.nbytes for p in lm.model.parameters())


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
        with pytest.raises(UserError, match="out of memory; stop other programs"), out_of_memory_told():
            take()
    with pytest.raises(RuntimeError, match="inconsistent"), out_of_memory_told():
        torch.ones(2) @ torch.ones(3)


def test_a_damaged_header_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(UserError, match=r"model\.safetensors is not a safetensors file"):
        shapes_of(tmp_path)


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
