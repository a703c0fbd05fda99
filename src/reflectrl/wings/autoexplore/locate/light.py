"""Small Llama-shaped players in numpy.

They need neither torch nor transformers, which take seconds to import and hundreds of megabytes to install.

Only `load.py` supports other model families, biases, scaled rotary positions, adapters, several files of weights,
tokenizers with a beginning-of-text token, chat templates, and other ways of scoring.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from reflectrl.core.players.base import LiveEpisode
from reflectrl.core.prompts import reflector_prompt, tokenize, words_prompt
from reflectrl.core.prompts.tokens import encode_text
from reflectrl.core.types import Sampling, Turn
from reflectrl.models.cards import CARD, check_card
from reflectrl.models.soundness import require_sound

ORDINARY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "quantization_config": None,
}
"""Required values in `config.json`. A key whose value is None must be null or missing."""

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

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Decode token ids to text."""
        return self.backend_tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)


class Cache(NamedTuple):
    """KV cache: token ids, and their keys and values in each layer, (2, heads, tokens, width)."""

    ids: Ids
    layers: tuple[np.ndarray, ...]

    def first(self, count: int) -> Cache:
        """Return the cache of the first `count` tokens."""
        return Cache(self.ids[:count], tuple(layer[:, :, :count] for layer in self.layers))


