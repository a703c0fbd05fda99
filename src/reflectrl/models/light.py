"""Small players in numpy, for the families of models that this package makes from scratch.

They need neither torch nor transformers, which take seconds to import and hundreds of megabytes to install. For a
single decision of a small model, they are also faster.

Only `load.py` supports other model families, biases in Llama, scaled rotary positions, adapters, several files of
weights, tokenizers with a beginning-of-text token, and chat templates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from reflectrl.core.calibration import Calibration
from reflectrl.core.json_lines import read_json
from reflectrl.core.players.base import LiveEpisode
from reflectrl.core.prompts import Prompt, policy_prompt, reflector_prompt, tokenize, words_prompt
from reflectrl.core.prompts.tokens import encode_text
from reflectrl.core.types import Choice, Observation, Reflection, Sampling, Turn
from reflectrl.models.cards import CARD, HEADS, OPTION_HEAD, check_card
from reflectrl.models.labels import find_labels
from reflectrl.models.soundness import require_sound

ORDINARY: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "quantization_config": None,
    },
    "canon_llama": {
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "quantization_config": None,
    },
    "gpt2": {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
        "quantization_config": None,
    },
}
"""Family → required values in `config.json`. A key whose value is None must be null or missing."""

MOST_TEXTS = 2**14
"""Largest number of actions whose tokens a policy caches. When it is reached, the cache is emptied."""

MOST_TOKENS = 256
"""Largest number of tokens of options that are read in one pass."""

ROTARY_BASE = 10_000.0
"""Base of the rotary frequencies of `canon.PartialRotary`."""

FEW_ROWS, SLICE = 64, 64
"""Products of at most FEW_ROWS rows are computed in slices of SLICE columns."""

Ids = tuple[int, ...]


class LightTokenizer:
    """Subset of the Hugging Face tokenizer interface that players use.

    Args:
        path: path of `tokenizer.json`.
        end: end-of-text token.
    """

    bos_token_id = None

    def __init__(self, path: Path, end: str) -> None:
        self.backend_tokenizer = Tokenizer.from_file(str(path))
        self.backend_tokenizer.no_padding()
        self.backend_tokenizer.no_truncation()
        self.eos_token_id: int = self.get_vocab()[end]

    def get_vocab(self) -> dict[str, int]:
        """Return token → token id."""
        return self.backend_tokenizer.get_vocab()

    def encode(self, text: str, add_special_tokens: bool = False, split_special_tokens: bool = False) -> list[int]:
        """Encode a text to token ids."""
        self.backend_tokenizer.encode_special_tokens = split_special_tokens
        return self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def __call__(self, texts: Sequence[str], add_special_tokens: bool = False) -> dict[str, list[list[int]]]:
        """Encode several texts at once. Return their token ids as "input_ids"."""
        self.backend_tokenizer.encode_special_tokens = False
        encoded = self.backend_tokenizer.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        return {"input_ids": [text.ids for text in encoded]}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Decode token ids to text."""
        return self.backend_tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)


class Linear:
    """Linear layer: x W + b.

    The BLAS rearranges a large W for every product, which takes longer than the product itself if there are only a few
    rows. It does not rearrange a small W, so for a few rows W is cut into slices of columns.

    Args:
        weight_IO: weight, from I to O features.
        bias_O: bias; None for no bias.
    """

    def __init__(self, weight_IO: np.ndarray, bias_O: np.ndarray | None = None) -> None:
        self.weight_IO, self.bias_O = np.ascontiguousarray(weight_IO), bias_O
        inputs, outputs = weight_IO.shape
        width = SLICE if outputs % SLICE == 0 else outputs
        self.slices = np.ascontiguousarray(weight_IO.reshape(inputs, -1, width).swapaxes(0, 1))

    def __call__(self, x_NI: np.ndarray) -> np.ndarray:
        if len(x_NI) > FEW_ROWS:
            y_NO = x_NI @ self.weight_IO
        else:
            y_NO = (x_NI @ self.slices).swapaxes(0, 1).reshape(len(x_NI), -1)
        if self.bias_O is not None:
            y_NO += self.bias_O
        return y_NO


class Cache(NamedTuple):
    """KV cache: token ids, and for each layer their keys (heads, width, tokens) and values (heads, tokens, width).

    Keys are transposed, as attention multiplies by them. `inputs` holds the inputs (tokens, D) of each layer's short
    convolution, if the model has any.
    """

    ids: Ids
    layers: tuple[tuple[np.ndarray, np.ndarray], ...]
    inputs: tuple[np.ndarray, ...] = ()

    def first(self, count: int) -> Cache:
        """Return the cache of the first `count` tokens."""
        layers = tuple((keys[:, :, :count], values[:, :count]) for keys, values in self.layers)
        return Cache(self.ids[:count], layers, tuple(inputs_TD[:count] for inputs_TD in self.inputs))


