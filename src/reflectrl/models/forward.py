"""Forward passes over concatenated tokens (N,), with our own attention.

There are two implementations with the same results. For the families that the engine knows, it loops over the blocks
itself and calls the model's own layers. That saves a third of the time of a decoding step, because it skips the
library's work between the layers. All other families, and training with dropout or gradient checkpointing, use Hugging
Face's forward pass (`hf_forward.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from reflectrl.models.attention import Attend
from reflectrl.models.lookback import Lookback
from reflectrl.models.processor import processor
from reflectrl.models.rounding import compiles_by_shape, rounded

LARGE = 2**20
"""Smallest matrix, in entries (4 MiB), whose product with a few rows may be transposed (`linear`)."""

VARIANTS = 64
"""Largest number of times that a part of a layer may be compiled (`compile_once`)."""

Walk = Callable[..., Tensor]
"""(base model, ids (N,), positions (N,), attention, wanted (W,) or None) -> hidden states (W, D) or (N, D)."""


def hidden_states(
    core: Any,
    ids_N: Tensor,
    positions_N: Tensor,
    attend: Attend,
    wanted: Tensor | None = None,
    walk: Walk | None = None,
    lookback: Lookback | None = None,
) -> Tensor:
    """Return hidden states (N, D) of the last layer, after the final norm.

    Under autocast, rotary positions turn queries and keys into float32, so all inputs of attention are cast to a single
    precision. It is bfloat16, except when learning on CPUs: there it is float32, because the backward pass of torch's
    fused attention is slower in bfloat16.

    Args:
        core: a Hugging Face causal language model. Its linear layers may be wrapped by adapters.
        attend: attention, which knows which tokens belong together.
        wanted: indices (W,), ascending, of the tokens whose hidden states (W, D) are returned. In the last layer, the
            other tokens give keys and values only.
        walk: loop over the blocks of this family from `walk_of`. With None, the library's forward pass is used.
        lookback: short convolutions over the tokens before each token, for families that have them.
    """
    attention, device = attend, ids_N.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        learning_on_cpu = device == "cpu" and torch.is_grad_enabled()
        dtype = torch.float32 if learning_on_cpu else torch.get_autocast_dtype(device)

        def in_one_precision(layer: int, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
            with torch.autocast(device, enabled=False):
                return attend(layer, query.to(dtype), key.to(dtype), value.to(dtype), *rest)

        attention = in_one_precision

    # The engine's own loop knows neither dropout nor the recomputation of gradient checkpointing.
    by_library = (core.training and drops(core)) or (torch.is_grad_enabled() and getattr(core, "recomputes", False))
    if walk is not None and not by_library:
        given = (core.base_model, ids_N, positions_N, attention, wanted)
        return walk(*given) if lookback is None else walk(*given, lookback)
    from reflectrl.models.hf_forward import hf_forward  # the library is slow to import

    hidden_ND = hf_forward(core, ids_N, positions_N, attention, lookback)
    if wanted is None:
        return hidden_ND
    return hidden_ND[wanted]


def walk_of(core: Any, compiled: bool = False) -> Walk | None:
    """Return the engine's own loop over the blocks of a model's family; None if the engine does not know the family.

    Args:
        compiled: compile the parts of a layer before and after attention, each at its first call.
    """
    config = core.config
    walk: Callable[..., Tensor]
    enter: Callable[..., Any]
    leave: Callable[..., Any]
    if config.model_type == "gpt2":
        usual = config.scale_attn_weights and not config.scale_attn_by_inverse_layer_idx
        if not usual or config.add_cross_attention:
            return None
        walk, enter, leave = _walk_gpt2, _enter_gpt2, _leave_gpt2
    elif config.model_type in ("llama", "mistral", "qwen2", "qwen3"):
        walk, enter, leave = _walk_llama, _enter_llama, _leave_llama
    elif config.model_type == "canon_llama":
        walk, enter, leave = _walk_canon, _enter_canon, _leave_llama
    else:
        return None
    if compiled:
        enter, leave = compile_once(enter), compile_once(leave)
    return partial(walk, enter, leave)


@lru_cache
def compile_once(part: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a part of a layer for any number of tokens. All layers of a model share the compiled code.

    Torch recompiles it for each way in which it is called: in play and in learning, for one token and for many, in each
    precision, and for each player's layers. By default, torch gives up after eight variants.
    """
    import torch._dynamo.config as dynamo  # slow to import, and needed only here

    dynamo.recompile_limit = max(dynamo.recompile_limit, VARIANTS)
    return torch.compile(part, dynamic=True)


def drops(core: Any) -> bool:
    """Return whether the model's own layers use dropout.

    Dropout of adapters does not count: their layers are called as they are, so it works in any case.
    """
    names = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout")
    return any(getattr(core.config, name, 0.0) for name in names)


