"""Small Llama-shaped models for playing, loaded without the transformers library: importing that takes three seconds,
which is most of what a question to an agent would cost.

Whatever is out of the ordinary (other families, biases, scaled rotary positions, adapters, several files of weights,
tokenizers with a beginning-of-text token) is left to `load.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from reflectrl.models.lm import LanguageModel, check_card
from reflectrl.models.strangers import require_sound, within_weights

ORDINARY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "quantization_config": None,
}
"""What `config.json` has to say, or leave out where the value is None."""


def load_light(folder: Path, context: int) -> LanguageModel | None:
    """A player's model, frozen, in float32 on the CPU; None if only `load_model` can load what the folder holds.

    Args:
        context: longest sequence in tokens; the model's own limit if that is smaller.

    Raises:
        UserError: the weights were trained with another tokenizer, or a file is not what was written there.
    """
    require_sound(folder)
    try:
        config, about = (
            json.loads((folder / name).read_text(encoding="utf-8")) for name in ("config.json", "tokenizer_config.json")
        )
        if not _ordinary(config, about):
            return None
        tokenizer = LightTokenizer(folder / "tokenizer.json", about["eos_token"])
        with within_weights(folder):
            model = LightLlama(config)
        saved = load_file(folder / "model.safetensors")  # without the head, which is the embedding
        model.load_state_dict({"lm_head.weight": saved["model.embed_tokens.weight"], **saved})
    except Exception:  # many kinds; whatever is wrong with it, `load_model` says it better
        return None
    check_card(folder, tokenizer)
    model.requires_grad_(False).eval()
    return LanguageModel(model, tokenizer, min(context, model.positions), None, str(folder))


def _ordinary(config: dict[str, Any], about: dict[str, Any]) -> bool:
    rope = config.get("rope_parameters") or {}
    return (
        all(config.get(key) == value for key, value in ORDINARY.items())
        and rope.get("rope_type") == "default"
        and about.get("bos_token") is None
        and about.get("eos_token") is not None
    )


class LightTokenizer:
    """The part of a Hugging Face tokenizer that players use.

    Args:
        path: `tokenizer.json`.
        end: the end-of-text token.
    """

    bos_token_id = None

    def __init__(self, path: Path, end: str) -> None:
        self.backend_tokenizer = Tokenizer.from_file(str(path))
        self.backend_tokenizer.no_padding()
        self.backend_tokenizer.no_truncation()
        self.eos_token_id: int = self.get_vocab()[end]

    def get_vocab(self) -> dict[str, int]:
        """Token → number."""
        return self.backend_tokenizer.get_vocab()

    def encode(self, text: str, add_special_tokens: bool = False, split_special_tokens: bool = False) -> list[int]:
        """The tokens of a text."""
        self.backend_tokenizer.encode_special_tokens = split_special_tokens
        return self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of tokens."""
        return self.backend_tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)


class LightLlama(nn.Module):
    """The weights of a Llama-shaped model under the names that they are saved by; `forward.py` computes with them.

    Args:
        config: what `config.json` says.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = SimpleNamespace(**{"num_key_value_heads": None, "head_dim": None, **config})
        self.positions = int(config["max_position_embeddings"])
        embeddings = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.model = _module(
            embed_tokens=embeddings,
            layers=nn.ModuleList([_layer(config) for _ in range(config["num_hidden_layers"])]),
            norm=_norm(config),
            rotary_emb=_Rotary(_head_dim(config), float(config["rope_parameters"]["rope_theta"])),
        )
        self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)
        self.lm_head.weight = embeddings.weight

    @property
    def base_model(self) -> nn.Module:
        """Everything below the head."""
        return self.model

    def get_input_embeddings(self) -> nn.Module:
        """(V, D)."""
        return self.model.embed_tokens  # type: ignore[return-value]

    def get_output_embeddings(self) -> nn.Module:
        """(V, D), the same weights."""
        return self.lm_head


def _module(**parts: Any) -> nn.Module:
    """A module that only holds others, and what else has to be said of them."""
    made = nn.Module()
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def _layer(config: dict[str, Any]) -> nn.Module:
    """Attention, gated MLP, and the norms before them."""
    width, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    head_dim, fewer = _head_dim(config), config.get("num_key_value_heads") or heads
    attention = _module(
        q_proj=nn.Linear(width, heads * head_dim, bias=False),
        k_proj=nn.Linear(width, fewer * head_dim, bias=False),
        v_proj=nn.Linear(width, fewer * head_dim, bias=False),
        o_proj=nn.Linear(heads * head_dim, width, bias=False),
        head_dim=head_dim,
    )
    mlp = _module(
        gate_proj=nn.Linear(width, inner, bias=False),
        up_proj=nn.Linear(width, inner, bias=False),
        down_proj=nn.Linear(inner, width, bias=False),
        act_fn=nn.functional.silu,
    )
    norms = {"input_layernorm": _norm(config), "post_attention_layernorm": _norm(config)}
    return _module(self_attn=attention, mlp=mlp, **norms)


def _norm(config: dict[str, Any]) -> nn.Module:
    weight = nn.Parameter(torch.ones(config["hidden_size"]))
    return _module(weight=weight, variance_epsilon=float(config["rms_norm_eps"]))


class _Rotary(nn.Module):
    """Su et al. 2021: the angles by which positions turn pairs of numbers."""

    def __init__(self, width: int, theta: float) -> None:
        super().__init__()
        self.frequencies_D = 1.0 / theta ** (torch.arange(0, width, 2).float() / width)

    def forward(self, x_1ND: Tensor, positions_1N: Tensor) -> tuple[Tensor, Tensor]:
        angles_1ND = positions_1N[..., None].float() * self.frequencies_D
        both_1ND = torch.cat((angles_1ND, angles_1ND), dim=-1)
        return both_1ND.cos(), both_1ND.sin()


def _head_dim(config: dict[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
