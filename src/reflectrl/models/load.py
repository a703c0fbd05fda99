"""Language models in Hugging Face format: loading, adapters, devices, saving.

`LanguageModel` is one player's view of a backbone: the whole model when every weight is trained, or one adapter among
several on a shared backbone.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.pytorch_utils import Conv1D

from reflectrl.config import ModelConfig
from reflectrl.models.precision import FLOAT32_ATTENTION, Mixed, autocast
from reflectrl.plugins import one_line
from reflectrl.types import UserError, named_seed

CARD = "reflectrl.json"


def pick_device(name: str) -> torch.device:
    """The best device at hand for "auto"; anything else as torch names it (UserError if torch does not know it)."""
    if name != "auto":
        try:
            return torch.device(name)
        except RuntimeError as error:
            raise UserError(f"unknown device {name!r}: {one_line(error)}") from error
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def fingerprint(tokenizer: Any) -> str:
    """Identifies a tokenizer by its vocabulary."""
    words = json.dumps(sorted(tokenizer.get_vocab().items()), ensure_ascii=True)
    return hashlib.sha256(words.encode()).hexdigest()[:16]


@dataclass
class LanguageModel:
    """One player's language model.

    Attributes:
        model: a `PreTrainedModel`, or the `PeftModel` that carries several players' adapters.
        adapter: the adapter of this player; None when the player owns every weight.
        context: the longest sequence in tokens.
        base: name or folder of the backbone that adapters stand on (written beside a saved adapter).
        mixed: whether `training` computes matrix products in bfloat16.
    """

    model: Any
    tokenizer: Any
    context: int
    adapter: str | None = None
    base: str = ""
    mixed: Mixed = "off"

    @property
    def core(self) -> nn.Module:
        """The Hugging Face model without the PEFT wrapper."""
        return self.model.get_base_model() if self.adapter else self.model

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def hidden_size(self) -> int:
        return int(self.core.get_input_embeddings().weight.shape[1])  # type: ignore[operator]

    def parameters(self) -> list[nn.Parameter]:
        """What a learner may change: every weight, or this player's adapter."""
        if self.adapter is None:
            return list(self.model.parameters())
        return [p for name, p in self.model.named_parameters() if f".{self.adapter}." in name]

    def activate(self) -> None:
        """Make this player's adapter the one that computes.

        PEFT's own switch also freezes every other adapter, and gradients of a forward pass that another player has
        already made would be lost; here what may be trained stays as it is.
        """
        if self.adapter is not None and self.model.active_adapter != self.adapter:
            trainable = [p for p in self.model.parameters() if p.requires_grad]
            self.model.set_adapter(self.adapter)
            self._require_gradients(trainable)

    def _require_gradients(self, parameters: list[nn.Parameter]) -> None:
        """Of these weights, and of no others."""
        self.model.requires_grad_(False)
        for parameter in parameters:
            parameter.requires_grad_(True)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Training mode within the block (dropout on, mixed precision); elsewhere the model is in evaluation mode."""
        self.model.train()
        try:
            with autocast(self.device, self.mixed):
                yield
        finally:
            self.model.eval()

    def hidden(self, ids_BT: Tensor, **cache: Any) -> Tensor:
        """Hidden states of the last layer, (B, T, D). Right padding needs no mask, since attention is causal.

        Args:
            cache: `past_key_values`, `attention_mask`, `position_ids`, `use_cache` for decoding.
        """
        self.activate()
        cache.setdefault("use_cache", False)
        output: Tensor = self.core.base_model(input_ids=ids_BT, **cache).last_hidden_state  # type: ignore[operator]
        return output

    def logits(self, hidden_ND: Tensor, rows: Tensor | None = None) -> Tensor:
        """Logits (N, V), or only the rows of the LM head asked for, (N, A): the rest of the head is never computed."""
        head = self.core.get_output_embeddings()  # type: ignore[operator]
        if rows is None:
            logits: Tensor = head(hidden_ND)
            return logits
        bias = None if getattr(head, "bias", None) is None else head.bias[rows]
        return torch.nn.functional.linear(hidden_ND, head.weight[rows], bias)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def save(self, folder: Path, **card: Any) -> None:
        """Write weights (safetensors), tokenizer and a card that names the tokenizer they belong to."""
        if self.adapter is None:
            self.model.save_pretrained(folder)
        else:
            # "auto" would ask the hub whether the backbone's vocabulary has changed.
            self.model.save_pretrained(folder, selected_adapters=[self.adapter], save_embedding_layers=False)
            self._flatten(folder)
        self.tokenizer.save_pretrained(folder)
        about = {"tokenizer": fingerprint(self.tokenizer), "base": self.base, "context": self.context, **card}
        (folder / CARD).write_text(json.dumps(about, indent=1), encoding="utf-8")

    def _flatten(self, folder: Path) -> None:
        """PEFT saves a named adapter in a sub-folder; other tools expect it at the top."""
        nested = folder / str(self.adapter)
        if nested.is_dir():
            for file in nested.iterdir():
                file.replace(folder / file.name)
            nested.rmdir()

    def frozen_copy(self, name: str = "reference") -> LanguageModel:
        """The same weights, never to be trained: a further adapter on the backbone, or a copy of the model."""
        if self.adapter is None:
            twin = copy.deepcopy(self.model).requires_grad_(False).eval()
            return replace(self, model=twin)
        twin_lm = second_player(self, name)
        twin_lm.load_weights(self.weights())
        for parameter in twin_lm.parameters():
            parameter.requires_grad_(False)
        return twin_lm

    def weights(self) -> dict[str, Tensor]:
        """A copy of this player's own weights, under names that do not contain the adapter's."""
        if self.adapter is None:
            return {name: p.detach().clone() for name, p in self.model.state_dict().items()}
        mine = ((n, p) for n, p in self.model.state_dict().items() if f".{self.adapter}." in n)
        return {n.replace(f".{self.adapter}.", ".adapter."): p.detach().clone() for n, p in mine}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Set what `weights` returned."""
        if self.adapter is not None:
            weights = {n.replace(".adapter.", f".{self.adapter}."): p for n, p in weights.items()}
        with torch.no_grad():
            own = self.model.state_dict()
            for name, value in weights.items():
                own[name].copy_(value)


