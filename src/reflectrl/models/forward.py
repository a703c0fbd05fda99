"""Forward passes over tokens that lie one behind another, (N,), with attention of our own.

Two ways that compute the same. The families that the engine knows are walked through block by block, calling the
model's own layers: a third of the time of a step of decoding is saved by that, since little else is done between them.
Any other family, and training with dropout, goes through Hugging Face's forward pass (`through.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from reflectrl.models.attention import Attend
from reflectrl.models.precision import shortest_seconds

PART = 1024
"""Tokens that go through an MLP at a time on CPUs. Its activations, the largest there are, stay below the size from
which memory is mapped anew each time (`memory.py`), which can take longer than computing them."""

LARGE = 2**20
"""Entries of a matrix (4 MiB) from which its product with a few rows may be turned round (`product`)."""


def hidden_states(
    core: Any,
    ids_N: Tensor,
    positions_N: Tensor,
    attend: Attend,
    wanted: Tensor | None = None,
    blocks: bool = True,
) -> Tensor:
    """Hidden states of the last layer, (N, D), after the final norm.

    Args:
        core: a Hugging Face causal language model, its linear layers wrapped by adapters or not.
        attend: knows which tokens belong together.
        wanted: indices (W,), ascending, of the tokens whose hidden states are asked for, (W, D): in the last layer the
            others give keys and values only.
        blocks: whether families that are known are walked through block by block.
    """
    walk = _walk_of(core) if blocks else None
    with _careful_attention(attend, ids_N.device) as careful:
        if walk is not None and not (core.training and drops(core)):
            return walk(core.base_model, ids_N, positions_N, careful, wanted)
        from reflectrl.models.through import through_transformers  # the library is slow to import

        hidden_ND = through_transformers(core, ids_N, positions_N, careful)
        return hidden_ND if wanted is None else hidden_ND[wanted]


@contextlib.contextmanager
def _careful_attention(attend: Attend, device: torch.device) -> Iterator[Attend]:
    """Under autocast on CPUs, attention has one precision: bfloat16 in play; float32 in learning, since torch's fused
    attention is slower backwards in bfloat16.
    """
    if device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        yield attend
        return
    dtype = torch.float32 if torch.is_grad_enabled() else torch.get_autocast_dtype("cpu")

    def careful(layer: int, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return attend(layer, query.to(dtype), key.to(dtype), value.to(dtype), *rest)

    yield careful


# ---- block by block --------------------------------------------------------------------------------------------------


Walk = Callable[..., Tensor]
"""(the layers, ids (N,), positions (N,), attention, wanted (W,) or None) -> hidden states (W, D)."""


def _walk_of(core: Any) -> Walk | None:
    config = core.config
    if config.model_type == "gpt2":
        plain = config.scale_attn_weights and not config.scale_attn_by_inverse_layer_idx
        return _walk_gpt2 if plain and not config.add_cross_attention else None
    return _walk_llama if config.model_type in ("llama", "mistral", "qwen2", "qwen3") else None


def knows(core: Any) -> bool:
    """Whether the engine has a way of its own through a model's blocks."""
    return _walk_of(core) is not None


def drops(core: Any) -> bool:
    """Whether the model's own layers drop anything (adapters' layers are called as they are, so theirs may)."""
    names = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout")
    return any(getattr(core.config, name, 0.0) for name in names)


def _walk_gpt2(base: Any, ids_N: Tensor, positions_N: Tensor, attend: Attend, wanted: Tensor | None = None) -> Tensor:
    """Radford et al. 2019: learned positions, norm before each half, fused projections."""
    x_ND = base.wte(ids_N) + base.wpe(positions_N)
    for i, block in enumerate(base.h):
        heads = (-1, block.attn.num_heads, block.attn.head_dim)
        query, key, value = _linear(block.attn.c_attn, _layer_norm(block.ln_1, x_ND)).split(x_ND.shape[1], dim=-1)
        some = wanted if i == len(base.h) - 1 else None
        if some is not None:
            query, x_ND = query[some], x_ND[some]
        mixed_ND = attend(i, query.view(heads), key.view(heads), value.view(heads), 0.0, some)
        x_ND = x_ND + _linear(block.attn.c_proj, mixed_ND)
        x_ND = x_ND + _in_parts(partial(_gpt2_mlp, block), x_ND)
    return base.ln_f(x_ND)


def _gpt2_mlp(block: Any, x_ND: Tensor) -> Tensor:
    return _linear(block.mlp.c_proj, block.mlp.act(_linear(block.mlp.c_fc, _layer_norm(block.ln_2, x_ND))))


