"""Sequence classifiers in Hugging Face format: loading, and scoring of texts in batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from reflectrl.models.load import pick_device, refuse_kernels
from reflectrl.plugins import one_line
from reflectrl.types import UserError
from reflectrl.wings.text.rewards.oasst import register

Text = str | tuple[str, str]
"""One text, or two that the tokenizer joins in its own way."""

NO_TOKEN = -1
UNLIMITED = 10**6
"""A tokenizer that says more than this has no limit of its own."""


class Classifier:
    """A sequence classifier on a device. A text's logits do not depend on the texts beside it.

    Args:
        source: folder, or name of a hub model; looked for on this machine only, unless `download`.
        labels: the number of labels that it must have.
        what: who asks for it ("reward 'fluency'"), for messages.
        cut: which end of a text that is too long is left out.

    Raises:
        UserError: nothing loadable is there, its head is not trained, or it has another number of labels.
    """

    def __init__(
        self,
        source: str,
        labels: int,
        what: str,
        device: str = "auto",
        dtype: Literal["float32", "bfloat16"] = "float32",
        cut: Literal["left", "right"] = "right",
        download: bool = False,
    ) -> None:
        register()
        model, self.tokenizer = _load(source, what, dtype, download)
        if model.config.num_labels != labels:
            raise UserError(f"{what}: the model {source!r} has {model.config.num_labels} labels; it must have {labels}")
        self.tokenizer.truncation_side, self.tokenizer.padding_side = cut, "right"
        self.model = model.to(pick_device(device)).eval()
        self._pads = _may_pad(model, self.tokenizer)
        self.limit = _limit(model.config, self.tokenizer)
        self.fingerprint = _fingerprint(source, model.config)

    @torch.inference_mode()
    def logits(self, texts: Sequence[Text], batch_size: int) -> Tensor:
        """Logits (texts, labels), float32, on the CPU."""
        rows: list[Any] = [self._encode(text) for text in texts]
        logits_TL = torch.empty(len(texts), self.model.config.num_labels)
        for batch in self._batches([len(row["input_ids"]) for row in rows], batch_size):
            fields = self.tokenizer.pad([rows[i] for i in batch], padding=self._pads, return_tensors="pt")
            logits_TL[batch] = self.model(**fields.to(self.model.device)).logits.float().cpu()
        return logits_TL

    def _encode(self, text: Text) -> Any:
        parts = (text,) if isinstance(text, str) else text
        return self.tokenizer(*parts, truncation=True, max_length=self.limit)

    def _batches(self, lengths: Sequence[int], size: int) -> Iterator[list[int]]:
        """Numbers of texts, those of like length together."""
        batch: list[int] = []
        for i in sorted(range(len(lengths)), key=lengths.__getitem__):
            if batch and (len(batch) == size or (not self._pads and lengths[i] != lengths[batch[0]])):
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch


def _load(source: str, what: str, dtype: str, download: bool) -> tuple[Any, Any]:
    options: dict[str, Any] = {"local_files_only": not download, "trust_remote_code": False}  # unsaid, it would ask
    try:
        refuse_kernels(source, local_files_only=not download)
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        model, info = AutoModelForSequenceClassification.from_pretrained(
            source, dtype=getattr(torch, dtype), output_loading_info=True, **options
        )
    except Exception as error:  # the loaders raise many kinds; all mean "this is not a model I can load"
        if not Path(source).exists() and not download:
            about = "is neither a folder nor the name of a model on this machine (to fetch one: hf download NAME)"
            raise UserError(f"{what}: model {source!r} {about}") from error
        raise UserError(f"{what}: model {source!r} cannot be loaded: {one_line(error)[:200]}") from error
    if info["missing_keys"]:  # such weights were drawn at random
        raise UserError(f"{what}: model {source!r} is no trained classifier: it has no {min(info['missing_keys'])}")
    return model, tokenizer


def _may_pad(model: Any, tokenizer: Any) -> bool:
    """Whether shorter texts may be padded; tells the model, too.

    A decoder's verdict is read off the last token that is no padding. Where padding has no token of its own (as in
    DialogRPT), nothing counts as padding, and a batch holds texts of one length.
    """
    pad = tokenizer.pad_token_id
    pads = pad is not None and pad != tokenizer.eos_token_id
    model.config.pad_token_id = pad if pads else NO_TOKEN
    return pads


def _limit(config: Any, tokenizer: Any) -> int:
    """The longest text in tokens."""
    positions = getattr(config, "max_position_embeddings", None) or UNLIMITED
    if "roberta" in config.model_type:  # its positions begin behind the padding's
        positions -= config.pad_token_id + 1
    return int(min(tokenizer.model_max_length, positions, UNLIMITED))


def _fingerprint(source: str, config: Any) -> str:
    """Identifies weights: a hub model by its commit, a folder by its content."""
    digest = hashlib.sha256(str(getattr(config, "_commit_hash", None) or "").encode())
    for path in sorted(Path(source).glob("*")) if Path(source).is_dir() else []:
        if path.is_file():
            digest.update(path.name.encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"{source if not Path(source).is_dir() else ''}:{digest.hexdigest()[:16]}"
