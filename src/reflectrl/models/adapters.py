"""Saved adapters: read their settings, and prepare a backbone so that they fit it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from reflectrl.core.plugins import one_line
from reflectrl.core.types import UserError
from reflectrl.models.cards import read_json
from reflectrl.models.lm import adapter_seed

SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""PEFT's files."""

VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
"""Vocabulary files. A tokenizer needs at least one of them beside its settings."""

VIRTUAL = ("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "CPT")
"""Kinds of adapters that put virtual tokens or keys before the prompt and leave the layers unchanged."""


class SavedEmbeddings(NamedTuple):
    """Input embeddings in an adapter's folder.

    Attributes:
        rows: vocabulary size with which the adapter was trained; 0 if the folder does not say.
        key: name of the tensor that holds all embeddings; "" if the folder has none.
        replaces: True if the embeddings belong to the adapter alone (`modules_to_save`). The backbone keeps its own.
    """

    rows: int = 0
    key: str = ""
    replaces: bool = False


def is_adapter(source: str | Path) -> bool:
    """Return whether a folder holds a saved adapter."""
    return (Path(source) / SETTINGS).is_file()


def backbone_of(source: str | Path) -> str:
    """Return the backbone of a saved adapter. Any other source is returned unchanged."""
    return str(adapter_settings(Path(source)).get("base_model_name_or_path") if is_adapter(source) else source)


def has_tokenizer(folder: Path) -> bool:
    """Return whether an adapter's folder holds a tokenizer."""
    named = (folder / "tokenizer_config.json").is_file()
    return named and any((folder / name).is_file() for name in VOCABULARIES)


def adapter_settings(folder: Path) -> dict[str, Any]:
    """Read the settings of a saved adapter.

    Raises:
        UserError: the adapter names a module that PEFT would import, or players with adapters of this kind cannot
            share a backbone.
    """
    path = folder / SETTINGS
    settings = read_json(path)
    if settings.get("megatron_config") is not None:
        raise UserError(f"{path} names a module to be imported (megatron_core); such adapters are not loaded")
    bias, kind = settings.get("bias") or "none", str(settings.get("peft_type")).upper()
    if bias != "none":
        raise UserError(
            f"{path}: the adapter also changes its backbone's biases (bias = {str(bias)!r}), which all players and"
            " references on it share; merge it into its backbone with PEFT's merge_and_unload, and load the result"
        )
    if kind in VIRTUAL:
        raise UserError(f"{path}: adapters of the kind {kind} put virtual tokens before prompts; they are not loaded")
    return settings


@contextmanager
def fitting(folder: Path, base: str) -> Iterator[None]:
    """Turn any exception of PEFT within the block into a UserError: the backbone is wrong, or the folder is broken."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"adapter {folder} does not fit the model {base!r}: {one_line(error)[:200]}") from error


def saved_embeddings(model: Any, folder: Path) -> SavedEmbeddings:
    """Find the embeddings of the backbone among an adapter's saved weights, from the file's header."""
    path = folder / WEIGHTS
    if not path.is_file():  # PEFT reports the missing file later
        return SavedEmbeddings()
    own = model.get_input_embeddings()
    name = next(name for name, module in model.named_modules() if module is own)
    replaced = name.rpartition(".")[2] in (adapter_settings(folder).get("modules_to_save") or ())
    prefix, rows, key = f"base_model.model.{name}.", 0, ""
    with safe_open(path, "pt") as file:
        for tensor in (tensor for tensor in file.keys() if tensor.startswith(prefix)):  # noqa: SIM118
            kind, shape = tensor.removeprefix(prefix), file.get_slice(tensor).get_shape()
            if kind in ("weight", "base_layer.weight"):
                rows, key = shape[0], tensor
            elif kind == "lora_embedding_A":
                rows = rows or shape[1]
    return SavedEmbeddings(rows, key, replaced)


def make_room(model: Any, folder: Path, tokens: int) -> bool:
    """Resize a backbone's embeddings to the number that an adapter was trained with. The adapter brings the new rows.

    Args:
        tokens: the number of tokens of the adapter's tokenizer.

    Returns:
        True if the adapter's folder holds embeddings for its backbone.

    Raises:
        UserError: some tokens would have untrained embeddings.
    """
    saved, rows = saved_embeddings(model, folder), model.get_input_embeddings().weight.shape[0]
    needed = saved.rows or max(rows, tokens)
    if tokens > needed:
        raise UserError(f"adapter {folder} belongs to another tokenizer ({needed} embeddings, {tokens} tokens)")
    if needed > rows and not saved.key:
        trained = adapter_settings(folder).get("trainable_token_indices") or ()
        if isinstance(trained, dict):
            trained = [token for listed in trained.values() for token in listed]
        if not set(range(rows, needed)) <= set(trained):
            raise UserError(
                f"adapter {folder}: its tokenizer has {tokens} tokens, its backbone {rows} embeddings, and the adapter"
                " brings none for the others; save it with save_embedding_layers=True"
            )
    if needed != rows:
        # Loading the adapter overwrites the new rows; the fixed seed leaves other random streams as they are.
        with adapter_seed("embeddings", 0):
            model.resize_token_embeddings(needed, mean_resizing=False)
    return bool(saved.key) and not saved.replaces


def require_shared_embeddings(model: Any, folder: Path, tokens: int) -> None:
    """Refuse an adapter that would change the embeddings of a backbone that another player uses too.

    Args:
        tokens: the number of tokens of the adapter's tokenizer.

    Raises:
        UserError: the adapter brings other embeddings, or its tokenizer has tokens without embeddings.
    """
    saved, weight = saved_embeddings(model, folder), model.get_input_embeddings().weight
    rows = weight.shape[0]
    fits = tokens <= rows and saved.rows in (0, rows)
    if fits and saved.key and not saved.replaces:
        with safe_open(folder / WEIGHTS, "pt") as file:
            tensor: Tensor = file.get_tensor(saved.key)
        fits = torch.equal(tensor.to(weight), weight.detach())
    if not fits:
        raise UserError(
            f"adapter {folder} has different embeddings from the player that shares its backbone; merge one of them"
            " into its backbone with PEFT's merge_and_unload"
        )
