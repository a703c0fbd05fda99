"""The family `canon_llama`: Llama blocks that begin with a short causal convolution, so that small models can read.

Each token first adds a weighted sum of itself and of the tokens just before it, one weight per channel and distance.
With it, a model of a few layers learns to see that two words are the same; without it, models of this size do not
(docs/results/reading.md). The convolution is the Canon layer of Allen-Zhu, "Physics of Language Models: Part 4.1"
(arXiv 2512.17351), at its position A, before attention. All else is Llama's, except that rotary positions may turn a
part of each head only, and that logits are divided by `logits_scaling`.

The classes are registered with transformers, so a saved folder loads wherever this package has been imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Cache,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    apply_rotary_pos_emb,
    eager_attention_forward,
)

from reflectrl.models.lookback import Lookback


class CanonLlamaConfig(LlamaConfig):
    """Configuration of `CanonLlamaForCausalLM`: Llama's, and the keys below.

    Args:
        canon_taps: number of tokens that a convolution sees, the current one included; at least 2.
        rotary_share: share of each head's rotations that turn, the fastest first; 0 for no positions.
        logits_scaling: divisor of the logits. Embeddings of standard deviation 1 are tied to the head.

    Raises:
        ValueError: `canon_taps` is below 2.
    """

    model_type = "canon_llama"

    def __init__(
        self,
        canon_taps: int = 4,
        rotary_share: float = 0.0,
        logits_scaling: float = 8.0,
        tie_word_embeddings: bool = True,
        **rest: Any,
    ) -> None:
        if canon_taps < 2:
            raise ValueError(f"canon_taps must be at least 2, not {canon_taps}")
        self.canon_taps = canon_taps
        self.rotary_share, self.logits_scaling = rotary_share, logits_scaling
        super().__init__(tie_word_embeddings=tie_word_embeddings, **rest)


_lookback: ContextVar[Lookback | None] = ContextVar("lookback", default=None)
"""Convolutions of the engine's current pass over packed tokens; None outside of a pass."""


@contextmanager
def looking_back(lookback: Lookback | None) -> Iterator[None]:
    """Make layers use these convolutions within the block; None means their own."""
    token = _lookback.set(lookback)
    try:
        yield
    finally:
        _lookback.reset(token)


def present_lookback() -> Lookback | None:
    """Return the convolutions in use now; None outside of a packed pass."""
    return _lookback.get()


