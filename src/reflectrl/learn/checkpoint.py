"""Checkpoints of learners: tensors in safetensors, everything else in JSON, written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from reflectrl.config.folders import no_link


def write_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write a folder under a temporary name, then put it in the place of the old one.

    Killed at any moment, it leaves the old folder or the new one, once `recover` has looked.
    """
    recover(folder)
    fresh, old = _beside(folder)
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    fill(fresh)
    _sync(fresh)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def recover(folder: Path) -> None:
    """Finish what a kill interrupted between the two renames of `write_folder`; otherwise clear the old folder away.

    The old folder is moved aside only when the new one is whole, so an old one without a folder means a whole new one.
    """
    fresh, old = _beside(folder)
    if old.is_dir() and not folder.exists():
        (fresh if fresh.is_dir() else old).rename(folder)
    if old.is_dir():
        shutil.rmtree(old, ignore_errors=True)


def _beside(folder: Path) -> tuple[Path, Path]:
    return folder.with_name(folder.name + ".writing"), folder.with_name(folder.name + ".old")


def write_text(path: Path, text: str) -> None:
    """Write a file under a temporary name, flush it to the disk, then rename it."""
    fresh = path.with_name(path.name + ".writing")
    with open(fresh, "w", encoding="utf-8", opener=no_link) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _sync(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb+") as handle:
                os.fsync(handle.fileno())


def save_state(folder: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write a learner's state so that an interrupted training can go on where it was."""

    def fill(fresh: Path) -> None:
        apart = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        save_file(apart, fresh / "state.safetensors")
        (fresh / "state.json").write_text(json.dumps(meta), encoding="utf-8")

    write_folder(folder, fill)


def load_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """What `save_state` wrote, or None where there is none."""
    meta = load_meta(folder)
    return None if meta is None else (load_file(folder / "state.safetensors"), meta)


def load_meta(folder: Path) -> dict[str, Any] | None:
    """The part of a learner's state that is no tensor, or None where there is none."""
    recover(folder)
    path = folder / "state.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def optimizer_tensors(optimizer: torch.optim.Optimizer, prefix: str = "optimizer") -> dict[str, Tensor]:
    """An optimiser's state as named tensors: "<prefix>.<parameter index>.<name>"."""
    state = optimizer.state_dict()["state"]
    return {
        f"{prefix}.{index}.{name}": torch.as_tensor(value)
        for index, values in state.items()
        for name, value in values.items()
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], prefix: str = "optimizer"
) -> None:
    """Give an optimiser the state that `optimizer_tensors` named."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith(prefix + "."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under names that begin with "prefix."."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def without_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with "prefix.", under their own names."""
    return {name[len(prefix) + 1 :]: t for name, t in tensors.items() if name.startswith(prefix + ".")}
