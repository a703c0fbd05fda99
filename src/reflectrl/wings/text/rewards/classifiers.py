"""Sequence classifiers in Hugging Face's format: loading, and batched scoring of texts."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, GPTNeoXConfig, GPTNeoXModel
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXPreTrainedModel

from reflectrl.core.plugins import one_line
from reflectrl.core.types import UserError
from reflectrl.models.load import pick_device, refuse_kernels
from reflectrl.models.soundness import require_sound
from reflectrl.models.strangers import hushed, within_weights
from reflectrl.wings.text.rewards.published import ThreadClassifier, load_classifier

Text = str | tuple[str, str]
"""One text, or two texts that the tokenizer joins with its own separators."""

NO_TOKEN = -1
UNLIMITED = 10**6
"""Threshold of `model_max_length`. Above it, a tokenizer has no real limit."""


class Classifier:
    """A sequence classifier on a device. A text's logits do not depend on the rest of its batch.

    Attributes:
        is_decoder: True for a model that reads from left to right, and judges a text at its last token.

    Args:
        source: folder, or name of a hub model. Without `download`, only this machine is searched.
        labels: number of labels that the model must have, or the numbers that it may have.
        what: user of the classifier ("reward 'fluency'"), for error messages.
        cut: end at which a text that is too long is truncated.

    Raises:
        UserError: no loadable model is there, its head is not trained, or it has another number of labels.
    """

    def __init__(
        self,
        source: str,
        labels: int | tuple[int, ...],
        what: str,
        device: str = "auto",
        dtype: Literal["float32", "bfloat16"] = "float32",
        cut: Literal["left", "right"] = "right",
        download: bool = False,
    ) -> None:
        register()
        model, self.tokenizer = _load(source, what, dtype, download)
        allowed = (labels,) if isinstance(labels, int) else labels
        if model.config.num_labels not in allowed:
            required = " or ".join(map(str, allowed))
            raise UserError(
                f"{what}: the model {source!r} has {model.config.num_labels} labels; it must have {required}"
            )
        self.tokenizer.truncation_side, self.tokenizer.padding_side = cut, "right"
        self.model = model.to(pick_device(device)).eval()
        self.is_decoder = hasattr(model, "score") or isinstance(model, ThreadClassifier)  # the library's name
        # A decoder's logits are read at the last token that is not padding. If padding has no token of its own (as in
        # DialogRPT), nothing counts as padding, and a batch holds only texts of equal length.
        pad = self.tokenizer.pad_token_id
        self._pads = pad is not None and pad != self.tokenizer.eos_token_id
        model.config.pad_token_id = pad if self._pads else NO_TOKEN
        positions = getattr(model.config, "max_position_embeddings", None) or UNLIMITED
        if "roberta" in model.config.model_type:  # its positions start after the padding index
            positions -= model.config.pad_token_id + 1
        self.limit = int(min(self.tokenizer.model_max_length, positions, UNLIMITED))
        self.fingerprint = _fingerprint(source, model.config)

    @torch.inference_mode()
    def logits(self, texts: Sequence[Text], batch_size: int) -> Tensor:
        """Return logits (texts, labels), float32, on the CPU."""
        rows: list[Any] = []
        for text in texts:
            parts = (text,) if isinstance(text, str) else text
            rows.append(self.tokenizer(*parts, truncation=True, max_length=self.limit))
        logits_TL = torch.empty(len(texts), self.model.config.num_labels)
        for batch in self._batches([len(row["input_ids"]) for row in rows], batch_size):
            fields = self.tokenizer.pad([rows[i] for i in batch], padding=self._pads, return_tensors="pt")
            logits_TL[batch] = self.model(**fields.to(self.model.device)).logits.float().cpu()
        return logits_TL

    def _batches(self, lengths: Sequence[int], size: int) -> Iterator[list[int]]:
        """Yield batches of text indices, in order of length."""
        batch: list[int] = []
        for i in sorted(range(len(lengths)), key=lengths.__getitem__):
            if batch and (len(batch) == size or (not self._pads and lengths[i] != lengths[batch[0]])):
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch


def _load(source: str, what: str, dtype: str, download: bool) -> tuple[Any, Any]:
    options: dict[str, Any] = {"local_files_only": not download, "trust_remote_code": False}  # unset, it would ask
    require_sound(Path(source))
    try:
        refuse_kernels(source, local_files_only=not download)
        weights = within_weights(Path(source)) if Path(source).is_dir() else nullcontext()
        with hushed(), weights:
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
            model, info = load_classifier(source, dtype=getattr(torch, dtype), **options)
    except Exception as error:  # the loaders raise many kinds; all mean "this is not a model I can load"
        if not Path(source).exists() and not download:
            problem = "is neither a folder nor the name of a model on this machine (to fetch one: hf download NAME)"
            raise UserError(f"{what}: model {source!r} {problem}") from error
        raise UserError(f"{what}: model {source!r} cannot be loaded: {one_line(error)[:200]}") from error
    if info["missing_keys"]:  # such weights were drawn at random
        raise UserError(f"{what}: model {source!r} is not a trained classifier: it lacks {min(info['missing_keys'])}")
    return model, tokenizer


def _fingerprint(source: str, config: Any) -> str:
    """Return a hash of the weights: by commit for a hub model, by content for a folder."""
    digest = hashlib.sha256(str(getattr(config, "_commit_hash", None) or "").encode())
    for path in sorted(Path(source).glob("*")) if Path(source).is_dir() else []:
        if path.is_file():
            digest.update(path.name.encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"{source if not Path(source).is_dir() else ''}:{digest.hexdigest()[:16]}"


class OasstConfig(GPTNeoXConfig):
    """Configuration of a GPT-NeoX with pooled hidden states: "mean" over the text, or the "last" token."""

    model_type = "gpt_neox_reward_model"
    pooling: str = "last"

    def __init__(self, pooling: str = "last", **settings: Any) -> None:
        super().__init__(**{"num_labels": 1, **settings})
        self.pooling = pooling or "last"


class OasstRewardModel(GPTNeoXPreTrainedModel):
    """OpenAssistant's reward models on Pythia, which `transformers` does not include: a GPT-NeoX without language-model
    head, and a linear layer on the pooled hidden states. A text gets one number, higher for a better last answer.
    """

    config_class = OasstConfig

    def __init__(self, config: OasstConfig) -> None:
        super().__init__(config)
        self.gpt_neox = GPTNeoXModel(config)
        self.out_proj = nn.Linear(config.hidden_size, 1)
        self.post_init()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: object) -> SequenceClassifierOutput:
        """Return logits (B, 1). Masked tokens (padding on the right) are ignored."""
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
    """Register OpenAssistant's reward models with the loaders of `transformers`."""
    AutoConfig.register(OasstConfig.model_type, OasstConfig)
    AutoModelForSequenceClassification.register(OasstConfig, OasstRewardModel)
