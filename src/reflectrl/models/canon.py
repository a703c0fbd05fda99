"""The family `canon_llama`: Llama blocks that begin with a short causal convolution, so that small models can read.

Each token first adds a weighted sum of itself and of the tokens just before it, one weight per channel and distance.
With it, a model of a few layers learns to see that two words are the same; without it, models of this size do not
(docs/results/reading.md). The convolution is the Canon layer of Allen-Zhu, "Physics of Language Models: Part 4.1"
(arXiv 2512.17351), at its positions A (before attention) and C (before the MLP). All else is Llama's, except that
rotary positions may turn a part of each head only, and that logits are divided by `logits_scaling`.

The classes are registered with transformers, so a saved folder loads wherever this package has been imported.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, LlamaModel, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.llama.modeling_llama import LlamaDecoderLayer


class CanonLlamaConfig(LlamaConfig):
    """Configuration of `CanonLlamaForCausalLM`: Llama's, and the keys below.

    Args:
        canon_taps: number of tokens that a convolution sees, the current one included.
        canon_positions: where the convolutions are: "A" before attention, "C" before the MLP.
        rotary_share: share of each head's rotations that turn, the fastest first; 0 for no positions.
        logits_scaling: divisor of the logits. Embeddings of standard deviation 1 are tied to the head.
    """

    model_type = "canon_llama"

    def __init__(
        self,
        canon_taps: int = 4,
        canon_positions: str = "AC",
        rotary_share: float = 0.0,
        logits_scaling: float = 8.0,
        tie_word_embeddings: bool = True,
        **rest: Any,
    ) -> None:
        self.canon_taps, self.canon_positions = canon_taps, canon_positions
        self.rotary_share, self.logits_scaling = rotary_share, logits_scaling
        super().__init__(tie_word_embeddings=tie_word_embeddings, **rest)


class ShortConvolution(nn.Module):
    """Causal depthwise convolution over the last few tokens, added to its input.

    Attributes:
        weight: (D, 1, K), as in `torch.nn.Conv1d`: the last tap is for the token itself.
    """

    def __init__(self, width: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, 1, taps))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the input plus the weighted sum of each token and the tokens before it."""
        weight_KD = self.weight[:, 0].t().flip(0)
        y_BTD = x_BTD * (1 + weight_KD[0])
        for distance in range(1, len(weight_KD)):
            earlier_BTD = nn.functional.pad(x_BTD, (0, 0, distance, 0))[:, : x_BTD.shape[1]]
            y_BTD = y_BTD + earlier_BTD * weight_KD[distance]
        return y_BTD


class PartialRotary(nn.Module):
    """Rotary positions (Su et al. 2021) for the fastest share of the frequencies. The other features do not turn."""

    def __init__(self, config: CanonLlamaConfig) -> None:
        super().__init__()
        self.width = config.hidden_size // config.num_attention_heads
        self.share = config.rotary_share
        self.theta = 10_000.0

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines (B, T, W) of the positions (B, T), in the precision of `x`."""
        pairs = torch.arange(self.width // 2, device=x.device)
        frequencies = self.theta ** (-2.0 * pairs / self.width) * (pairs < self.share * self.width / 2)
        angles = position_ids[..., None].float() * frequencies.repeat(2)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class CanonLlamaDecoderLayer(LlamaDecoderLayer):
    """Llama's block with convolutions after its norms."""

    def __init__(self, config: CanonLlamaConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        width, taps = config.hidden_size, config.canon_taps
        self.canon_a = ShortConvolution(width, taps) if "A" in config.canon_positions else nn.Identity()
        self.canon_c = ShortConvolution(width, taps) if "C" in config.canon_positions else nn.Identity()

    def forward(self, hidden_states: Tensor, **options: Any) -> Tensor:
        """Return the block's output (B, T, D)."""
        attended, _ = self.self_attn(hidden_states=self.canon_a(self.input_layernorm(hidden_states)), **options)
        hidden_states = hidden_states + attended
        return hidden_states + self.mlp(self.canon_c(self.post_attention_layernorm(hidden_states)))


class _Initialised(PreTrainedModel):
    """Initial weights under which a small model reads before it memorises."""

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            bound = module.in_features**-0.5
            nn.init.uniform_(module.weight, -bound, bound)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight)
        elif isinstance(module, ShortConvolution):
            nn.init.normal_(module.weight, std=module.weight.shape[-1] ** -0.5)
        else:
            super()._init_weights(module)


class CanonLlamaModel(_Initialised, LlamaModel):
    """The layers of `CanonLlamaForCausalLM`."""

    config_class = CanonLlamaConfig

    def __init__(self, config: CanonLlamaConfig) -> None:
        super().__init__(config)
        self.layers = nn.ModuleList(CanonLlamaDecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.rotary_emb = PartialRotary(config)
        self.post_init()


class CanonLlamaForCausalLM(_Initialised, LlamaForCausalLM):
    """Causal language model of the family. It keeps no KV cache of its own; the package's engine does."""

    config_class = CanonLlamaConfig

    def __init__(self, config: CanonLlamaConfig) -> None:
        super().__init__(config)
        self.model = CanonLlamaModel(config)
        self.post_init()

    def forward(
        self, input_ids: Tensor | None = None, logits_to_keep: int = 0, **options: Any
    ) -> CausalLMOutputWithPast:
        """Return logits (B, T, V)."""
        options |= {"use_cache": False, "past_key_values": None}
        hidden = self.model(input_ids=input_ids, **options).last_hidden_state
        return CausalLMOutputWithPast(logits=self.lm_head(hidden[:, -logits_to_keep:]) / self.config.logits_scaling)


AutoConfig.register(CanonLlamaConfig.model_type, CanonLlamaConfig)
AutoModelForCausalLM.register(CanonLlamaConfig, CanonLlamaForCausalLM)
