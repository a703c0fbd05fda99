"""Check every family of causal language models in the library: which engine runs it, and do the numbers match?

    python -m benchmarks.families                 # all families, in a minute or two
    python -m benchmarks.families llama gemma2    # some

The models are tiny. Their random weights are large enough to make each family's peculiarities visible in the numbers.
"engine" means that all its options are on, "engine, layers of the library" that the library computes the blocks, and
"own forward pass" that the model runs step by step. The difference is the largest one between the model's own results
and ours, over choices and packed gradients.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import tyro
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from reflectrl.core.types import UserError
from reflectrl.models.canon import CanonLlamaConfig
from reflectrl.models.lm import LanguageModel
from reflectrl.models.sharing import pack
from reflectrl.models.verification import find_exact_options

from .measure import report

Options = dict[str, Any]

VOCAB, POSITIONS = 60, 96
SHAPE: Options = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 48, "head_dim": 16, "max_position_embeddings": POSITIONS, "bos_token_id": 0, "eos_token_id": 1,
    "pad_token_id": 1, "moe_intermediate_size": 16, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "shared_expert_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 16, "first_k_dense_replace": 1, "n_shared_experts": 1,
}  # fmt: skip
LATENT: Options = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
    "qk_head_dim": 16, "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip
INDEXED: Options = {**LATENT, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 64}
STATES: Options = {
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_chunk_size": 8,
    "mamba_expand": 2, "mamba_d_ssm": 64, "state_size": 8, "n_groups": 1, "chunk_size": 8, "expand": 2,
    "mamba_head_dim": 8, "mamba_num_heads": 8, "shared_intermediate_size": 16,
}  # fmt: skip
LINEAR: Options = {
    "num_hidden_layers": 4, "linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}  # fmt: skip
DECODER: Options = {
    "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 48, "encoder_layers": 1,
    "encoder_attention_heads": 2, "encoder_ffn_dim": 48,
}  # fmt: skip
MASKED: Options = {"is_decoder": True, "max_position_embeddings": POSITIONS + 8}

# fmt: off
OPTIONS: dict[str, Options] = {
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu", "minicpm3", "axk1", "axk2"), LATENT),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), INDEXED),
    **dict.fromkeys(("falcon_h1", "nemotron_h"), STATES),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid"), LINEAR),
    **dict.fromkeys(
        ("bart", "mbart", "marian", "pegasus", "mvp", "plbart", "bigbird_pegasus", "blenderbot", "blenderbot-small"),
        DECODER,
    ),
    **dict.fromkeys(
        (
            "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "ernie", "megatron-bert", "rembert",
            "roberta", "roberta-prelayernorm", "roformer", "xlm-roberta", "xlm-roberta-xl",
        ),
        MASKED,
    ),
    "electra": {**MASKED, "embedding_size": 16},
    "codegen": {"rotary_dim": 8, "num_attention_heads": 4, "head_dim": None},
    "diffllama": {"num_key_value_heads": 2},
    "falcon": {"head_dim": None},
    "gemma3n_text": {
        "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB, "laurel_rank": 4, "num_hidden_layers": 4,
        "num_kv_shared_layers": 1, "layer_types": ["sliding_attention", "full_attention"] * 2,
        "activation_sparsity_pattern": [0.0] * 4, "intermediate_size": [48] * 4, "final_logit_softcapping": 5.0,
    },
    "gemma4_text": {
        "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": VOCAB, "num_kv_shared_layers": 0,
        "global_head_dim": 16, "final_logit_softcapping": 5.0,
    },
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 8, "head_dim": None},
    "gptj": {"rotary_dim": 8, "head_dim": None},
    "jamba": {
        "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4, "mamba_dt_rank": 4,
    },
    "xlm": {"causal": True},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "longcat_flash": {
        **LATENT, "num_layers": 2, "ffn_hidden_size": 48, "expert_ffn_hidden_size": 16, "zero_expert_num": 1,
        "moe_topk": 2,
    },
    "modernbert-decoder": {"cls_token_id": 0, "sep_token_id": 1, "num_key_value_heads": 2},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 16},
}
# fmt: on

UNFIT = {
    "bailing_hybrid", "bamba", "blt", "cohere_compass_text", "cpmant", "dbrx", "dots3_note", "dots3_note_text",
    "emu3", "gemma3", "gemma3n", "gemma4", "gemma4_assistant", "gemma4_unified", "gemma4_unified_assistant", "git",
    "got_ocr2", "granitemoehybrid", "hy_v4", "kimi_linear", "lfm3", "llama4", "mamba2", "mllama", "moshi",
    "moss_transcribe_diarize", "musicgen", "musicgen_melody", "phi4_multimodal", "prophetnet", "qwen3_5",
    "qwen3_5_moe", "qwen4_exp", "qwen4_exp_text", "reformer", "roc_bert", "whisper", "xlnet", "xlstm", "xmod",
    "zamba", "zamba2", "zaya",
}  # fmt: skip
"""Families that also read images or sound, or from which these options make no small text model."""

VARIANTS: dict[str, tuple[str, Options]] = {
    "canon_llama-rotary": ("canon_llama", {"rotary_share": 0.5, "canon_taps": 3}),
    "cohere-scaled": ("cohere", {"logit_scale": 0.5}),
    "falcon-alibi": ("falcon", {"alibi": True}),
    "falcon-new": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 1}),
    "falcon_h1-multipliers": ("falcon_h1", {"lm_head_multiplier": 3.0, "embedding_multiplier": 2.0}),
    "gemma-no-window": ("gemma", {"num_key_value_heads": 2}),
    "gemma2-windowed": ("gemma2", {"sliding_window": 8, "final_logit_softcapping": 3.0}),
    "gemma3_text-capped": ("gemma3_text", {"final_logit_softcapping": 5.0}),
    "gpt2-by-layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    "gpt2-unscaled": ("gpt2", {"scale_attn_weights": False}),
    "gpt_neox-sequential": ("gpt_neox", {"use_parallel_residual": False}),
    "granite-multipliers": (
        "granite", {"attention_multiplier": 0.5, "logits_scaling": 3.0, "residual_multiplier": 0.4},
    ),
    "hyperclovax-multipliers": ("hyperclovax", {"logits_scaling": 0.5, "attention_multiplier": 0.5}),
    "llama-biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-gelu": ("llama", {"hidden_act": "gelu"}),
    **{
        f"llama-{kind}": ("llama", {"rope_parameters": {"rope_theta": 10000.0, "rope_type": kind, **more}})
        for kind, more in {
            "linear": {"factor": 2.0},
            "yarn": {"factor": 2.0, "original_max_position_embeddings": 32},
            "llama3": {
                "factor": 2.0, "original_max_position_embeddings": 32, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            },
        }.items()
    },
    "llama-dynamic": (
        "llama", {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 2.0}},
    ),
    "mistral-windowed": ("mistral", {"sliding_window": 8}),
    "gemma3_text-windowed": ("gemma3_text", {"sliding_window": 8}),
    "qwen2-windowed": ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}),
    "mpt-no-alibi": ("mpt", {"attn_config": {"alibi": False}}),
    "nanochat-capped": ("nanochat", {"final_logit_softcapping": 4.0}),
    "olmo-clipped": ("olmo", {"clip_qkv": 0.5}),
    "opt-projected": ("opt", {"word_embed_proj_dim": 16}),
    "phi3-partial": ("phi3", {"partial_rotary_factor": 0.5}),
    "qwen2-grouped": ("qwen2", {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}),
    "stablelm-biased": ("stablelm", {"use_qkv_bias": True, "use_parallel_residual": True}),
}  # fmt: skip
"""Settings that make a family compute differently: name → family and options."""

PLAIN = {
    "bart", "big_bird", "bigbird_pegasus", "blenderbot", "blenderbot-small", "bloom", "camembert", "codegen",
    "data2vec-text", "deepseek_v4", "diffllama", "doge", "falcon", "falcon-alibi", "falcon-new", "falcon_h1",
    "falcon_h1-multipliers", "falcon_mamba", "flint", "gemma2", "gemma2-windowed", "gpt_neo", "gpt_neox_japanese",
    "gpt_oss", "gptj", "granite_swa", "granitemoe_swa", "hrm_text", "inkling2_text", "inkling_text", "jamba", "lfm2",
    "lfm2_moe", "mamba", "marian", "mbart", "megatron-bert", "mimo_v2_flash", "minimax", "mpt", "mpt-no-alibi", "mvp",
    "nemotron_h", "olmo_hybrid", "openai-gpt", "pegasus", "plbart", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
    "recurrent_gemma", "rembert", "roberta", "roberta-prelayernorm", "roformer", "rwkv", "trocr", "vaultgemma",
    "xglm", "xlm", "gemma3_text-windowed", "mistral-windowed", "qwen2-windowed", "xlm-roberta", "xlm-roberta-xl",
}  # fmt: skip
"""Families that run by their own forward pass: their attention or layers do not let prompts share a prefix."""

FAMILIES = [
    *(family for family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if family not in UNFIT),
    CanonLlamaConfig.model_type,
]


def tiny_model(name: str, large: bool = True, **options: Any) -> Any:
    """Make a model of a family or variant, in evaluation mode. `large` makes the initial weights larger."""
    family, variant = VARIANTS.get(name, (name, {}))
    shape = {**SHAPE, **OPTIONS.get(family, {}), **variant, **options}
    config = AutoConfig.for_model(family, **{key: value for key, value in shape.items() if value is not None})
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(4)
        model = AutoModelForCausalLM.from_config(config)
        for weight in model.parameters() if large else ():
            weight.normal_(std=0.15) if weight.ndim >= 2 else weight.add_(0.1 * torch.randn_like(weight))
    return model.eval()


class Marks:
    """Minimal tokenizer of a model that gets token ids only."""

    bos_token_id = None
    eos_token_id = 1
    all_special_ids = (0, 1)

    def __len__(self) -> int:
        return VOCAB


# ---- the sweep -------------------------------------------------------------------------------------------------------

HISTORY = tuple(range(2, 44))
PROMPTS = [(*HISTORY, 50, 51, 52), (*HISTORY, 50, 9, 9, 51), (7, 8, 9)]


@dataclass(frozen=True)
class Settings:
    """Settings of the sweep."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Families and variants; all if none is given."""
    json: bool = False
    """Print JSON instead of a table."""


