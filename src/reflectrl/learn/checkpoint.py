"""Checkpoints of learners: tensors in safetensors, everything else in JSON, written whole or not at all."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from reflectrl import distributed
from reflectrl.config.folders import apply_umask, replacing
from reflectrl.digests import damage, write_digests
from reflectrl.models.cards import read_json
from reflectrl.models.pieces import piece
from reflectrl.plugins import one_line
from reflectrl.types import UserError

LOG = logging.getLogger(__name__)
META, TENSORS = "state.json", "state.safetensors"
"""The files of a learner's state."""
GOES_ON, BEGINS_ANEW = "the training goes on from the state before it", "this training begins anew"
"""What becomes of a training whose last state is damaged."""


def write_folder(folder: Path, fill: Callable[[Path], object], keep: int = 1) -> None:
    """Let `fill` write a folder under a temporary name, then put it, with digests, in the place of the old one.

    Killed at any moment, it leaves the old folder or the new one, once `recover` has looked. Of several ranks only the
    first writes.

    Args:
        keep: how many are kept, the new one included; those before it lie beside it, as `_older` names them.

    Raises:
        OSError: it cannot be written, for instance because the disk is full; the old folder stays as it was.
    """
    if distributed.launched()[0] > 0:
        return
    recover(folder, keep)
    fresh = _fresh(folder)
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        with system_errors(folder):
            fill(fresh)
        write_digests(fresh)
        apply_umask(fresh)
        _sync(fresh)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    there, aside = [path for path in (folder, *_older(folder)) if path.exists()], max(1, keep - 1)
    for path in there[aside:]:
        shutil.rmtree(path, ignore_errors=True)
    for number, path in reversed([*enumerate(there[:aside], 1)]):  # the oldest makes room first
        path.rename(_old(folder, number))
    fresh.rename(folder)
    if keep == 1:
        shutil.rmtree(_old(folder, 1), ignore_errors=True)


@contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Raise what libraries make of an error of the system, such as a full disk, as the OSError that it is.

    safetensors has an exception of its own, and tokenizers raises a bare `Exception`; both quote the number.

    Args:
        path: what is being written, for the message.
    """
    try:
        yield
    except Exception as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if type(error) not in (SafetensorError, Exception) or number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def recover(folder: Path, keep: int = 1) -> None:
    """Finish what a kill interrupted between the renames of `write_folder`; clear away older folders beyond `keep`."""
    _complete(folder)
    for path in _older(folder)[keep - 1 :]:
        shutil.rmtree(path, ignore_errors=True)


def _complete(folder: Path) -> None:
    """Give a folder that was moved aside a successor.

    It is moved aside only when the new one is whole, so an old one without a folder means a whole new one.
    """
    older = _older(folder)
    if older and not folder.exists():
        (_fresh(folder) if _fresh(folder).is_dir() else older[0]).rename(folder)


def _fresh(folder: Path) -> Path:
    return folder.with_name(folder.name + ".writing")


def _old(folder: Path, number: int) -> Path:
    """The name of the folder that many before the present one: "name.old", "name.old2", "name.old3" and so on."""
    return folder.with_name(f"{folder.name}.old{number if number > 1 else ''}")


def _older(folder: Path) -> list[Path]:
    """The folders before the present one, the latest first. A kill may have left a gap in their numbers."""
    begins = f"{folder.name}.old"
    names = [path.name for path in folder.parent.iterdir()] if folder.parent.is_dir() else []
    numbers = [name.removeprefix(begins) or "1" for name in names if name.startswith(begins)]
    return [_old(folder, number) for number in sorted(int(number) for number in numbers if number.isdecimal())]


def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    with replacing(path) as file:
        file.write(text)


def _sync(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb+") as handle:
                os.fsync(handle.fileno())


# ---- the state of a learner ------------------------------------------------------------------------------------------

_keep = 2
"""How many states of a learner are kept (`keeping`)."""


@contextmanager
def keeping(count: int) -> Iterator[None]:
    """Within the block, so many of a learner's last states are kept, the present one included."""
    global _keep
    before, _keep = _keep, count
    try:
        yield
    finally:
        _keep = before


