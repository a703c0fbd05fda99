"""OpenAssistant's reward models on Pythia: a family that `transformers` does not know by itself.

The checkpoints hold a GPT-NeoX without its language-model head, and a linear layer on the pooled hidden states.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, GPTNeoXConfig, GPTNeoXModel
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXPreTrainedModel


class OasstConfig(GPTNeoXConfig):
    """A GPT-NeoX, and how its hidden states are pooled: "mean" over the text, or the "last" token."""

    model_type = "gpt_neox_reward_model"
    pooling: str = "last"

    def __init__(self, pooling: str = "last", **settings: Any) -> None:
        super().__init__(**{"num_labels": 1, **settings})
        self.pooling = pooling or "last"


class OasstRewardModel(GPTNeoXPreTrainedModel):
    """One number for a text, higher for a better last answer."""

    config_class = OasstConfig

    def __init__(self, config: OasstConfig) -> None:
        super().__init__(config)
        self.gpt_neox = GPTNeoXModel(config)
        self.out_proj = nn.Linear(config.hidden_size, 1)
        self.post_init()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: object) -> SequenceClassifierOutput:
        """Logits (B, 1); what is masked (padding on the right) does not count."""
        mask_BT = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        hidden_BTD = self.gpt_neox(input_ids, attention_mask=mask_BT).last_hidden_state
        lengths_B1 = mask_BT.sum(1, keepdim=True)
        if self.config.pooling == "mean":
            pooled_BD = (hidden_BTD * mask_BT[..., None]).sum(1) / lengths_B1
        else:
            pooled_BD = hidden_BTD.take_along_dim(lengths_B1[..., None] - 1, 1)[:, 0]
        return SequenceClassifierOutput(logits=self.out_proj(pooled_BD.to(self.out_proj.weight.dtype)))


@functools.cache
def register() -> None:
    """Let the loaders of `transformers` know the family."""
    AutoConfig.register(OasstConfig.model_type, OasstConfig)
    AutoModelForSequenceClassification.register(OasstConfig, OasstRewardModel)