class ShortConvolution(nn.Module):
    """Causal depthwise convolution over the last few tokens, added to its input.

    Attributes:
        weight: (D, 1, K), as in `torch.nn.Conv1d`: the last tap is for the token itself.
    """

    def __init__(self, width: int, taps: int, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.weight = nn.Parameter(torch.empty(width, 1, taps))

    def forward(self, x_BTD: Tensor, before_BPD: Tensor | None = None) -> Tensor:
        """Return the input plus the weighted sum of each token and the tokens before it.

        Args:
            before_BPD: inputs of the tokens before these; None for the beginning of the sequences.
        """
        lookback = present_lookback()
        if lookback is not None:
            return lookback(self.layer, self.weight, x_BTD[0])[None]
        missing_BKD = x_BTD.new_zeros(len(x_BTD), self.weight.shape[-1] - 1, x_BTD.shape[2])
        joined_BTD = torch.cat([missing_BKD, x_BTD], 1)
        if before_BPD is not None:
            joined_BTD = torch.cat([missing_BKD, before_BPD, x_BTD], 1)[:, before_BPD.shape[1] :]
        summed_BDT = nn.functional.conv1d(joined_BTD.transpose(1, 2), self.weight, groups=len(self.weight))
        return x_BTD + summed_BDT.transpose(1, 2)


class PartialRotary(nn.Module):
    """Rotary positions (Su et al. 2021) for the fastest share of the frequencies. The other features do not turn."""

    def __init__(self, config: CanonLlamaConfig) -> None:
        super().__init__()
        self.width = int(config.head_dim or config.hidden_size // config.num_attention_heads)
        self.share = config.rotary_share
        self.theta = 10_000.0

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines (B, T, W) of the positions (B, T), in the precision of `x`."""
        pairs = torch.arange(self.width // 2, device=x.device)
        frequencies = self.theta ** (-2.0 * pairs / self.width) * (pairs < self.share * self.width / 2)
        angles = position_ids[..., None].float() * frequencies.repeat(2)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class CanonLlamaAttention(LlamaAttention):
    """Llama's attention behind a short convolution.

    A cache must hold the inputs of the convolution as well. They are kept as further features of the values, so any
    cache of transformers that stores all tokens will do.
    """

    def __init__(self, config: CanonLlamaConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.canon = ShortConvolution(config.hidden_size, config.canon_taps, layer_idx)

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        token_mask: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output (B, T, D) of attention, and its weights if the implementation gives any."""
        if token_mask is not None:  # padding on the left counts as nothing
            hidden_states = hidden_states * token_mask[:, -hidden_states.shape[1] :, None].to(hidden_states.dtype)
        looked = self.canon(hidden_states, self._inputs_before(past_key_values))
        heads = (*hidden_states.shape[:-1], -1, self.head_dim)
        query, key, value = (
            project(looked).view(heads).transpose(1, 2) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        if past_key_values is not None:
            inputs = hidden_states.view(*hidden_states.shape[:-1], key.shape[1], -1).transpose(1, 2)
            key, value = past_key_values.update(key, torch.cat([value, inputs], -1), self.layer_idx)
            value = value[..., : self.head_dim]
        attend: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        dropout = self.attention_dropout if self.training else 0.0
        output, weights = attend(
            self, query, key, value, attention_mask, dropout=dropout, scaling=self.scaling, **options
        )
        return self.o_proj(output.reshape((*hidden_states.shape[:-1], -1))), weights

    def _inputs_before(self, cache: Cache | None) -> Tensor | None:
        """Return the inputs (B, P, D) of the tokens in a cache; None if it is new."""
        if cache is None or len(cache.layers) <= self.layer_idx:
            return None
        values: Tensor | None = getattr(cache.layers[self.layer_idx], "values", None)
        if values is None:
            return None
        return values[..., self.head_dim :].transpose(1, 2).flatten(2)


class CanonLlamaDecoderLayer(LlamaDecoderLayer):
    """Llama's block with a convolution before attention."""

    def __init__(self, config: CanonLlamaConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.self_attn = CanonLlamaAttention(config, layer_idx)


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
        self.rotary_emb: nn.Module = PartialRotary(config)  # type: ignore[assignment]
        self.post_init()

    def forward(self, *inputs: Any, attention_mask: Tensor | None = None, **options: Any) -> BaseModelOutputWithPast:
        """Return hidden states (B, T, D). See `LlamaModel.forward`."""
        if attention_mask is not None and attention_mask.ndim == 2:
            options["token_mask"] = attention_mask
        return super().forward(*inputs, attention_mask=attention_mask, **options)


class CanonLlamaForCausalLM(_Initialised, LlamaForCausalLM):
    """Causal language model of the family."""

    config_class = CanonLlamaConfig

    def __init__(self, config: CanonLlamaConfig) -> None:
        super().__init__(config)
        self.model = CanonLlamaModel(config)
        self.post_init()

    def forward(
        self, input_ids: Tensor | None = None, logits_to_keep: int = 0, **options: Any
    ) -> CausalLMOutputWithPast:
        """Return logits (B, T, V)."""
        output = self.model(input_ids=input_ids, **options)
        last = output.last_hidden_state[:, -logits_to_keep:]
        return CausalLMOutputWithPast(
            logits=self.lm_head(last) / self.config.logits_scaling,
            past_key_values=output.past_key_values,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )


AutoConfig.register(CanonLlamaConfig.model_type, CanonLlamaConfig)
AutoModelForCausalLM.register(CanonLlamaConfig, CanonLlamaForCausalLM)
