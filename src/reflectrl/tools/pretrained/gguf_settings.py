"""Settings in the header of a GGUF file. Each is honoured, refused, or known to change nothing.

llama.cpp reads a model's whole configuration from the header. `transformers` takes some of its settings, and uses its
own defaults for the rest: without a word, another model would play.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from reflectrl.tools.pretrained.gguf_header import Header

FIELDS: dict[str, tuple[str, ...]] = {
    "context_length": ("max_position_embeddings", "n_positions"),
    "block_count": ("num_hidden_layers",),
    "embedding_length": ("hidden_size",),
    "feed_forward_length": ("intermediate_size", "ffn_hidden_size", "n_inner"),
    "vocab_size": ("vocab_size",),
    "use_parallel_residual": ("use_parallel_residual",),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads", "num_kv_heads"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "layer_norm_epsilon", "norm_eps"),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "logit_scale": ("logit_scale",),
    "expert_count": ("num_experts", "num_local_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_weights_norm": ("norm_topk_prob",),
}
"""Settings of an architecture -> names of the same setting in the configurations of `transformers`."""

DERIVED = {
    *("attention.key_length", "attention.value_length", "attention.scale", "attention.causal"),
    *("attention.sliding_window", "attention.sliding_window_pattern"),
}
"""Settings of an architecture that are honoured or compared by functions of their own, as those that begin "rope."."""

HARMLESS = {"context_length", "vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "pooling_type"}
"""Settings of an architecture that change no number, whether a model's configuration has them or not."""

READ_COMPLETELY = {
    "qwen35": ("ssm.", "rope."),
    "qwen35moe": ("ssm.", "rope."),
    "lfm2": ("shortconv.", "rope.freq_base"),
}
"""Architectures whose configuration `transformers` reads completely -> beginnings of their further settings."""
READ_FROM_ALL = {"full_attention_interval", "nextn_predict_layers", *FIELDS, "attention.key_length"}

