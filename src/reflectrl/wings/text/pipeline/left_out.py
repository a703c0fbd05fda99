"""Arms with nothing to learn from. They are left out of a run's results, with the reason, and the other arms go on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from reflectrl.core.types import UserError
from reflectrl.learn.checkpoint import write_folder
from reflectrl.methods.shared.offline.algorithms import DRAWN, items_of, sampling_weights
from reflectrl.methods.shared.offline.completions import Dataset
from reflectrl.methods.shared.offline.config import Algorithm, OfflineConfig
from reflectrl.methods.shared.offline.reference_cache import ReferenceCache
from reflectrl.models.cards import CARD, read_json

KEY = "left_out"
"""Key of the reason in the card of a folder without a model."""


def nothing_to_learn(data: Dataset, cache: ReferenceCache, config: OfflineConfig, algorithm: str) -> str:
    """Return why an algorithm can learn nothing from the data; "" if it can."""
    config = replace(config, algorithm=cast(Algorithm, algorithm))
    try:
        items = items_of(data, algorithm)
    except UserError as error:
        return str(error)
    is_sampled = algorithm in DRAWN and config.sampling != "none"
    if is_sampled and not bool((sampling_weights(items, cache, config) > 0).any()):
        return f"offline: {algorithm} draws completions of positive weight, and there are none"
    return ""


def write_left_out(folder: Path, why: str) -> None:
    """Write a folder that holds the reason in place of a model."""
    card = json.dumps({KEY: why}, indent=1)
    write_folder(folder, lambda fresh: (fresh / CARD).write_text(card, encoding="utf-8"))


def reason_left_out(folder: Path) -> str:
    """Return why a folder holds no model; "" if it holds one."""
    card: dict[str, Any] = read_json(folder / CARD) if (folder / CARD).is_file() else {}
    return str(card.get(KEY, ""))