def _walk_gpt2(
    enter: Callable[..., Any],
    leave: Callable[..., Tensor],
    base: Any,
    ids_N: Tensor,
    positions_N: Tensor,
    attend: Attend,
    wanted: Tensor | None = None,
) -> Tensor:
    """Run GPT-2's blocks (Radford et al. 2019): learned positions, norm before each half, fused projections."""
    x_ND = base.wte(ids_N) + base.wpe(positions_N)
    for i, block in enumerate(base.h):
        query, key, value = enter(block, x_ND)
        # After the last block only the wanted tokens matter. The others still give keys and values to them.
        layer_wanted = wanted if i == len(base.h) - 1 else None
        if layer_wanted is not None:
            query, x_ND = query[layer_wanted], x_ND[layer_wanted]
        x_ND = leave(block, x_ND, attend(i, query, key, value, 0.0, layer_wanted))
    return base.ln_f(x_ND)


def _enter_gpt2(block: Any, x_ND: Tensor) -> tuple[Tensor, ...]:
    """Compute queries, keys and values of a block, (N, H, D / H) each."""
    heads = (-1, block.attn.num_heads, block.attn.head_dim)
    parts = linear(block.attn.c_attn, block.ln_1(x_ND)).split(x_ND.shape[1], dim=-1)
    return tuple(part.view(heads) for part in parts)


def _leave_gpt2(block: Any, x_ND: Tensor, mixed_ND: Tensor) -> Tensor:
    """Compute a block's output from its input and the output of attention."""
    mlp = block.mlp
    x_ND = x_ND + linear(block.attn.c_proj, mixed_ND)
    return x_ND + linear(mlp.c_proj, mlp.act(linear(mlp.c_fc, block.ln_2(x_ND))))


def _walk_llama(
    enter: Callable[..., Any],
    leave: Callable[..., Tensor],
    base: Any,
    ids_N: Tensor,
    positions_N: Tensor,
    attend: Attend,
    wanted: Tensor | None = None,
) -> Tensor:
    """Run the blocks of Llama (Touvron et al. 2023) and relatives: rotary positions, RMS norm, gated MLP.

    Qwen 3 also normalises queries and keys.
    """
    x_ND = base.embed_tokens(ids_N)
    cos_1ND, sin_1ND = base.rotary_emb(x_ND[None], positions_N[None])
    cos_N1D, sin_N1D = cos_1ND[0][:, None], sin_1ND[0][:, None]
    for i, layer in enumerate(base.layers):
        query, key, value = enter(layer, x_ND, cos_N1D, sin_N1D)
        layer_wanted = wanted if i == len(base.layers) - 1 else None
        if layer_wanted is not None:
            query, x_ND = query[layer_wanted], x_ND[layer_wanted]
        x_ND = leave(layer, x_ND, attend(i, query, key, value, 0.0, layer_wanted))
    return _rms_norm(base.norm, x_ND)