TOKENIZER = {
    *("model", "pre", "tokens", "scores", "token_type", "token_type_count", "merges", "precompiled_charsmap"),
    *("remove_extra_whitespaces", "add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix"),
    *("bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "unknown_token_id", "padding_token_id"),
    *("seperator_token_id", "mask_token_id", "cls_token_id", "fim_pre_token_id", "fim_suf_token_id"),
    *("fim_mid_token_id", "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id", "prefix_token_id"),
    *("suffix_token_id", "middle_token_id"),
}
"""Settings "tokenizer.ggml." that are used, or that no model here needs."""
DESCRIPTIVE = ("general.", "split.", "quantize.", "mradermacher.", "tokenizer.chat_template", "tokenizer.huggingface.")
"""Beginnings of the names of settings that describe a file."""

PARTIAL = {"phi3", "stablelm", "nemotron"}
"""Models of `transformers` that can rotate a part of each head only."""
LARGEST = {"gemma2": 46, "gemma3": 62}
"""Layers of the models (27B) that scale attention by the width per head, unlike the smaller ones of their family."""


def completed(header: Header, config: Any, factors: Mapping[str, Sequence[float]]) -> tuple[Any, list[str]]:
    """Return a model's configuration with everything that a header says, and its unknown settings.

    Args:
        config: the configuration that `transformers` has made of the header.
        factors: values of the tensors "rope_freqs", "rope_factors_short" and "rope_factors_long", if the file has them.

    Raises:
        ValueError: a setting changes numbers, and the implementation of `transformers` cannot honour it.
    """
    from transformers import LlamaConfig

    architecture = header.architecture
    own = header.of(architecture)
    if config.model_type == "mistral" and architecture == "llama":  # the library's guess from the model's name
        config = LlamaConfig.from_dict(config.to_dict() | {"model_type": "llama"})
    unknown = [name for name in header.settings if not _is_described(name, architecture)]
    if architecture in READ_COMPLETELY:
        used = (*READ_COMPLETELY[architecture], *READ_FROM_ALL)
        rest = {name: value for name, value in own.items() if not name.startswith(used)}
        return config, unknown + [f"{architecture}.{name}" for name, value in rest.items() if _counts(name, value)]
    changes = dict[str, Any]()
    for name, value in own.items():
        if name.startswith("rope.") or name in DERIVED:
            continue
        if not _taken_by_library(name, architecture, config):
            field = _field(config, FIELDS.get(name, ()))
            if field is not None and (_counts(name, value) or isinstance(value, bool)):
                changes[field] = _one_number(name, value)
            elif field is not None and name.endswith("softcapping"):
                changes[field] = None  # 0 switches it off
            elif name == "attention.head_count_kv" and value == own.get("attention.head_count"):
                continue  # no heads share keys
            elif name not in HARMLESS and _counts(name, value):
                if f"{{arch}}.{name}" not in _settings_of_the_format():
                    unknown.append(f"{architecture}.{name}")
                else:
                    raise ValueError(_cannot(name, value, config))
    config = _changed(config, changes | _head(own, config, changes))
    config = _changed(config, _window(own, config, architecture) | _scale(own, config, architecture))
    return _changed(config, rope(own, config, factors)), unknown


def _cannot(name: str, value: Any, config: Any) -> str:
    return f"its setting {name!r} ({value}) changes the numbers, and {config.model_type} here has nothing like it"


def _changed(config: Any, changes: Mapping[str, Any]) -> Any:
    """Return a configuration with other values, from which everything that follows is derived again."""
    return type(config).from_dict(config.to_dict() | dict(changes)) if changes else config


def _counts(name: str, value: Any) -> bool:
    """Return False if a setting has the value that switches it off."""
    return value not in (0, False, None, "", "none") and not (name.endswith("scale") and value == 1)


def _is_described(name: str, architecture: str) -> bool:
    """Return True if a setting belongs to the architecture, describes the file, or is a known one of a tokenizer."""
    return name.removeprefix("tokenizer.ggml.") in TOKENIZER or name.startswith((f"{architecture}.", *DESCRIPTIVE))


def _settings_of_the_format() -> set[str]:
    """Return all settings that the package gguf knows, with "{arch}" for the architecture."""
    from gguf.constants import Keys

    groups: list[Any] = [group for group in vars(Keys).values() if isinstance(group, type)]
    nested = [group for outer in groups for group in vars(outer).values() if isinstance(group, type)]
    return {value for group in groups + nested for value in vars(group).values() if isinstance(value, str)}


def _taken_by_library(name: str, architecture: str, config: Any) -> bool:
    """Return True if `transformers` puts a setting into a field that the model's configuration really has."""
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    mapping: Any = GGUF_CONFIG_MAPPING
    names = {architecture, config.model_type, architecture.replace("-", "_"), architecture.replace("moe", "_moe")}
    fields = {mapping[key].get(name) for key in names if key in mapping}
    return any(field and _field(config, (field,)) is not None for field in fields)


def _field(config: Any, names: Sequence[str]) -> str | None:
    """Return the first of some names that is a field of a configuration, and no mere attribute."""
    fields = type(config)().to_dict().keys() | (getattr(config, "attribute_map", None) or {}).keys()
    return next((name for name in names if name in fields), None)


def _one_number(name: str, value: Any) -> Any:
    """Return a setting's value. A list has a value for each layer, and all must be equal."""
    if not isinstance(value, list):
        return value
    if len(set(value)) != 1:
        raise ValueError(f"its setting {name!r} differs between layers, which is not supported here")
    return value[0]


def _head(own: Mapping[str, Any], config: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the width of a head. Without a setting, the heads share the model's width."""
    heads = changes.get("num_attention_heads", getattr(config, "num_attention_heads", None))
    if not heads:
        return {}
    shared = config.hidden_size // heads
    width = own.get("attention.key_length", shared)
    if _field(config, ("head_dim",)) is not None:
        if _field(config, ("global_head_dim",)) is not None:
            return {}  # gemma4 has two widths, which the library reads
        values = own.get("attention.value_length", width)
        if values != width:
            raise ValueError(_cannot("attention.value_length", values, config))
        return {"head_dim": width}
    for name in ("attention.key_length", "attention.value_length"):
        if own.get(name, shared) != shared:
            raise ValueError(_cannot(name, own[name], config))
    return {}


def _window(own: Mapping[str, Any], config: Any, architecture: str) -> dict[str, Any]:
    """Return the window of attention. Without a setting, attention sees all of the context."""
    context = own.get("context_length", math.inf)
    window = own.get("attention.sliding_window") or None
    pattern = own.get("attention.sliding_window_pattern")
    changes = dict[str, Any]()
    if _field(config, ("sliding_window",)) is None or _field(config, ("use_sliding_window",)) is not None:
        if window is not None and _one_number("attention.sliding_window", window) < context:
            raise ValueError(_cannot("attention.sliding_window", window, config))
        return changes
    if window is not None:
        changes["sliding_window"] = _one_number("attention.sliding_window", window)
    elif config.sliding_window is not None and architecture != "gemma2":  # of gemma 2, llama.cpp has a default too
        changes["sliding_window"] = int(context) if math.isfinite(context) else None
    if pattern is not None and _field(config, ("layer_types",)) is not None:
        layers = range(config.num_hidden_layers)
        slides = pattern if isinstance(pattern, list) else [(layer + 1) % pattern != 0 for layer in layers]
        changes["layer_types"] = ["sliding_attention" if slides[layer] else "full_attention" for layer in layers]
    return changes


def _scale(own: Mapping[str, Any], config: Any, architecture: str) -> dict[str, Any]:
    """Return the scale of attention, which Gemma alone sets: the number whose root divides the scores."""
    scale = own.get("attention.scale")
    if _field(config, ("query_pre_attn_scalar",)) is not None:
        if scale:
            return {"query_pre_attn_scalar": scale**-2}
        if config.num_hidden_layers == LARGEST.get(architecture):
            return {"query_pre_attn_scalar": config.hidden_size // config.num_attention_heads}
        return {"query_pre_attn_scalar": config.head_dim}
    if scale and not math.isclose(scale, head_width(config) ** -0.5, rel_tol=1e-5):
        raise ValueError(_cannot("attention.scale", scale, config))
    return {}


def head_width(config: Any) -> int:
    """Return the width of a head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


# ---- positions -------------------------------------------------------------------------------------------------------

ROPE = {"dimension_count", "freq_base", "freq_base_swa", "dimension_count_swa", "scale_linear"}
SCALING = {"type", "factor", "original_context_length", "attn_factor", "finetuned", "yarn_beta_fast", "yarn_beta_slow"}


def rope(own: Mapping[str, Any], config: Any, factors: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return the parameters of rotary positions.

    llama.cpp divides each frequency by a number of the tensor "rope_freqs" (Llama 3.1) and by the factor of linear
    scaling. "longrope" can say both exactly, with a number for each frequency; short and long texts share it.

    Args:
        own: the settings of the architecture.
        factors: as for `completed`.

    Raises:
        ValueError: the model cannot place tokens in this way.
    """
    settings = {name.removeprefix("rope."): value for name, value in own.items() if name.startswith("rope.")}
    unknown = settings.keys() - ROPE - {f"scaling.{name}" for name in SCALING}
    if refused := sorted(name for name in unknown if _counts(name, settings[name])):
        raise ValueError(_cannot(f"rope.{refused[0]}", settings[refused[0]], config))
    numbers = [value for value in settings.values() if isinstance(value, float)]
    if not all(0 <= number < math.inf for number in [*numbers, *chain.from_iterable(factors.values())]):
        raise ValueError("its rotary positions are scaled by numbers that are not positive")
    current = getattr(config, "rope_parameters", None)
    scaled = _scaling(settings, config, factors)
    if current is None:
        if scaled:
            raise ValueError(f"it scales rotary positions, which {config.model_type} here does not have")
        return {}
    current = {key: dict(value) if isinstance(value, Mapping) else value for key, value in current.items()}
    full = current.get("full_attention", current)
    if "freq_base" in settings:
        full["rope_theta"] = float(settings["freq_base"])
    if "sliding_attention" in current and "freq_base_swa" in settings:
        current["sliding_attention"]["rope_theta"] = float(settings["freq_base_swa"])
    elif settings.get("freq_base_swa", full["rope_theta"]) != full["rope_theta"]:
        raise ValueError(_cannot("rope.freq_base_swa", settings["freq_base_swa"], config))
    if settings.get("dimension_count_swa", 0) not in (0, settings.get("dimension_count", head_width(config))):
        raise ValueError(_cannot("rope.dimension_count_swa", settings["dimension_count_swa"], config))
    _rotate_part(full, settings.get("dimension_count", head_width(config)), config)
    full.update(scaled)
    return {"rope_parameters": current}


def _rotate_part(full: dict[str, Any], rotated: int, config: Any) -> None:
    """Set how much of each head is rotated."""
    if config.model_type in PARTIAL:
        full["partial_rotary_factor"] = rotated / head_width(config)
    elif rotated != int(head_width(config) * full.get("partial_rotary_factor", 1.0)):
        raise ValueError(_cannot("rope.dimension_count", rotated, config))


def _scaling(settings: Mapping[str, Any], config: Any, factors: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return what scales the positions; empty if nothing does."""
    factor = float(settings.get("scaling.factor") or settings.get("scale_linear") or 1)
    kind = settings.get("scaling.type", "linear")  # llama.cpp's default, if there is a factor
    temperature = float(settings.get("scaling.attn_factor") or 1)
    context = config.max_position_embeddings if _field(config, ("max_position_embeddings",)) else 0
    original = int(settings.get("scaling.original_context_length") or context)
    if kind == "yarn":
        if factors:
            raise ValueError("it scales rotary positions twice, by yarn and by a tensor, which is not supported here")
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
            "attention_factor": temperature * (1 + 0.1 * math.log(factor) if factor > 1 else 1),
            "beta_fast": float(settings.get("scaling.yarn_beta_fast") or 32),
            "beta_slow": float(settings.get("scaling.yarn_beta_slow") or 1),
        }
    if kind not in ("linear", "none", "longrope"):
        raise ValueError(_cannot("rope.scaling.type", kind, config))
    if kind != "linear":
        factor = 1.0
    if "rope_factors_long" in factors:
        short, long = factors["rope_factors_short"], factors["rope_factors_long"]
    elif kind == "longrope":
        raise ValueError("it lacks the tensors of its longrope scaling")
    elif "rope_freqs" in factors:
        short = long = [factor * number for number in factors["rope_freqs"]]
        original = context
    elif temperature != 1:
        raise ValueError(_cannot("rope.scaling.attn_factor", temperature, config))
    else:
        return {"rope_type": "linear", "factor": factor} if factor != 1 else {}
    rotated = settings.get("dimension_count", head_width(config))
    if not len(short) == len(long) == rotated // 2 or min(*short, *long) <= 0:
        raise ValueError(f"its tensors that scale rotary positions do not hold {rotated // 2} positive numbers")
    if temperature == 1 and set(short) == set(long) == {1.0}:
        return {}
    return {
        "rope_type": "longrope",
        "short_factor": list(map(float, short)),
        "long_factor": list(map(float, long)),
        "original_max_position_embeddings": original,
        "attention_factor": temperature,
    }