def load_model(source: str | Path, config: ModelConfig, adapter: str | None = None) -> LanguageModel:
    """Load a causal language model by folder, or by the name of a hub model that is already on this machine.

    Nothing is downloaded. A folder that holds a saved adapter is loaded onto its backbone.

    Args:
        adapter: name of the player's adapter: a fresh one where `config.lora_rank` asks for LoRA.

    Raises:
        UserError: nothing loadable is there, or the weights and the tokenizer do not belong together.
    """
    folder = Path(source)
    if (folder / "adapter_config.json").is_file():
        return _load_adapter(folder, config, adapter or "policy")
    owner = _load_backbone(str(source), config)
    _check_card(folder, owner.tokenizer)
    if config.lora_rank == 0 or adapter is None:
        return owner
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules="all-linear",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in owner.model.modules()),  # GPT-2's linear layers
        task_type="CAUSAL_LM",
    )
    with _adapter_seed(adapter):
        return _player(owner, get_peft_model(owner.model, lora, adapter_name=adapter), adapter)


def second_player(first: LanguageModel, adapter: str, folder: Path | None = None) -> LanguageModel:
    """A further player on the backbone of `first`: a fresh adapter, or one loaded from a folder.

    Raises:
        UserError: what the folder holds does not fit the backbone.
    """
    if first.adapter is None:
        raise ValueError("only adapters share a backbone")
    if folder is not None:
        _check_card(folder, first.tokenizer)
        with _fitting(folder, first.base):
            first.model.load_adapter(str(folder), adapter, is_trainable=True)
    elif adapter not in first.model.peft_config:
        with _adapter_seed(adapter):
            first.model.add_adapter(adapter, copy.deepcopy(first.model.peft_config[first.adapter]))
    return _player(first, first.model, adapter)


def _player(first: LanguageModel, peft: Any, adapter: str) -> LanguageModel:
    """The player that an adapter makes of a backbone; its weights may be trained."""
    player = replace(first, model=peft.eval(), adapter=adapter)
    for parameter in player.parameters():
        parameter.requires_grad_(True)
    return player


@contextmanager
def _adapter_seed(adapter: str) -> Iterator[None]:
    """Fresh adapters are the same in every process, and drawing them moves no other stream of random numbers."""
    with torch.random.fork_rng():
        torch.manual_seed(named_seed("adapter", adapter))
        yield


def _load_backbone(source: str, config: ModelConfig) -> LanguageModel:
    device = pick_device(config.device)
    options = {"trust_remote_code": config.trust_remote_code, "local_files_only": True}
    if not Path(source).exists():
        about = "is neither a folder nor the name of a model on this machine (to fetch one: hf download NAME)"
    else:
        about = "cannot be loaded as a Hugging Face model"
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, config.dtype), **options)
        model.to(device)
    except Exception as error:  # the loaders raise many kinds; all mean "this is not a model I can load"
        raise UserError(f"model {source!r} {about}: {one_line(error)[:200]}") from error
    if tokenizer.eos_token_id is None:
        raise UserError(f"model {source!r}: its tokenizer has no end-of-text token")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise UserError(f"model {source!r} belongs to another tokenizer ({rows} embeddings, {len(tokenizer)} tokens)")
    if device.type == "cpu" and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(FLOAT32_ATTENTION)
    return LanguageModel(
        model.eval(), tokenizer, _context(model.config, config), base=source, mixed=config.mixed_precision
    )


def _load_adapter(folder: Path, config: ModelConfig, adapter: str) -> LanguageModel:
    base = _read_json(folder / "adapter_config.json").get("base_model_name_or_path")
    owner = _load_backbone(str(base), config)
    _check_card(folder, owner.tokenizer)
    with _fitting(folder, owner.base):
        peft = PeftModel.from_pretrained(owner.model, str(folder), adapter_name=adapter, is_trainable=True)
    return _player(owner, peft, adapter)


@contextmanager
def _fitting(folder: Path, base: str) -> Iterator[None]:
    """Whatever PEFT raises within the block is the user's mistake: another backbone, or a broken folder."""
    try:
        yield
    except Exception as error:
        raise UserError(f"adapter {folder} does not fit the model {base!r}: {one_line(error)[:200]}") from error


def _check_card(folder: Path, tokenizer: Any) -> None:
    """Refuse weights that were trained with another tokenizer than the one at hand."""
    if not (folder / CARD).is_file():
        return
    wanted = _read_json(folder / CARD).get("tokenizer")
    if wanted != fingerprint(tokenizer):
        raise UserError(f"checkpoint {folder} belongs to another tokenizer ({wanted}, not {fingerprint(tokenizer)})")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} must hold a JSON object")
    return found


def _context(model: Any, config: ModelConfig) -> int:
    """The longest sequence: the recipe's, within the model's positions and within a sliding window if it has one.

    A window counts places in the batch, padding included, so beyond it a row would depend on its company.
    """
    limits = (getattr(model, name, None) for name in ("max_position_embeddings", "sliding_window"))
    return min([config.context, *(int(limit) for limit in limits if limit)])