def save_state(folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], meta: Mapping[str, Any]) -> None:
    """Write a learner's state so that an interrupted training can go on where it was; see `keeping` for those before.

    Args:
        tensors: by group (a model, an optimiser), then by name; no group's name holds a dot.
        meta: everything else, as JSON values.
    """

    def fill(fresh: Path) -> None:
        flat = {f"{group}.{name}": tensor for group, named in tensors.items() for name, tensor in named.items()}
        save_file(_apart(flat), fresh / TENSORS)
        (fresh / META).write_text(json.dumps(meta), encoding="utf-8")

    write_folder(folder, fill, _keep)


def _apart(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as safetensors takes them: on the CPU, whole, and none in the memory of another one.

    What is so already is not copied: weights and averages of an optimiser are several times the model.
    """
    found, seen = dict[str, Tensor](), set[int]()
    for name, tensor in named.items():
        own = tensor.detach().cpu().contiguous()
        if own.untyped_storage().data_ptr() in seen or own.untyped_storage().nbytes() != own.nbytes:
            own = own.clone()
        seen.add(own.untyped_storage().data_ptr())
        found[name] = own
    return found


def load_state(folder: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]] | None:
    """What `save_state` wrote (a group without tensors is empty), or None where there is none; see `load_meta`."""
    meta = load_meta(folder)
    if meta is None:
        return None
    return load_tensors(folder), meta


def load_tensors(folder: Path) -> dict[str, dict[str, Tensor]]:
    """The tensors of a learner's state, by group and name; of a group without any there is an empty one."""
    groups: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, tensor in load_file(folder / TENSORS).items():
        group, _, name = key.partition(".")
        groups[group][name] = tensor
    return groups


def load_meta(folder: Path) -> dict[str, Any] | None:
    """The part of a learner's state that is no tensor, or None where there is none.

    A damaged state is removed, with a warning, and the one before it takes its place. Should all be damaged, there is
    none: nothing finished depends on them, and training it anew is all that anybody could do.
    """
    _complete(folder)
    if not folder.is_dir():
        return None
    if (problem := _flaw(folder)) is None:
        return read_json(folder / META)
    LOG.warning("reflectrl: %s; %s", problem, GOES_ON if _older(folder) else BEGINS_ANEW)
    shutil.rmtree(_fresh(folder), ignore_errors=True)  # perhaps half-written: it must not be taken for the new one
    shutil.rmtree(folder)
    return load_meta(folder)


def drop_state(folder: Path) -> None:
    """Remove a learner's state, and those before it."""
    for path in (_fresh(folder), *_older(folder), folder):
        shutil.rmtree(path, ignore_errors=True)


def _flaw(folder: Path) -> str | None:
    """What is wrong with a learner's state, in a few words that begin with a path; None if it can be gone on from."""
    if problem := damage(folder):
        return problem
    try:
        if not read_json(folder / META):
            return f"{folder / META} is empty"
        with safe_open(folder / TENSORS, "pt"):
            return None
    except (UserError, SafetensorError, FileNotFoundError) as error:
        return f"{folder} cannot be read ({one_line(error)})"


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimiser's state as named tensors: "<parameter index>.<name>"."""
    state = optimizer.state_dict()["state"]
    return {f"{i}.{name}": torch.as_tensor(value) for i, values in state.items() for name, value in values.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give an optimiser the state that `optimizer_tensors` named; of divided weights, what belongs to this rank."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = defaultdict(dict)
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        like = parameters[int(index)]
        state[int(index)][name] = (piece(value, like) if value.shape == like.shape else value).clone()
    optimizer.load_state_dict({"state": dict(state), "param_groups": optimizer.state_dict()["param_groups"]})
