"""Published classifiers whose heads `transformers` does not include, loaded from their own folders.

- The classifier of offensive language of ToxiChat (Baheti et al. 2021, arXiv 2108.11830): a GPT-2 that judges every
  turn of a thread at the end-of-text token after it. Only the judgement of the last turn is used.
- The critic of ATOMIC-10x (West et al. 2022, arXiv 2110.07178), converted from Keras by `reflectrl data critic` or
  by the released code of Leftover Lunch: a RoBERTa, and a head of two layers in a file of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForSequenceClassification, RobertaConfig, RobertaModel
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.gpt2.modeling_gpt2 import GPT2Model, GPT2PreTrainedModel

from reflectrl.core.json_lines import read_json

HEAD = "custom_roberta_classification_head"
"""File of the head of the critic of ATOMIC-10x, without its ending: .safetensors, or .pt in the released code."""
THREAD_CLASSIFIER = "GPT2ForOC_S_offensive"
"""Architecture that the folder of ToxiChat's classifier names."""


class ThreadClassifier(GPT2PreTrainedModel):
    """GPT-2 with a linear layer on the hidden state of the last token: logits of safe and offensive."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        config.num_labels = 2
        self.transformer = GPT2Model(config)
        self.off_classifier = nn.Linear(config.hidden_size, 2)
        self.post_init()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: object) -> SequenceClassifierOutput:
        """Return logits (B, 2). Masked tokens (padding on the right) are ignored."""
        mask_BT = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        hidden_BTD = self.transformer(input_ids, attention_mask=mask_BT).last_hidden_state
        last_B11 = mask_BT.sum(1)[:, None, None] - 1
        return SequenceClassifierOutput(logits=self.off_classifier(hidden_BTD.take_along_dim(last_B11, 1)[:, 0]))


class AtomicCritic(RobertaModel):
    """RoBERTa with two layers on its pooled output: one logit, whose sigmoid is the probability of "valid"."""

    def __init__(self, config: RobertaConfig, width: int = 512) -> None:
        super().__init__(config)
        config.num_labels = 1
        self.dense = nn.Linear(config.hidden_size, width)
        self.out_proj = nn.Linear(width, 1)

    def forward(self, *args: Any, **fields: Any) -> Any:
        """Return logits (B, 1)."""
        pooled_BD = super().forward(*args, **fields).pooler_output
        return SequenceClassifierOutput(logits=self.out_proj(functional.gelu(self.dense(pooled_BD))))


def load_classifier(source: str, **options: Any) -> tuple[Any, Mapping[str, Any]]:
    """Load a sequence classifier, and return it with the loading information of `transformers`."""
    folder, kind = Path(source), cast(Any, AutoModelForSequenceClassification)
    architectures: Any = ()
    with suppress(OSError, ValueError, AttributeError):
        architectures = read_json(folder / "config.json").get("architectures") or ()
    if THREAD_CLASSIFIER in architectures:
        kind = cast(Any, ThreadClassifier)
        model, info = kind.from_pretrained(source, output_loading_info=True, **options)
    elif head := _critic_head(folder):
        width = len(head["dense.bias"])
        kind = cast(Any, AtomicCritic)
        model, info = kind.from_pretrained(source, width=width, output_loading_info=True, **options)
        model.load_state_dict({name: tensor.to(model.dtype) for name, tensor in head.items()}, strict=False)
        info = {**info, "missing_keys": set(info["missing_keys"]) - set(head)}
    else:
        model, info = kind.from_pretrained(source, output_loading_info=True, **options)
    return model, info


def _critic_head(folder: Path) -> dict[str, Tensor]:
    """Return the weights of a critic's head; an empty dictionary if there is no such file."""
    ours, released = folder / f"{HEAD}.safetensors", folder / f"{HEAD}.pt"
    if ours.is_file():
        return load_file(ours)
    if released.is_file():
        # The pickle may hold nothing but tensors.
        return cast("dict[str, Tensor]", torch.load(released, map_location="cpu", weights_only=True))
    return {}