class Lookback:
    """Tokens before each token of a pass on its own path, for short convolutions.

    Args:
        cache: tokens before the pass.
        parents_N: for each token of the pass, the one before it; -1 for the last token in the cache.

    Attributes:
        inputs: for each layer so far, its convolution's inputs (T, D) for the cached tokens and those of the pass.
    """

    def __init__(self, cache: Cache, parents_N: np.ndarray) -> None:
        self._cache, self._past = cache, len(cache.ids)
        self._before_T = np.concatenate([np.arange(self._past) - 1, parents_N + self._past])
        self.inputs: list[np.ndarray] = []

    def __call__(self, weight_KD: np.ndarray, x_ND: np.ndarray) -> np.ndarray:
        """Return the tokens plus the weighted sums of themselves and of the tokens before them.

        Args:
            weight_KD: weights of the token itself, of the token before it, and so on.
        """
        inputs_TD = np.concatenate((self._cache.inputs[len(self.inputs)], x_ND))
        self.inputs.append(inputs_TD)
        y_ND = x_ND * (1 + weight_KD[0])
        before_N = np.arange(self._past, len(inputs_TD))
        for weight_D in weight_KD[1:]:
            before_N = np.where(before_N >= 0, self._before_T[before_N], -1)
            y_ND += inputs_TD[before_N] * (before_N >= 0)[:, None] * weight_D
        return y_ND


