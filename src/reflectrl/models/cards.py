"""The card beside saved weights, which names the tokenizer they belong to. Imports no torch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from reflectrl.core.json_lines import parse_json
from reflectrl.core.plugins import one_line
from reflectrl.core.regular_files import read_regular
from reflectrl.core.types import UserError

CARD = "reflectrl.json"
"""File name of the card beside saved weights."""

HEADS = "heads.safetensors"
"""File beside saved weights that holds the weights of the heads."""

OPTION_HEAD = "options.weight"
"""Name of the weight (D,) of the head that scores options, among a model's weights and in the file of heads."""


def fingerprint(tokenizer: Any) -> str:
    """Return a digest of a tokenizer's vocabulary (16 hex digits), which identifies it."""
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()), ensure_ascii=True)
    return hashlib.sha256(vocabulary.encode()).hexdigest()[:16]


def check_card(folder: Path, tokenizer: Any, backbone: str = "") -> None:
    """Raise UserError if weights were trained with a different tokenizer.

    Args:
        backbone: fingerprint of the backbone's tokenizer, if an adapter has its own tokenizer.
    """
    if not (folder / CARD).is_file():
        return
    card, own = read_json(folder / CARD), fingerprint(tokenizer)
    at_hand = {"tokenizer": own, "backbone_tokenizer": backbone or own}
    for key, actual in at_hand.items():
        expected = card.get(key, card.get("tokenizer"))
        if expected != actual:
            raise UserError(f"checkpoint {folder} belongs to another tokenizer ({expected}, not {actual})")


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds a JSON object. Raise UserError if it does not."""
    try:
        content = parse_json(read_regular(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold a JSON object")
    return content