class LightModel:
    """Language model in float32. It keeps the KV cache of the last prompt, since the next often shares its prefix.

    Args:
        config: contents of `config.json`.
        weights: name in a Llama checkpoint → array.
        tokenizer: tokenizer of the model.
        context: longest sequence in tokens; the model's own limit if that is smaller.
    """

    chat = None

    def __init__(
        self, config: dict[str, Any], weights: dict[str, np.ndarray], tokenizer: LightTokenizer, context: int
    ) -> None:
        self.tokenizer, self.context = tokenizer, min(context, int(config["max_position_embeddings"]))
        self.size = sum(weight.size for weight in weights.values())
        self.heads, self.epsilon = int(config["num_attention_heads"]), float(config["rms_norm_eps"])
        self.shared_heads = int(config.get("num_key_value_heads") or self.heads)
        self.width = int(config.get("head_dim") or config["hidden_size"] // self.heads)
        theta = float(config["rope_parameters"]["rope_theta"])
        self.frequencies_D = 1.0 / theta ** (np.arange(0, self.width, 2, dtype=np.float32) / self.width)
        single = {name.removeprefix("model."): weight.astype(np.float32) for name, weight in weights.items()}
        self.embeddings_VD, self.norm_D = single["embed_tokens.weight"], single["norm.weight"]
        self.layers = [_layer(single, number) for number in range(config["num_hidden_layers"])]
        self._require_shapes(config)
        none = np.zeros((2, self.shared_heads, 0, self.width), np.float32)
        self.nothing = Cache((), (none,) * len(self.layers))
        self._latest = self.nothing

    def _require_shapes(self, config: dict[str, Any]) -> None:
        """Raise ValueError if the shapes of the weights do not match the configuration."""
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        all_heads, fewer = self.heads * self.width, self.shared_heads * self.width
        wanted = {
            "self_attn.q_proj": (all_heads, hidden),
            "self_attn.k_proj": (fewer, hidden),
            "self_attn.v_proj": (fewer, hidden),
            "self_attn.o_proj": (hidden, all_heads),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        fitting = all(layer[name].shape == shape for layer in self.layers for name, shape in wanted.items())
        if not fitting or self.embeddings_VD.shape != (config["vocab_size"], hidden):
            raise ValueError("weights of other shapes than the configuration says")

    def read(self, ids: Ids) -> tuple[np.ndarray, Cache]:
        """Run the model on a prompt; return the last hidden state (D,) and the cache. A shared prefix is reused."""
        known = self._latest
        shared = 0
        while shared < min(len(ids) - 1, len(known.ids)) and ids[shared] == known.ids[shared]:
            shared += 1
        hidden_D, cache = self.further(ids[shared:], known.first(shared))
        self._latest = cache
        return hidden_D, cache

    def further(self, ids: Ids, cache: Cache) -> tuple[np.ndarray, Cache]:
        """Run the model on tokens after a cache; return the last hidden state (D,) and the extended cache."""
        past, new = len(cache.ids), len(ids)
        positions_T = np.arange(past, past + new)
        angles_TD = positions_T[:, None].astype(np.float32) * self.frequencies_D
        turn = np.cos(angles_TD), np.sin(angles_TD)
        hidden_TS = np.arange(past + new)[None, :] > positions_T[:, None]  # causal mask: True for later positions
        x_TD = self.embeddings_VD[list(ids)]
        layers = []
        for layer, held in zip(self.layers, cache.layers, strict=True):
            attended_TD, held = self._attend(layer, self._norm(x_TD, layer["input_layernorm"]), held, turn, hidden_TS)
            x_TD = x_TD + attended_TD
            y_TD = self._norm(x_TD, layer["post_attention_layernorm"])
            gate_TI = y_TD @ layer["mlp.gate_proj"].T
            gated_TI = gate_TI / (1 + np.exp(-gate_TI)) * (y_TD @ layer["mlp.up_proj"].T)
            x_TD = x_TD + gated_TI @ layer["mlp.down_proj"].T
            layers.append(held)
        return self._norm(x_TD[-1], self.norm_D), Cache((*cache.ids, *ids), tuple(layers))

    def logits(self, hidden_D: np.ndarray, tokens: Sequence[int] | None = None) -> np.ndarray:
        """Return the logits (V,) of the next token in float64; with `tokens`, only the logits of these tokens."""
        rows = self.embeddings_VD if tokens is None else self.embeddings_VD[list(tokens)]
        logits: np.ndarray = (rows @ hidden_D).astype(np.float64)
        return logits

    def _attend(
        self,
        layer: dict[str, np.ndarray],
        x_TD: np.ndarray,
        held: np.ndarray,
        turn: tuple[np.ndarray, np.ndarray],
        hidden_TS: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Attend from the T new tokens to all S; return the output (T, D) and all keys and values (2, H, S, W)."""
        queries, keys, values = (
            (x_TD @ layer[f"self_attn.{name}_proj"].T).reshape(len(x_TD), -1, self.width).swapaxes(0, 1)
            for name in "qkv"
        )
        held = np.concatenate((held, np.stack((_turned(keys, turn), values))), axis=2)
        # Grouped-query attention: (key-value heads, query heads per key-value head, tokens, width).
        queries_HGTW = _turned(queries, turn).reshape(self.shared_heads, -1, len(x_TD), self.width)
        scores_HGTS = queries_HGTW @ held[0][:, None].swapaxes(-1, -2) / np.float32(self.width**0.5)
        scores_HGTS = np.where(hidden_TS, np.float32(-np.inf), scores_HGTS)
        weights = np.exp(scores_HGTS - scores_HGTS.max(-1, keepdims=True))
        mixed_HGTW = (weights / weights.sum(-1, keepdims=True)) @ held[1][:, None]
        mixed_TD = mixed_HGTW.reshape(self.heads, len(x_TD), self.width).swapaxes(0, 1).reshape(len(x_TD), -1)
        return mixed_TD @ layer["self_attn.o_proj"].T, held

    def _norm(self, x: np.ndarray, weight_D: np.ndarray) -> np.ndarray:
        scaled: np.ndarray = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self.epsilon)) * weight_D
        return scaled


def _layer(weights: dict[str, np.ndarray], number: int) -> dict[str, np.ndarray]:
    """Return the weights of a layer, by their names within it."""
    start = f"layers.{number}."
    return {
        name.removeprefix(start).removesuffix(".weight"): weight
        for name, weight in weights.items()
        if name.startswith(start)
    }


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
        config, about, card = (
            json.loads((folder / name).read_text(encoding="utf-8")) if (folder / name).is_file() else {}
            for name in ("config.json", "tokenizer_config.json", CARD)
        )
        if not _ordinary(config, about) or card.get("chat"):
            return None
        tokenizer = LightTokenizer(folder / "tokenizer.json", about["eos_token"])
        model = LightModel(config, load_file(folder / "model.safetensors"), tokenizer, context)
    except Exception:  # of any kind: `load_model` reports the cause better
        return None
    check_card(folder, tokenizer)
    return model


def _ordinary(config: dict[str, Any], about: dict[str, Any]) -> bool:
    rope = config.get("rope_parameters") or {}
    return (
        all(config.get(key) == value for key, value in ORDINARY.items())
        and rope.get("rope_type") == "default"
        and about.get("bos_token") is None
        and about.get("eos_token") is not None
    )


class LightReflector:
    """Reflector that decodes greedily until end-of-text: `players.Reflector` on a light model."""

    def __init__(self, model: LightModel, max_new_tokens: int) -> None:
        self.model, self.max_new_tokens = model, max_new_tokens

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
        return Turn("reflector", text, token_ids=tuple(written), logprobs=tuple(logprobs), sampling=Sampling(0.0))


class LightPolicy:
    """Policy that takes the likeliest legal action: `players.Policy` with `scoring = "trie"` on a light model."""

    def __init__(self, model: LightModel) -> None:
        self.model = model

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        return [self._turn(episode) for episode in episodes]

    def _turn(self, episode: LiveEpisode) -> Turn:
        model, actions = self.model, episode.observation.actions
        answers = [(*encode_text(model.tokenizer, f" {action}"), model.tokenizer.eos_token_id) for action in actions]
        words = words_prompt(episode.observation, episode.reflection)
        prompt = tokenize(model, words, reserve=max(map(len, answers)))
        logp = np.full(len(actions), -np.inf)
        self._spell(logp, answers, list(range(len(actions))), 0, 0.0, *model.read(prompt))
        logp -= np.logaddexp.reduce(logp)
        probs, choice = np.exp(logp), int(logp.argmax())
        return Turn(
            "policy",
            actions[choice],
            choice=choice,
            probs=tuple(round(float(p), 6) for p in probs),
            token_ids=answers[choice],
            logprobs=(float(logp[choice]),),
            entropy=float(-(probs * np.where(probs > 0, logp, 0.0)).sum()),
            sampling=Sampling(0.0),
        )

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
