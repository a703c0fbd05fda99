"""A GGUF file's header is honoured: its model gives the numbers of the same weights in `transformers`."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from reflectrl.core.config import ModelConfig
from reflectrl.core.config.folders import data_folder
from reflectrl.core.digests import digest_of
from reflectrl.core.types import UserError
from reflectrl.models.load import load_model
from tests.tools.pretrained.test_gguf import byte_letters

gguf = pytest.importorskip("gguf")

VOCAB, WIDTH, HEADS, LAYERS, HIDDEN, CONTEXT = 266, 32, 4, 2, 64, 512
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "intermediate_size": HIDDEN,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 257,
    "eos_token_id": 258,
    "pad_token_id": 256,
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFLECTRL_DATA", str(tmp_path / "cache"))


def twin(kind: str, **settings: Any) -> Any:
    """Make a model of `transformers` with large weights, so that a setting shows in the numbers."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**{**SIZES, **settings})).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(6) if weight.dim() == 2 else weight.add_(0.3 * torch.rand_like(weight))
    return model


def stored(name: str, array: np.ndarray, architecture: str, model: Any) -> np.ndarray:
    """Return a tensor as llama.cpp's converter stores it."""
    heads = {"attn_q": HEADS, "attn_k": getattr(model.config, "num_key_value_heads", HEADS)}
    if architecture == "llama" and (count := heads.get(name.split(".")[-2])):
        halves = array.reshape(count, 2, array.shape[0] // count // 2, *array.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
    if architecture in ("gemma2", "gemma3", "nemotron") and name.endswith("norm.weight"):
        return array + 1
    transposed = ("attn_qkv.weight", "ffn_down.weight", "ffn_up.weight", "attn_output.weight")
    if architecture == "gpt2" and name.endswith(transposed):
        return np.ascontiguousarray(array.T)
    return array


def unpacked(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a model's weights: a tied head is left out, and experts have the names and matrices of llama.cpp."""
    for name, weight in model.state_dict().items():
        layer = ".".join(name.split(".")[2:3])
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        if name.endswith("experts.gate_up_proj"):
            for half, matrix in zip(("gate", "up"), weight.chunk(2, 1), strict=True):
                yield f"blk.{layer}.ffn_{half}_exps.weight", matrix.contiguous()
        elif name.endswith("experts.down_proj"):
            yield f"blk.{layer}.ffn_down_exps.weight", weight
        else:
            yield name, weight


def write(
    path: Path,
    architecture: str,
    model: Any,
    settings: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray] = MappingProxyType({}),
    pre: str = "default",
    name: str = "tiny",
) -> Path:
    """Write a model as a GGUF file; `settings` of the architecture are added to its sizes, or replace them."""
    writer: Any = gguf.GGUFWriter(path, architecture)
    writer.add_name(name)
    sizes = {
        "context_length": CONTEXT,
        "embedding_length": WIDTH,
        "block_count": LAYERS,
        "feed_forward_length": HIDDEN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": getattr(model.config, "num_key_value_heads", HEADS),
    }
    for key, value in {**sizes, **settings}.items():
        full = (
            key
            if key.startswith(("general.", "split.", "tokenizer.", "odd.", "quantize."))
            else f"{architecture}.{key}"
        )
        if isinstance(value, str):
            writer.add_string(full, value)
        elif isinstance(value, bool):
            writer.add_bool(full, value)
        elif isinstance(value, list):
            writer.add_array(full, value)
        elif isinstance(value, float):
            writer.add_float32(full, value)
        else:
            writer.add_uint32(full, value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    rest = ["ab", "12", "<unk>", "<bos>", "<eos>", "<pad>", "<mask>"]
    writer.add_token_list([*byte_letters(), "<|endoftext|>", "<|begin|>", "<|end|>", *rest])
    writer.add_token_types([1] * 256 + [3] * 3 + [1] * 2 + [3] * 5)
    writer.add_token_merges(["a b", "1 2"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    writer.add_pad_token_id(256)
    writer.add_unk_token_id(256)
    number = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(number, LAYERS)
    for full, weight in unpacked(model):
        stem, ending = full.rsplit(".", 1)
        short = f"{names.get_name(stem) or stem}.{ending}"
        writer.add_tensor(short, stored(short, weight.numpy().astype(np.float32), architecture, model))
    for short, array in tensors.items():
        writer.add_tensor(short, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def log_probability(model: Any) -> float:
    tokens = torch.arange(120).mul(7).remainder(250)[None]
    with torch.no_grad():
        logp = torch.log_softmax(model(tokens.to(model.device)).logits.float(), -1)
    return float(logp[0, :-1].gather(1, tokens[0, 1:, None].to(model.device)).sum())


NOTHING: Mapping[str, Any] = {}
RMS = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e4}
NORM = {"attention.layer_norm_epsilon": 1e-3}
HALF = WIDTH // HEADS // 2
SLOWER = [1.0, 1.5, 4.0, 8.0]
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128}
FREQS = {"rope_freqs.weight": np.array(SLOWER, np.float32)}


def freqs(numbers: list[float], **more: Any) -> dict[str, Any]:
    settings = {"rope_type": "longrope", "short_factor": numbers, "long_factor": numbers, "rope_theta": 1e4}
    return {**settings, "original_max_position_embeddings": CONTEXT, "attention_factor": 1.0, **more}


def yarn(**more: Any) -> dict[str, Any]:
    return {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 1e4, **more}


class Case(NamedTuple):
    """A model of `transformers`, and a file with the same weights.

    Attributes:
        kind: type of the model.
        settings: configuration of the model.
        keys: settings in the file's header.
        tensors: tensors of the file that are no weights.
        architecture: the file's name for `kind`.
    """

    kind: str
    settings: Mapping[str, Any] = NOTHING
    keys: Mapping[str, Any] = RMS
    tensors: Mapping[str, np.ndarray] = NOTHING
    architecture: str = ""


def turned(theta: float = 1e4, **more: Any) -> dict[str, Any]:
    """Return settings of a model with rotary positions."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}}


WIDE_HEADS = {"attention.key_length": 16, "attention.value_length": 16}
HEAD = {"attention.key_length": 8, "attention.value_length": 8}
EXPERTS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 16}
TWICE = [2 * number for number in SLOWER]
LONGROPE = freqs([1.5, 3.0], long_factor=[5.0, 6.0], original_max_position_embeddings=64, partial_rotary_factor=0.5)

HONOURED = {
    "llama": Case("llama"),
    "epsilon": Case("llama", {"rms_norm_eps": 0.1}, {**RMS, "attention.layer_norm_rms_epsilon": 0.1}),
    "no base": Case("llama", keys={"attention.layer_norm_rms_epsilon": 1e-5}),
    "tied": Case("llama", {"tie_word_embeddings": True}),
    "llama 3.1": Case("llama", {"rope_parameters": freqs(SLOWER)}, RMS, FREQS),
    "linear": Case(
        "llama",
        turned(rope_type="linear", factor=4.0),
        {**RMS, "rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "linear, no type": Case("llama", turned(rope_type="linear", factor=4.0), {**RMS, "rope.scaling.factor": 4.0}),
    "linear, old name": Case("llama", turned(rope_type="linear", factor=4.0), {**RMS, "rope.scale_linear": 4.0}),
    "type none": Case("llama", keys={**RMS, "rope.scaling.type": "none", "rope.scaling.factor": 4.0}),
    "llama 3.1 and linear": Case(
        "llama", {"rope_parameters": freqs(TWICE)}, {**RMS, "rope.scaling.factor": 2.0}, FREQS
    ),
    "yarn": Case("llama", {"rope_parameters": yarn()}, {**RMS, **YARN}),
    "yarn, betas": Case(
        "qwen2",
        {"rope_parameters": yarn(beta_fast=8.0, beta_slow=2.0), "num_key_value_heads": 2},
        {**RMS, **YARN, "rope.scaling.yarn_beta_fast": 8.0, "rope.scaling.yarn_beta_slow": 2.0},
    ),
    "yarn, temperature": Case(
        "qwen3",
        {"rope_parameters": yarn(attention_factor=1.5 * (1 + 0.1 * math.log(4))), "head_dim": 8},
        {**RMS, **YARN, "rope.scaling.attn_factor": 1.5},
    ),
    "wide heads": Case("qwen3", {"head_dim": 16, "num_key_value_heads": 2}, {**RMS, **WIDE_HEADS}),
    "no width": Case("qwen3", {"head_dim": 8, "num_key_value_heads": 2}),
    "mistral": Case("mistral", {"sliding_window": None, "num_key_value_heads": 2}, architecture="llama"),
    "experts": Case(
        "qwen3_moe",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "head_dim": 8,
            "norm_topk_prob": True,
        },
        {**RMS, **EXPERTS, **HEAD},
        architecture="qwen3moe",
    ),
    "phi3": Case(
        "phi3",
        {"rope_parameters": {**LONGROPE, "attention_factor": 1.2}},
        {
            **RMS,
            "rope.dimension_count": HALF,
            "rope.scaling.attn_factor": 1.2,
            "rope.scaling.original_context_length": 64,
        },
        {f"rope_factors_{name}.weight": np.array(LONGROPE[f"{name}_factor"], np.float32) for name in ("short", "long")},
    ),
    "window": Case("phi3", {"sliding_window": 9}, {**RMS, "attention.sliding_window": 9}),
    "half of a head": Case(
        "stablelm",
        {**turned(500.0, partial_rotary_factor=0.5), "layer_norm_eps": 1e-3},
        {**NORM, "rope.freq_base": 500.0, "rope.dimension_count": HALF, "use_parallel_residual": False},
    ),
    "base": Case("starcoder2", {**turned(500.0), "norm_epsilon": 1e-3}, {**NORM, "rope.freq_base": 500.0}),
    "all of a head": Case(
        "nemotron",
        {**turned(partial_rotary_factor=1.0), "head_dim": 8, "norm_eps": 1e-3},
        {**NORM, "rope.dimension_count": 2 * HALF},
    ),
    "gemma2": Case(
        "gemma2",
        {
            **{"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8, "tie_word_embeddings": True},
            **{"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0},
        },
        {**RMS, **HEAD, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0, "attention.sliding_window": 8},
    ),
    "gemma3": Case(
        "gemma3_text",
        {
            **{"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8, "tie_word_embeddings": True},
            **{"final_logit_softcapping": 4.0, "layer_types": ["full_attention", "sliding_attention"]},
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 500.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 77.0},
            },
        },
        {
            **{"attention.layer_norm_rms_epsilon": 1e-5, **HEAD, "final_logit_softcapping": 4.0},
            **{"attention.sliding_window": 8, "attention.sliding_window_pattern": [False, True]},
            **{"rope.freq_base": 500.0, "rope.freq_base_swa": 77.0, "rope.scaling.factor": 8.0},
        },
        architecture="gemma3",
    ),
    "falcon": Case(
        "falcon",
        {
            **{"layer_norm_epsilon": 1e-3, "multi_query": True, "num_kv_heads": 1, "ffn_hidden_size": HIDDEN},
            **{"new_decoder_architecture": False, "parallel_attn": True, "bias": False, "tie_word_embeddings": True},
        },
        {**NORM, "tensor_data_layout": "jploski", "attention.head_count_kv": 1},
    ),
    "gpt2": Case(
        "gpt2",
        {"n_positions": CONTEXT, "layer_norm_epsilon": 1e-3, "n_inner": HIDDEN, "tie_word_embeddings": True},
        NORM,
    ),
}


@pytest.mark.parametrize("name", HONOURED)
def test_a_file_gives_the_numbers_of_its_own_model(tmp_path: Path, name: str) -> None:
    kind, settings, keys, tensors, architecture = HONOURED[name]
    model = twin(kind, **settings)
    file = write(tmp_path / "tiny.gguf", architecture or kind, model, keys, tensors, name=kind)
    lm = load_model(file, ModelConfig(context=256))
    assert log_probability(lm.model) == pytest.approx(log_probability(model), abs=2e-3)


def ones(*sizes: int) -> np.ndarray:
    return np.ones(sizes, np.float32)


@pytest.mark.parametrize(
    ("architecture", "keys", "tensors", "about"),
    [
        ("llama", {"attn_logit_softcapping": 30.0}, {}, "'attn_logit_softcapping' .30.0. changes the numbers"),
        ("llama", {"attention.scale": 0.1}, {}, "'attention.scale'"),
        ("llama", {"logit_scale": 0.1}, {}, "'logit_scale'"),
        ("llama", {"attention.clamp_kqv": 8.0}, {}, "'attention.clamp_kqv'"),
        ("llama", {"attention.sliding_window": 64}, {}, "'attention.sliding_window'"),
        ("qwen2", {"attention.sliding_window": 64}, {}, "'attention.sliding_window'"),
        ("llama", {"attention.value_length": 16}, {}, "'attention.value_length'"),
        ("qwen2", {"attention.key_length": 16}, {}, "'attention.key_length'"),
        ("llama", {"attention.causal": False}, {}, "not causal"),
        ("llama", {"expert_count": 4}, {}, "'expert_count'"),
        ("llama", {"rope.dimension_count": 4}, {}, "'rope.dimension_count'"),
        ("qwen2", {"rope.dimension_count": 4}, {}, "'rope.dimension_count'"),
        ("llama", {"rope.scaling.type": "cubic", "rope.scaling.factor": 2.0}, {}, "'rope.scaling.type' .cubic."),
        ("llama", {"rope.scaling.type": "longrope"}, {}, "lacks the tensors"),
        ("llama", {"rope.scaling.attn_factor": 1.5}, {}, "'rope.scaling.attn_factor'"),
        ("llama", {**YARN, "rope.scaling.yarn_log_multiplier": 0.1}, {}, "'rope.scaling.yarn_log_multiplier'"),
        ("llama", YARN, FREQS, "twice"),
        ("llama", {"rope.freq_base_swa": 7.0}, {}, "'rope.freq_base_swa'"),
        ("llama", {}, {"blk.0.attn_q.bias": ones(WIDTH)}, r"no place for its tensor blk\.0\.attn_q\.bias"),
        ("qwen2", {}, {"blk.1.attn_q_norm.weight": ones(8)}, r"no place for its tensor blk\.1\.attn_q_norm"),
        (
            "llama",
            {},
            {"output_norm.bias": ones(WIDTH), "odd.weight": ones(3)},
            r"tensors odd\.weight, output_norm\.bias",
        ),
        ("llama", {}, {"rope_freqs.weight": ones(3)}, "do not hold 4 positive numbers"),
        ("llama", {}, {"rope_freqs.weight": -ones(4)}, "are not positive"),
        ("llama", {"rope.scaling.factor": math.nan}, {}, "are not positive"),
        ("gpt2", {"rope.scaling.factor": 4.0}, {}, "gpt2 here does not have"),
        ("llama", {"feed_forward_length": [64, 48]}, {}, "cannot be read"),
        ("llama", {"feed_forward_length": 48}, {}, "other sizes than its tensors"),
        ("llama", {"general.type": "adapter"}, {}, "it holds no model, but 'adapter'"),
        ("llama", {"split.count": 3}, {}, "one of 3 files"),
    ],
)
def test_a_file_is_refused_if_the_model_cannot_do_what_it_says(
    tmp_path: Path, architecture: str, keys: dict[str, Any], tensors: dict[str, np.ndarray], about: str
) -> None:
    write(tmp_path / "tiny.gguf", architecture, twin(architecture), {**RMS, **keys}, tensors)
    with pytest.raises(UserError, match=about) as error:
        load_model(tmp_path / "tiny.gguf", ModelConfig(context=256))
    assert "\n" not in str(error.value) and not list(data_folder("models").glob("*"))


def test_settings_that_nobody_knows_are_named_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = {**RMS, "odd_thing": 3, "odd.more": "x", "tokenizer.ggml.odd": True, "quantize.imatrix.file": "y"}
    load_model(write(tmp_path / "tiny.gguf", "llama", twin("llama"), keys), ModelConfig(context=256))
    [line] = [record.getMessage() for record in caplog.records]
    assert line.endswith("nothing here knows its settings odd.more, tokenizer.ggml.odd, llama.odd_thing")


def test_settings_that_change_nothing_pass_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = twin("llama")
    neutral = {
        **{"attention.scale": HEADS / 8 * 0.7071068, "attention.clamp_kqv": 0.0, "expert_count": 0, "logit_scale": 1.0},
        **{"attention.sliding_window": CONTEXT, "rope.scaling.finetuned": True, "tensor_data_layout": "Meta AI"},
        **{"rope.dimension_count": 8, "rope.freq_base_swa": 1e4, "general.type": "model", "split.count": 0},
        **{"attention.key_length": 8, "attention.value_length": 8, "attention.causal": True, "vocab_size": VOCAB},
    }
    frequencies = {"rope_freqs.weight": ones(HALF), "blk.0.attn_rot_embd": ones(HALF)}
    lm = load_model(
        write(tmp_path / "x.gguf", "llama", model, {**RMS, **neutral}, frequencies), ModelConfig(context=256)
    )
    assert log_probability(lm.model) == pytest.approx(log_probability(model), abs=2e-3) and not caplog.records


def test_a_folder_that_an_earlier_version_made_of_the_file_is_not_used(tmp_path: Path) -> None:
    file = write(tmp_path / "x.gguf", "llama", twin("llama"), RMS, FREQS)
    old = data_folder("models") / f"gguf-{digest_of(file)[:16]}"
    old.mkdir(parents=True)
    (old / "config.json").write_text("{}")
    assert load_model(file, ModelConfig(context=256)).model.config.rope_parameters["short_factor"] == SLOWER


@pytest.mark.parametrize(
    ("pre", "keys", "tokens"),
    [
        ("default", {}, ["12", "ab"]),
        ("smollm", {}, ["1", "2", "ab"]),
        ("llama-bpe", {}, ["<|begin|>", "12", "ab"]),
        ("llama-bpe", {"tokenizer.ggml.add_bos_token": False}, ["12", "ab"]),
        ("tekken", {}, ["<|begin|>", "1", "2", "ab"]),
    ],
)
def test_a_text_is_split_as_the_file_says(tmp_path: Path, pre: str, keys: dict[str, Any], tokens: list[str]) -> None:
    lm = load_model(
        write(tmp_path / "x.gguf", "llama", twin("llama"), {**RMS, **keys}, pre=pre), ModelConfig(context=256)
    )
    assert lm.tokenizer.convert_ids_to_tokens(lm.tokenizer("12ab")["input_ids"]) == tokens


def test_an_unknown_way_of_splitting_a_text_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "x.gguf", "llama", twin("llama"), RMS, pre="chinese-poems")
    with pytest.raises(UserError, match="splits a text as 'chinese-poems' does"):
        load_model(tmp_path / "x.gguf", ModelConfig())
