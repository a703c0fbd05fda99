"""Shards of saved weights: what does not learn gets a file of its own, which the checkpoints of a run share on disk."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

WEIGHTS = "model.safetensors"
FROZEN, LEARNED = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def split_frozen(folder: Path, frozen: Collection[str]) -> None:
    """Divide the weights of a saved model into two files: those that do not learn, and the others.

    This is the usual form of a sharded model, so every library that reads such models reads this one. Nothing is done
    if all weights learn, or none does.

    Args:
        frozen: names of the weights that do not learn.
    """
    path = folder / WEIGHTS
    if not path.is_file():  # a model so large that the library has divided it already
        return
    size = 0
    with safe_open(path, "pt") as weights:
        files = dict.fromkeys(weights.keys(), LEARNED)
        files.update({name: FROZEN for name in frozen if name in files})
        if len(set(files.values())) < 2:
            return
        for file in (FROZEN, LEARNED):
            tensors = {name: weights.get_tensor(name) for name in files if files[name] == file}
            size += sum(tensor.nbytes for tensor in tensors.values())
            save_file(tensors, folder / file, weights.metadata())
    index = {"metadata": {"total_size": size}, "weight_map": files}
    (folder / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
    path.unlink()