class LightModel(ABC):
    """Language model in float32. It keeps the KV cache of the last prompt, since the next often shares its prefix.

    Subclasses define the parts of a layer that families do differently.

    Args:
        config: contents of `config.json`.
        weights: name in a checkpoint → array.
        tokenizer: tokenizer of the model.
        context: longest sequence in tokens; the model's own limit if that is smaller.
        option_head_D: weight of the head that scores options, if the model has one.

    Raises:
        ValueError: the weights have other shapes than the configuration says.
        KeyError: weights or keys of the configuration are missing.
    """

    chat = None
    convolves = False
    """True for families with short convolutions."""
    heads: int
    shared_heads: int
    width: int
    embeddings_VD: np.ndarray

    def __init__(
        self,
        config: dict[str, Any],
        weights: dict[str, np.ndarray],
        tokenizer: LightTokenizer,
        context: int,
        option_head_D: np.ndarray | None = None,
    ) -> None:
        self.tokenizer, self.option_head_D = tokenizer, option_head_D
        self.size = sum(weight.size for weight in weights.values())
        single = {name: np.ascontiguousarray(weight, np.float32) for name, weight in weights.items()}
        self.context = min(context, self._set_up(config, single))
        keys = np.zeros((self.shared_heads, self.width, 0), np.float32)
        inputs = (np.zeros((0, self.embeddings_VD.shape[1]), np.float32),) * (self._layers() if self.convolves else 0)
        self._latest = Cache((), ((keys, keys.swapaxes(1, 2)),) * self._layers(), inputs)

    # ---- what families do differently --------------------------------------------------------------------------------

    @abstractmethod
    def _set_up(self, config: dict[str, Any], weights: dict[str, np.ndarray]) -> int:
        """Set the shape and the weights. Return the model's longest sequence in tokens."""

    @abstractmethod
    def _layers(self) -> int:
        """Return the number of layers."""

    @abstractmethod
    def _embed(self, ids: np.ndarray, positions_N: np.ndarray) -> np.ndarray:
        """Return the input (N, D) of the first layer."""

    @abstractmethod
    def _enter(self, number: int, x_ND: np.ndarray, lookback: Lookback) -> tuple[np.ndarray, ...]:
        """Return queries, keys and values of a layer, (heads, N, width) each."""

    @abstractmethod
    def _leave(self, number: int, x_ND: np.ndarray, mixed_ND: np.ndarray) -> np.ndarray:
        """Return the output (N, D) of a layer from its input and the result of attention."""

    @abstractmethod
    def _end(self, x_ND: np.ndarray) -> np.ndarray:
        """Apply the last norm."""

    # ---- reading -----------------------------------------------------------------------------------------------------

    def read(self, ids: Ids) -> tuple[np.ndarray, Cache]:
        """Run the model on a prompt; return the last hidden state (D,) and the cache. A shared prefix is reused."""
        shared = min(self._shared(ids), len(ids) - 1)
        hidden_D, self._latest = self.further(ids[shared:], self._latest.first(shared))
        return hidden_D, self._latest

    def cache_of(self, ids: Ids) -> Cache:
        """Return the KV cache of a prompt. Nothing is computed if it is the last one, or the beginning of it."""
        shared = self._shared(ids)
        if shared == len(ids):
            return self._latest.first(shared)
        return self.read(ids)[1]

    def _shared(self, ids: Ids) -> int:
        """Return the length of the common prefix of a prompt and the last one."""
        cached = self._latest.ids
        if cached[: len(ids)] == ids:
            return len(ids)
        return next(
            (i for i, (token, other) in enumerate(zip(ids, cached, strict=False)) if token != other), len(cached)
        )

    def further(self, ids: Ids, cache: Cache) -> tuple[np.ndarray, Cache]:
        """Run the model on tokens after a cache; return the last hidden state (D,) and the extended cache."""
        past, new = len(cache.ids), len(ids)
        positions_T = np.arange(past, past + new)
        hidden_TT = np.triu(np.ones((new, new), bool), 1)  # causal mask: True for later positions
        x_TD = self._embed(np.array(ids), positions_T)
        layers, lookback = [], Lookback(cache, np.arange(new) - 1)
        for i, cached in enumerate(cache.layers):
            queries, keys, values = self._enter(i, x_TD, lookback)
            cached = _extended(cached, keys, values)
            x_TD = self._leave(i, x_TD, self._attend(queries, cached, hidden_TT))
            layers.append(cached)
        return self._end(x_TD[-1:])[0], Cache((*cache.ids, *ids), tuple(layers), tuple(lookback.inputs))

    def score_options(self, options: Sequence[Ids], cache: Cache) -> np.ndarray:
        """Return the learned head's scores (A,) of options after a prompt. Options do not see each other.

        Raises:
            ValueError: the model has no such head.
        """
        if self.option_head_D is None:
            raise ValueError("the model has no head that scores options")
        scores_A = np.empty(len(options))
        order = sorted(range(len(options)), key=lambda option: options[option])
        for part in _runs_of([len(options[option]) for option in order], MOST_TOKENS):
            indices = [order[i] for i in part]
            scores_A[indices] = self._ends([options[option] for option in indices], cache) @ self.option_head_D
        return scores_A

    def option_score(self, hidden_D: np.ndarray) -> float:
        """Return the learned head's score of a hidden state (D,) at the end of an option."""
        assert self.option_head_D is not None
        return float(hidden_D @ self.option_head_D)

    def _ends(self, options: Sequence[Ids], cache: Cache) -> np.ndarray:
        """Return hidden states (A, D) at the last tokens of some options, in one pass."""
        token_of, parents, ends = _branches(options)
        count, past = len(token_of), len(cache.ids)
        sees_NN, depths_N = np.eye(count, dtype=bool), np.zeros(count, np.int64)
        for node, parent in enumerate(parents):
            if parent >= 0:
                sees_NN[node] |= sees_NN[parent]
                depths_N[node] = depths_N[parent] + 1
        hidden_NN = ~sees_NN
        positions_N = past + depths_N
        x_ND, lookback = self._embed(np.array(token_of), positions_N), Lookback(cache, np.array(parents))
        for i, cached in enumerate(cache.layers):
            queries, keys, values = self._enter(i, x_ND, lookback)
            cached = _extended(cached, keys, values)
            if i == len(cache.layers) - 1:  # only the ends are needed from here on
                queries, x_ND, hidden_NN = queries[:, ends], x_ND[ends], hidden_NN[ends]
            x_ND = self._leave(i, x_ND, self._attend(queries, cached, hidden_NN))
        return self._end(x_ND)

    def logits(self, hidden_D: np.ndarray, tokens: Sequence[int] | None = None) -> np.ndarray:
        """Return the logits (V,) of the next token in float64; with `tokens`, only the logits of these tokens."""
        rows = self.embeddings_VD if tokens is None else self.embeddings_VD[list(tokens)]
        logits: np.ndarray = (rows @ hidden_D).astype(np.float64)
        return logits

    def _attend(
        self, queries_HNW: np.ndarray, held: tuple[np.ndarray, np.ndarray], hidden_NM: np.ndarray
    ) -> np.ndarray:
        """Attend from N queries to all S keys and values of a layer; return the result (N, H · W).

        Args:
            queries_HNW: queries, already scaled by W ** -0.5.
            hidden_NM: True for those of the last M keys that a query does not see. It sees all keys before them.
        """
        (keys_GWS, values_GSW), count = held, queries_HNW.shape[1]
        # Grouped-query attention: (key-value heads, query heads per key-value head and queries, width).
        queries_GQW = queries_HNW.reshape(self.shared_heads, -1, self.width)
        scores_GQS = queries_GQW @ keys_GWS
        scores_GRNS = scores_GQS.reshape(self.shared_heads, -1, count, keys_GWS.shape[2])
        mask_NM = np.where(hidden_NM, np.float32(-np.inf), np.float32(0))
        scores_GRNS[..., keys_GWS.shape[2] - mask_NM.shape[1] :] += mask_NM
        scores_GRNS -= scores_GRNS.max(-1, keepdims=True)
        weights = np.exp(scores_GRNS, out=scores_GRNS)
        mixed_GQW = scores_GQS @ values_GSW
        mixed_GQW /= weights.sum(-1).reshape(self.shared_heads, -1, 1)
        return mixed_GQW.reshape(self.heads, count, self.width).swapaxes(0, 1).reshape(count, -1)

    def _split(self, part_ND: np.ndarray) -> np.ndarray:
        """Split features into heads: (N, H · W) -> (H, N, W)."""
        return part_ND.reshape(len(part_ND), -1, self.width).swapaxes(0, 1)