def _enter_llama(layer: Any, x_ND: Tensor, cos_N1D: Tensor, sin_N1D: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute queries, keys and values of a layer, (N, H or G, D / H), with rotary positions applied."""
    own = layer.self_attn
    h_ND = _rms_norm(layer.input_layernorm, x_ND)
    query, key, value = _projected(own, h_ND)
    if hasattr(own, "q_norm"):
        query, key = _rms_norm(own.q_norm, query), _rms_norm(own.k_norm, key)
    query, key = (part * cos_N1D + _half_turned(part) * sin_N1D for part in (query, key))
    return query, key, value


def _projected(own: Any, h_ND: Tensor) -> list[Tensor]:
    """Compute queries, keys and values of an attention module, (N, H or G, D / H) each, before positions."""
    projections = (own.q_proj, own.k_proj, own.v_proj)
    return [linear(project, h_ND).view(h_ND.shape[0], -1, own.head_dim) for project in projections]


def _walk_canon(
    enter: Callable[..., Any],
    leave: Callable[..., Tensor],
    base: Any,
    ids_N: Tensor,
    positions_N: Tensor,
    attend: Attend,
    wanted: Tensor | None,
    lookback: Lookback,
) -> Tensor:
    """Run the blocks of `canon.CanonLlamaForCausalLM`: Llama's, with a short convolution before attention."""
    x_ND = base.embed_tokens(ids_N)
    turn_2N1D = None
    if base.config.rotary_share:
        turn_2N1D = torch.stack(base.rotary_emb(x_ND, positions_N))[:, :, None]
    for i, layer in enumerate(base.layers):
        looked_ND = lookback(i, layer.self_attn.canon.weight, _rms_norm(layer.input_layernorm, x_ND))
        query, key, value = enter(layer, looked_ND, turn_2N1D)
        layer_wanted = wanted if i == len(base.layers) - 1 else None
        if layer_wanted is not None:
            query, x_ND = query[layer_wanted], x_ND[layer_wanted]
        x_ND = leave(layer, x_ND, attend(i, query, key, value, 0.0, layer_wanted))
    return _rms_norm(base.norm, x_ND)


def _enter_canon(layer: Any, looked_ND: Tensor, turn_2N1D: Tensor | None) -> tuple[Tensor, ...]:
    """Compute queries, keys and values of a layer from the output of its convolution, (N, H or G, D / H) each."""
    own = layer.self_attn
    query, key, value = _projected(own, looked_ND)
    if turn_2N1D is not None:
        query, key = (part * turn_2N1D[0] + _half_turned(part) * turn_2N1D[1] for part in (query, key))
    return query, key, value


def _leave_llama(layer: Any, x_ND: Tensor, mixed_ND: Tensor) -> Tensor:
    """Compute a layer's output from its input and the output of attention."""
    mlp = layer.mlp
    x_ND = x_ND + linear(layer.self_attn.o_proj, mixed_ND)
    h_ND = _rms_norm(layer.post_attention_layernorm, x_ND)
    return x_ND + linear(mlp.down_proj, mlp.act_fn(linear(mlp.gate_proj, h_ND)) * linear(mlp.up_proj, h_ND))


def _rms_norm(norm: Any, x: Tensor) -> Tensor:
    return functional.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _half_turned(x: Tensor) -> Tensor:
    """Rotate each pair (x_i, x_{i + D/2}) by a right angle, as rotary positions need it (Su et al. 2021)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def linear(module: Any, x_ND: Tensor) -> Tensor:
    """Compute a linear layer's output (N, O). Plain layers skip the module call, whose overhead counts in decoding.

    Products of a few rows with a large matrix, as in speculative decoding, are computed as W xᵀ where the CPU's library
    is faster at that than at x Wᵀ.
    """
    if type(module) is not nn.Linear:
        if type(module).__name__ == "Conv1D":  # GPT-2's; compared by name, because importing the class is slow
            # Under autocast this takes half the time of `addmm`. In float32 the two are the same.
            return functional.linear(x_ND, module.weight.t(), module.bias)
        return module(x_ND)
    weight_OD, bias_O = module.weight, module.bias
    # Small matrices stay in the CPU's caches, where the order of the factors does not matter.
    large = weight_OD.numel() >= LARGE and x_ND.device.type == "cpu"
    learning = torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")
    if torch.compiler.is_compiling() or not large or learning or len(x_ND) not in turned_rows():
        return functional.linear(x_ND, weight_OD, bias_O)
    out_NO = torch.mm(weight_OD, x_ND.t()).t().contiguous()
    if bias_O is not None:
        out_NO.add_(bias_O)
    return out_NO


@lru_cache
def turned_rows() -> range:
    """Return the numbers of rows for which `linear` transposes a product on this CPU.

    MKL's speed depends on the processor's maker. Compared with W xᵀ, x Wᵀ takes up to five times as long on an AMD EPYC
    from two rows on. On an Intel Xeon it takes half as long for two rows, equally long for six, and up to two and a
    half times as long for 7 to 16. Other processors have not been measured.
    """
    row_ranges = {"AuthenticAMD": range(2, 9), "GenuineIntel": range(7, 17)}
    return row_ranges.get(processor().maker, range(0))


def fuse_activations(core: nn.Module) -> None:
    """Replace GPT-2's GELU (Hendrycks and Gimpel 2016), which the library writes out, by torch's fused function."""
    for module in core.modules():
        if type(getattr(module, "act", None)).__name__ == "NewGELUActivation":
            module.act = nn.GELU(approximate="tanh")


# ---- the head --------------------------------------------------------------------------------------------------------


def head_logits(core: Any, hidden_ND: Tensor, rows: Tensor | None = None, each: bool = False) -> Tensor:
    """Compute logits of hidden states: (N, V), or (N, A) for tokens `rows` (A,), or (N,) with a token for each state.

    Only the requested rows of the head are computed. Some families multiply the head's output (Cohere), divide it
    (Granite) or cap it softly (Gemma 2).

    Args:
        each: `rows` (N,) names a token for each hidden state. Its logit is computed in float32.
    """
    head, config, count = core.get_output_embeddings(), core.config, len(hidden_ND)
    if not each and compiles_by_shape(hidden_ND.device):
        hidden_ND = functional.pad(hidden_ND, (0, 0, 0, rounded(count) - count))
    if rows is None:
        logits = linear(head, hidden_ND)[:count]
    else:
        bias = getattr(head, "bias", None)
        if bias is not None:
            bias = bias[rows]
        if each:
            logits = (hidden_ND.float() * head.weight[rows].float()).sum(-1)
            if bias is not None:
                logits = logits + bias.float()
        else:
            logits = functional.linear(hidden_ND, head.weight[rows], bias)[:count]
    scale = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
    if scale != 1:
        logits = logits * scale
    cap = getattr(config, "final_logit_softcapping", None)
    if cap is None:
        return logits
    return cap * (logits / cap).tanh()