def _walk_llama(base: Any, ids_N: Tensor, positions_N: Tensor, attend: Attend, wanted: Tensor | None = None) -> Tensor:
    """Touvron et al. 2023 and relatives: rotary positions, RMS norm, gated MLP; Qwen 3 also norms queries and keys."""
    x_ND = base.embed_tokens(ids_N)
    cos_1ND, sin_1ND = base.rotary_emb(x_ND[None], positions_N[None])
    cos_N1D, sin_N1D = cos_1ND[0][:, None], sin_1ND[0][:, None]
    for i, layer in enumerate(base.layers):
        own = layer.self_attn
        h_ND = _rms_norm(layer.input_layernorm, x_ND)
        query, key, value = (
            _linear(project, h_ND).view(len(ids_N), -1, own.head_dim)
            for project in (own.q_proj, own.k_proj, own.v_proj)
        )
        if hasattr(own, "q_norm"):
            query, key = _rms_norm(own.q_norm, query), _rms_norm(own.k_norm, key)
        query, key = (part * cos_N1D + _half_turned(part) * sin_N1D for part in (query, key))
        some = wanted if i == len(base.layers) - 1 else None
        if some is not None:
            query, x_ND = query[some], x_ND[some]
        x_ND = x_ND + _linear(own.o_proj, attend(i, query, key, value, 0.0, some))
        x_ND = x_ND + _in_parts(partial(_llama_mlp, layer), x_ND)
    return _rms_norm(base.norm, x_ND)


def _llama_mlp(layer: Any, x_ND: Tensor) -> Tensor:
    mlp, h_ND = layer.mlp, _rms_norm(layer.post_attention_layernorm, x_ND)
    return _linear(mlp.down_proj, mlp.act_fn(_linear(mlp.gate_proj, h_ND)) * _linear(mlp.up_proj, h_ND))


def _in_parts(compute: Callable[[Tensor], Tensor], x_ND: Tensor) -> Tensor:
    """`compute` of each token, some tokens at a time on CPUs: what is wide stays small."""
    if len(x_ND) <= PART or x_ND.device.type != "cpu":
        return compute(x_ND)
    return torch.cat([compute(part) for part in x_ND.split(PART)])


def _linear(module: Any, x_ND: Tensor) -> Tensor:
    """What a linear layer computes; a plain one without the detour of a module's call, which counts while writing."""
    if type(module).__name__ == "Conv1D":  # GPT-2's; its class is not imported for its name's sake
        return torch.addmm(module.bias, x_ND, module.weight)
    if type(module) is nn.Linear:
        return product(x_ND, module.weight, module.bias)
    return module(x_ND)


def product(x_ND: Tensor, weight_OD: Tensor, bias_O: Tensor | None) -> Tensor:
    """The product x Wᵀ + bias, (N, O), as `functional.linear` has it.

    A few rows times a matrix that no cache holds are turned round where W xᵀ takes MKL less than x Wᵀ; writing with
    drafts computes such products all the time.
    """
    large = weight_OD.numel() >= LARGE and x_ND.device.type == "cpu"
    if not large or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or len(x_ND) not in turned_rows():
        return functional.linear(x_ND, weight_OD, bias_O)
    out_NO = _turned(x_ND, weight_OD)
    return out_NO if bias_O is None else out_NO.add_(bias_O)


def _turned(x_ND: Tensor, weight_OD: Tensor) -> Tensor:
    return torch.mm(weight_OD, x_ND.t()).t().contiguous()


@lru_cache
def turned_rows() -> range:
    """The numbers of rows for which `product` turns a product round on this CPU.

    MKL knows two kinds of processors, told apart by what two rows take, timed once. On an AMD EPYC, x Wᵀ takes up to
    five times as long from two rows on. On an Intel Xeon it takes half as long for two, as long for six, and up to two
    and a half times as long for 7 to 16.
    """
    x_ND, weight_OD = torch.ones(2, 1024), torch.ones(2 * LARGE // 1024, 1024)
    plain = shortest_seconds(lambda: functional.linear(x_ND, weight_OD))
    turned = shortest_seconds(lambda: _turned(x_ND, weight_OD))
    return range(2, 9) if turned < plain else range(7, 17)


def _layer_norm(norm: Any, x_ND: Tensor) -> Tensor:
    return functional.layer_norm(x_ND, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def _rms_norm(norm: Any, x: Tensor) -> Tensor:
    return functional.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _half_turned(x: Tensor) -> Tensor:
    """Each pair (x_i, x_{i + D/2}) turned by a right angle, as rotary positions want it."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)
