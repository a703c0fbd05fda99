"""Checks of a model before a run writes anything. They do not load the weights."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoConfig

from reflectrl.core.config import ModelConfig
from reflectrl.core.plugins import one_line
from reflectrl.core.types import UserError
from reflectrl.models.adapters import backbone_of, has_tokenizer, is_adapter
from reflectrl.models.labels import find_labels
from reflectrl.models.load import chat_in, load_tokenizer, pick_device, require_names_fit
from reflectrl.models.memory import available
from reflectrl.models.quantised import quantisation
from reflectrl.models.soundness import require_sound
from reflectrl.models.sources import files_of, find_model
from reflectrl.models.weights import shapes_of, weight_bytes

FEWEST = 2
"""Smallest number of labels that a tokenizer must have: every environment lists at least two actions at some point."""

WEIGHTS = ("*.safetensors", "*.bin")
"""File names of weights."""


def require_usable(source: str, config: ModelConfig, labelled: bool, system: str = "") -> None:
    """Refuse a model with which play or training would fail later.

    Args:
        source: a value of `model.source` other than "scratch".
        labelled: True if actions are chosen by labels.
        system: system prompt for trying the chat template.

    Raises:
        UserError: the device or bitsandbytes is missing, there is no loadable model, a file is damaged, tensors are
            missing or unexpected, the tokenizer has no labels or no end-of-text token, or the chat template cannot be
            used. The message names the model and says what is expected.
    """
    name = source
    quantisation(config, pick_device(config.device))
    source = find_model(source)
    base = backbone_of(source)
    for folder in {files_of(source), files_of(base)}:
        require_sound(folder, config.trust_remote_code)
        if folder.is_dir():
            shapes_of(folder)
            if not any(path for kind in WEIGHTS for path in folder.glob(kind)):
                raise UserError(f"model {name!r}: no weights in {folder}, which should hold model.safetensors")
    own = is_adapter(source) and has_tokenizer(Path(source))
    tokenizer = load_tokenizer(source if own else base, config)
    try:
        AutoConfig.from_pretrained(base, trust_remote_code=config.trust_remote_code, local_files_only=True)
    except Exception as error:  # of any kind, since a model may bring its own code
        raise UserError(f"model {name!r}: its config.json cannot be used: {one_line(error)[:200]}") from error
    # Weights that do not fit into memory are refused elsewhere, with advice. Pickled ones have no header to check.
    if 0 < weight_bytes(shapes_of(files_of(base)), config) <= available():
        require_names_fit(base, config)
    chat = chat_in(Path(source), tokenizer, name, config.chat, system)
    if labelled:
        try:
            find_labels(tokenizer, FEWEST, "" if chat is None else chat.after)
        except UserError as error:
            raise UserError(f"model {name!r}: {error}; or set play.scoring to token") from error