def way_of(lm: LanguageModel) -> str:
    """Describe in words how a verified model runs."""
    took = lm.engine_options
    if not took.packed:
        return "own forward pass" + ("" if took.cache else ", no cache")
    from reflectrl.models.forward import walk_of

    walked = took.blocks and walk_of(lm.core) is not None
    return ("engine" if walked else "engine, layers of the library") + ("" if took.rows else ", whole head")


def difference(lm: LanguageModel) -> float:
    """Return the largest difference in logits and gradients between the model's own forward pass and the way chosen."""
    core: Any = lm.core
    found_PV = lm.backend.logits(lm.backend.read(pack(PROMPTS)))
    own_PV = torch.stack([core(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1] for ids in PROMPTS])
    gradients = []
    for logits_PV in (found_PV, own_PV):
        core.zero_grad()
        logits_PV.log_softmax(-1)[:, 7].sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in core.parameters() if p.grad is not None]))
    gradient_gap = float((gradients[0] - gradients[1]).norm() / gradients[1].norm().clamp(min=1e-9))
    return max(gradient_gap, float(((found_PV - own_PV).abs() / (1 + own_PV.abs())).max().detach()))


def row_of(name: str) -> dict[str, Any]:
    """Return the row of a family or variant."""
    row: dict[str, Any] = {"model": name}
    try:
        model = tiny_model(name)
        model.set_attn_implementation("eager")
        lm = LanguageModel(model, Marks(), context=64)
        lm.engine_options, warnings = find_exact_options(lm, name)
        return {**row, "runs by": way_of(lm), "difference": difference(lm), "why": "; ".join(warnings)[:90]}
    except UserError as error:
        return {**row, "runs by": "refused", "why": str(error)[:90]}
    except Exception as error:  # our options do not fit this family
        return {**row, "runs by": "no tiny text model", "why": f"{type(error).__name__}: {error}"[:90]}


def rows(names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return a row for each family and variant."""
    return [row_of(name) for name in names or (*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *VARIANTS)]


if __name__ == "__main__":
    chosen = tyro.cli(Settings, description=(__doc__ or "").split("\n\n")[0])
    logging.disable(logging.WARNING)
    found = rows(chosen.names)
    print(report(found, chosen.json), end="")
    kinds = [row["runs by"].partition(",")[0] for row in found]
    print(", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)))