class LightLlama(LightModel):
    """Llama (Touvron et al. 2023): rotary positions, RMS norm, gated MLP."""

    def _set_up(self, config: dict[str, Any], weights: dict[str, np.ndarray]) -> int:
        self.heads, self.epsilon = int(config["num_attention_heads"]), np.float32(config["rms_norm_eps"])
        self.shared_heads = int(config.get("num_key_value_heads") or self.heads)
        self.width = int(config.get("head_dim") or config["hidden_size"] // self.heads)
        theta = float(config["rope_parameters"]["rope_theta"])
        self.frequencies_D = 1.0 / theta ** (np.arange(0, self.width, 2, dtype=np.float32) / self.width)
        single = {name.removeprefix("model."): weight for name, weight in weights.items()}
        self.embeddings_VD, self.norm_D = single["embed_tokens.weight"], single["norm.weight"]
        blocks = [_layer(single, f"layers.{i}.") for i in range(config["num_hidden_layers"])]
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        all_heads, fewer = self.heads * self.width, self.shared_heads * self.width
        wanted = {
            "self_attn.q_proj.weight": (all_heads, hidden),
            "self_attn.k_proj.weight": (fewer, hidden),
            "self_attn.v_proj.weight": (fewer, hidden),
            "self_attn.o_proj.weight": (hidden, all_heads),
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
        }
        _require_shapes(blocks, wanted, self.embeddings_VD, (config["vocab_size"], hidden))
        self.parts = []
        for block in blocks:
            # One product replaces three (queries, keys, values), and one replaces two (gate, up). The weight of the
            # norm before them and the scale of attention are multiplied in.
            queries_OD = block["self_attn.q_proj.weight"] * np.float32(self.width**-0.5)
            keys_OD, values_OD = block["self_attn.k_proj.weight"], block["self_attn.v_proj.weight"]
            qkv_OD = np.concatenate([queries_OD, keys_OD, values_OD])
            gate_up_OD = np.concatenate([block["mlp.gate_proj.weight"], block["mlp.up_proj.weight"]])
            part = {
                "qkv": Linear((qkv_OD * block["input_layernorm.weight"]).T),
                "out": Linear(block["self_attn.o_proj.weight"].T),
                "gate_up": Linear((gate_up_OD * block["post_attention_layernorm.weight"]).T),
                "down": Linear(block["mlp.down_proj.weight"].T),
            }
            self.parts.append(part)
        return int(config["max_position_embeddings"])

    def _layers(self) -> int:
        return len(self.parts)

    def _embed(self, ids: np.ndarray, positions_N: np.ndarray) -> np.ndarray:
        angles_ND = positions_N[:, None].astype(np.float32) * self.frequencies_D
        self._turn = np.cos(angles_ND), np.sin(angles_ND)  # the same in every layer of the pass
        embedded: np.ndarray = self.embeddings_VD[ids]
        return embedded

    def _enter(self, number: int, x_ND: np.ndarray, lookback: Lookback) -> tuple[np.ndarray, ...]:
        all_HNW = self._split(self.parts[number]["qkv"](self._norm(x_ND)))
        queries, keys, values = np.split(all_HNW, (self.heads, self.heads + self.shared_heads))
        return _turned(queries, self._turn), _turned(keys, self._turn), values

    def _leave(self, number: int, x_ND: np.ndarray, mixed_ND: np.ndarray) -> np.ndarray:
        part = self.parts[number]
        x_ND = x_ND + part["out"](mixed_ND)
        gate_NI, up_NI = np.split(part["gate_up"](self._norm(x_ND)), 2, axis=-1)
        gated_NI = gate_NI / (1 + np.exp(-gate_NI)) * up_NI
        out: np.ndarray = x_ND + part["down"](gated_NI)
        return out

    def _end(self, x_ND: np.ndarray) -> np.ndarray:
        return self._norm(x_ND) * self.norm_D

    def _norm(self, x_ND: np.ndarray) -> np.ndarray:
        """Apply an RMS norm without its weight, which is part of the next product."""
        squares_N = np.einsum("nd,nd->n", x_ND, x_ND) / np.float32(x_ND.shape[1])
        scaled: np.ndarray = x_ND / np.sqrt(squares_N + self.epsilon)[:, None]
        return scaled


class LightCanonLlama(LightLlama):
    """Llama with a short convolution before attention, and with rotary positions for a share of each head."""

    convolves = True

    def _set_up(self, config: dict[str, Any], weights: dict[str, np.ndarray]) -> int:
        longest = super()._set_up(config | {"rope_parameters": {"rope_theta": ROTARY_BASE}}, weights)
        pairs, share = np.arange(self.width // 2), float(config["rotary_share"])
        self.frequencies_D = self.frequencies_D * (pairs < share * self.width / 2)
        self.scaling = float(config["logits_scaling"])
        taps, hidden = int(config["canon_taps"]), int(config["hidden_size"])
        self.convolutions = []
        for i in range(len(self.parts)):
            weight_D1K = weights[f"model.layers.{i}.self_attn.canon.weight"]
            if weight_D1K.shape != (hidden, 1, taps):
                raise ValueError("weights of other shapes than the configuration says")
            self.convolutions.append(np.ascontiguousarray(weight_D1K[:, 0, ::-1].T))
        return longest

    def _enter(self, number: int, x_ND: np.ndarray, lookback: Lookback) -> tuple[np.ndarray, ...]:
        # The norm's weight is part of the product behind the convolution, which treats channels one by one.
        looked_ND = lookback(self.convolutions[number], self._norm(x_ND))
        all_HNW = self._split(self.parts[number]["qkv"](looked_ND))
        queries, keys, values = np.split(all_HNW, (self.heads, self.heads + self.shared_heads))
        return _turned(queries, self._turn), _turned(keys, self._turn), values

    def logits(self, hidden_D: np.ndarray, tokens: Sequence[int] | None = None) -> np.ndarray:
        """Return the logits (V,) of the next token in float64; with `tokens`, only the logits of these tokens."""
        return super().logits(hidden_D, tokens) / self.scaling


class LightGPT2(LightModel):
    """GPT-2 (Radford et al. 2019): learned positions, norm before each half, fused projections."""

    def _set_up(self, config: dict[str, Any], weights: dict[str, np.ndarray]) -> int:
        self.heads = self.shared_heads = int(config["n_head"])
        self.width = int(config["n_embd"]) // self.heads
        self.epsilon = np.float32(config["layer_norm_epsilon"])
        single = {name.removeprefix("transformer."): weight for name, weight in weights.items()}
        self.embeddings_VD, self.positions_TD = single["wte.weight"], single["wpe.weight"]
        self.last = _layer(single, "ln_f.")
        blocks = [_layer(single, f"h.{i}.") for i in range(config["n_layer"])]
        hidden = int(config["n_embd"])
        inner = int(config.get("n_inner") or 4 * hidden)
        wanted: dict[str, tuple[int, ...]] = {
            "attn.c_attn.weight": (hidden, 3 * hidden),
            "attn.c_proj.weight": (hidden, hidden),
            "mlp.c_fc.weight": (hidden, inner),
            "mlp.c_proj.weight": (inner, hidden),
        }
        _require_shapes(blocks, wanted, self.embeddings_VD, (config["vocab_size"], hidden))
        self.parts = []
        scale_O = np.ones(3 * hidden, np.float32)
        scale_O[:hidden] = self.width**-0.5  # the scale of attention is part of the queries
        for block in blocks:
            part = {
                "qkv": _behind_norm(block, "ln_1", "attn.c_attn", scale_O),
                "out": Linear(block["attn.c_proj.weight"], block["attn.c_proj.bias"]),
                "up": _behind_norm(block, "ln_2", "mlp.c_fc", np.ones(inner, np.float32)),
                "down": Linear(block["mlp.c_proj.weight"], block["mlp.c_proj.bias"]),
            }
            self.parts.append(part)
        return int(config["n_positions"])

    def _layers(self) -> int:
        return len(self.parts)

    def _embed(self, ids: np.ndarray, positions_N: np.ndarray) -> np.ndarray:
        embedded: np.ndarray = self.embeddings_VD[ids] + self.positions_TD[positions_N]
        return embedded

    def _enter(self, number: int, x_ND: np.ndarray, lookback: Lookback) -> tuple[np.ndarray, ...]:
        return tuple(np.split(self._split(self.parts[number]["qkv"](self._norm(x_ND))), 3))

    def _leave(self, number: int, x_ND: np.ndarray, mixed_ND: np.ndarray) -> np.ndarray:
        part = self.parts[number]
        x_ND = x_ND + part["out"](mixed_ND)
        out: np.ndarray = x_ND + part["down"](_gelu(part["up"](self._norm(x_ND))))
        return out

    def _end(self, x_ND: np.ndarray) -> np.ndarray:
        return self._norm(x_ND) * self.last["weight"] + self.last["bias"]

    def _norm(self, x_ND: np.ndarray) -> np.ndarray:
        """Apply a layer norm without its weight and bias, which are part of the next product (`_behind_norm`)."""
        centred_ND = x_ND - x_ND.mean(-1, keepdims=True)
        squares_N = np.einsum("nd,nd->n", centred_ND, centred_ND) / np.float32(x_ND.shape[1])
        centred_ND /= np.sqrt(squares_N + self.epsilon)[:, None]
        return centred_ND


FAMILIES: dict[str, type[LightModel]] = {"llama": LightLlama, "canon_llama": LightCanonLlama, "gpt2": LightGPT2}


def _behind_norm(block: dict[str, np.ndarray], norm: str, name: str, scale_O: np.ndarray) -> Linear:
    """Return a linear layer that includes the weight and bias of the norm before it.

    With weight g and bias h of the norm, (x g + h) W + b = x (g W) + (h W + b).

    Args:
        scale_O: a factor for each output feature.
    """
    weight_IO = block[f"{name}.weight"] * scale_O
    bias_O = block[f"{name}.bias"] * scale_O + block[f"{norm}.bias"] @ weight_IO
    return Linear(block[f"{norm}.weight"][:, None] * weight_IO, bias_O)


def _gelu(x: np.ndarray) -> np.ndarray:
    """Compute GELU (Hendrycks and Gimpel 2016) in its form with tanh, as GPT-2 has it."""
    inner = x * x
    inner *= np.float32(0.044715)
    inner += np.float32(1)
    inner *= x
    inner *= np.float32((2 / np.pi) ** 0.5)
    np.tanh(inner, out=inner)
    inner += np.float32(1)
    inner *= x
    inner *= np.float32(0.5)
    return inner


def _runs_of(sizes: Sequence[int], most: int) -> list[range]:
    """Split rows into runs of at most `most` tokens together. A single row may be longer."""
    runs, start, total = list[range](), 0, 0
    for row, size in enumerate(sizes):
        if row > start and total + size > most:
            runs.append(range(start, row))
            start, total = row, 0
        total += size
    return [*runs, range(start, len(sizes))]


def _branches(options: Sequence[Ids]) -> tuple[list[int], list[int], list[int]]:
    """Return tokens and parents (-1 for none) of the nodes of a trie of options, and the last node of each option."""
    nodes: dict[tuple[int, int], int] = {}
    parents, ends = list[int](), list[int]()
    for ids in options:
        node = -1
        for token in ids:
            parent, node = node, nodes.setdefault((node, token), len(nodes))
            if node == len(parents):
                parents.append(parent)
        ends.append(node)
    return [token for _, token in nodes], parents, ends


def _extended(
    held: tuple[np.ndarray, np.ndarray], keys_GNW: np.ndarray, values_GNW: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Append the keys and values of further tokens to a layer's."""
    keys_GWS, values_GSW = held
    return np.concatenate((keys_GWS, keys_GNW.swapaxes(1, 2)), axis=2), np.concatenate((values_GSW, values_GNW), axis=1)


def _layer(weights: dict[str, np.ndarray], start: str) -> dict[str, np.ndarray]:
    """Return the weights of a part of the model, by their names within it."""
    return {name.removeprefix(start): weight for name, weight in weights.items() if name.startswith(start)}


def _require_shapes(
    blocks: Sequence[dict[str, np.ndarray]],
    wanted: dict[str, tuple[int, ...]],
    embeddings_VD: np.ndarray,
    embedded: tuple[int, int],
) -> None:
    """Raise ValueError if the shapes of the weights do not match the configuration."""
    fitting = all(block[name].shape == shape for block in blocks for name, shape in wanted.items())
    if not fitting or embeddings_VD.shape != embedded:
        raise ValueError("weights of other shapes than the configuration says")


def _turned(x_HTW: np.ndarray, turn: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Apply rotary position embeddings (Su et al. 2021): rotate pairs of features by position-dependent angles."""
    cos, sin = turn
    first, second = np.split(x_HTW, 2, axis=-1)
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)


def load_light(folder: Path, context: int) -> LightModel | None:
    """Load a player's model; return None if only `load_model` supports it.

    Args:
        context: longest sequence in tokens; the model's own limit if that is smaller.

    Raises:
        UserError: the weights were trained with another tokenizer, or a file was changed after it was written.
    """
    require_sound(folder)
    try:
        config, about, card = (_json_in(folder / name) for name in ("config.json", "tokenizer_config.json", CARD))
        if not _ordinary(config, about) or card.get("chat"):
            return None
        tokenizer = LightTokenizer(folder / "tokenizer.json", about["eos_token"])
        heads = load_file(folder / HEADS) if (folder / HEADS).is_file() else {}
        weights = load_file(folder / "model.safetensors")
        model = FAMILIES[config["model_type"]](config, weights, tokenizer, context, heads.get(OPTION_HEAD))
    except Exception:  # of any kind: `load_model` reports the cause better
        return None
    check_card(folder, tokenizer)
    return model


def _json_in(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if there is no such file."""
    return read_json(path) if path.is_file() else {}


def _ordinary(config: dict[str, Any], about: dict[str, Any]) -> bool:
    required = ORDINARY.get(config.get("model_type", ""))
    if required is None or any(config.get(key) != value for key, value in required.items()):
        return False
    if config["model_type"] == "canon_llama":
        usual = True
    elif config["model_type"] == "gpt2":
        usual = config.get("activation_function") in ("gelu_new", "gelu_pytorch_tanh")
    else:
        usual = (config.get("rope_parameters") or {}).get("rope_type") == "default"
    return usual and about.get("bos_token") is None and about.get("eos_token") is not None


class LightReflector:
    """Reflector that decodes greedily until end-of-text: `players.Reflector` on a light model."""

    def __init__(self, model: LightModel, max_new_tokens: int, carries: bool = False) -> None:
        self.model, self.max_new_tokens, self.carries = model, max_new_tokens, carries

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        return [self._turn(episode) for episode in episodes]

    def _turn(self, episode: LiveEpisode) -> Turn:
        model = self.model
        prompt = tokenize(model, reflector_prompt(episode.observation), reserve=self.max_new_tokens)
        hidden_D, cache = model.read(prompt)
        written, logprobs = list[int](), list[float]()
        while len(written) < self.max_new_tokens:
            logits_V = model.logits(hidden_D)
            token = int(logits_V.argmax())
            if token == model.tokenizer.eos_token_id:
                break
            written.append(token)
            logprobs.append(float(logits_V[token] - np.logaddexp.reduce(logits_V)))
            if len(written) < self.max_new_tokens:
                hidden_D, cache = model.further((token,), cache)
        text = model.tokenizer.decode(written).strip()
        return Reflection("reflector", text, token_ids=tuple(written), logprobs=tuple(logprobs), sampling=Sampling(0.0))


class LightPolicy:
    """Policy that takes the likeliest legal action: `players.Policy` on a light model.

    Args:
        scoring: see `players.Policy`.
        calibration: calibration of the probabilities that turns report. It changes no choice.

    Raises:
        ValueError: only `players.Policy` supports this scoring, or the model has no head that scores options.
    """

    def __init__(self, model: LightModel, scoring: str = "trie", calibration: Calibration | None = None) -> None:
        score = {"trie": self._trie_logp, "options": self._option_scores, "enumeration": self._label_logits}
        if scoring not in score or (scoring == "options" and model.option_head_D is None):
            raise ValueError(f"a light policy cannot score by {scoring!r} with this model")
        self.model, self.scoring, self._score = model, scoring, score[scoring]
        self.calibration = calibration or Calibration()
        self._texts: dict[str, Ids] = {}
        self._labels = find_labels(model.tokenizer) if scoring == "enumeration" else None

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        return [self._turn(episode) for episode in episodes]

    def _turn(self, episode: LiveEpisode) -> Turn:
        actions = episode.observation.actions
        logits, answers = self._score(episode.observation, episode.reflection)
        logp = self.calibration.logp(logits)
        probs, choice = np.exp(logp), int(logits.argmax())
        return Choice(
            "policy",
            actions[choice],
            choice=choice,
            probs=tuple(np.round(probs, 6).tolist()),
            token_ids=answers[choice],
            logprobs=(float(logp[choice]),),
            entropy=float(-(probs * np.where(probs > 0, logp, 0.0)).sum()),
            sampling=Sampling(0.0),
        )

    def _encoded(self, action: str) -> Ids:
        """Return the tokens of an action's text. They are cached, since most actions recur."""
        if action not in self._texts:
            if len(self._texts) >= MOST_TEXTS:
                self._texts.clear()
            self._texts[action] = tuple(encode_text(self.model.tokenizer, f" {action}"))
        return self._texts[action]

    def _option_scores(self, seen: Observation, reflection: str | None) -> tuple[np.ndarray, Sequence[Ids]]:
        model = self.model
        if model.convolves:  # models that read also write (`models/options.py`)
            return self._trie_logp(seen, reflection, head=True)
        options = [self._encoded(action) or (model.tokenizer.eos_token_id,) for action in seen.actions]
        prompt = tokenize(model, words_prompt(seen, reflection), reserve=max(map(len, options)))
        return model.score_options(options, model.cache_of(prompt)), options

    def _label_logits(self, seen: Observation, reflection: str | None) -> tuple[np.ndarray, Sequence[Ids]]:
        model, labels, count = self.model, self._labels, len(seen.actions)
        assert labels is not None
        if count > len(labels.token_ids):
            find_labels(model.tokenizer, count)  # raises an error that says why
        history, rest = policy_prompt(seen, reflection, labels.texts)
        hidden_D, _ = model.read(tokenize(model, Prompt(history, rest + labels.gap)))
        tokens = labels.token_ids[:count]
        return model.logits(hidden_D, tokens), [(token,) for token in tokens]

    def _trie_logp(
        self, seen: Observation, reflection: str | None, head: bool = False
    ) -> tuple[np.ndarray, Sequence[Ids]]:
        """Return log-probabilities (A,) of the actions' texts among each other, and the texts' tokens.

        Args:
            head: add the learned head's score of each text, read up to its end token.
        """
        model = self.model
        answers = [(*self._encoded(action), model.tokenizer.eos_token_id) for action in seen.actions]
        prompt = tokenize(model, words_prompt(seen, reflection), reserve=max(map(len, answers)))
        logp = np.full(len(answers), -np.inf)
        hidden_D, cache = model.read(prompt)
        self._spell(logp, answers, list(range(len(answers))), 0, 0.0, hidden_D, cache)
        if head:
            texts = [ids[:-1] for ids in answers]
            written = [i for i, ids in enumerate(texts) if ids]
            scores_A = np.full(len(texts), model.option_score(hidden_D))  # of empty texts: the prompt's end
            scores_A[written] = model.score_options([texts[i] for i in written], cache)
            logp = logp + scores_A
        return logp, answers

    def _spell(
        self,
        logp: np.ndarray,
        answers: Sequence[Ids],
        left: Sequence[int],
        depth: int,
        before: float,
        hidden_D: np.ndarray,
        cache: Cache,
    ) -> None:
        """Fill in the log-probabilities of the actions `left`, which share their first `depth` tokens.

        Only tokens that lead to a legal action are allowed. So once a single action is left, its remaining tokens have
        probability 1.
        """
        branches: dict[int, list[int]] = {}
        for action in left:
            branches.setdefault(answers[action][depth], []).append(action)
        logits = self.model.logits(hidden_D, list(branches))
        shares = before + logits - np.logaddexp.reduce(logits)
        for (token, further), share in zip(branches.items(), shares, strict=True):
            if len(further) == 1 or len(answers[further[0]]) == depth + 1:  # equal texts end together
                logp[further] = share
            else:
                state = self.model.further((token,), cache)
                self._spell(logp, answers, further, depth + 1, float(share), *state)
