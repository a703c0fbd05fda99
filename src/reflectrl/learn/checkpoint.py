"""Checkpoints of learners: tensors in safetensors, everything else in JSON, written atomically."""

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

from reflectrl.core import distributed
from reflectrl.core.config.folders import apply_umask, replacing
from reflectrl.core.digests import damage, link_equal_files, write_digests
from reflectrl.core.plugins import one_line
from reflectrl.core.types import UserError
from reflectrl.models.cards import read_json

LOG = logging.getLogger(__name__)
META, TENSORS = "state.json", "state.safetensors"
"""The files of a learner's state."""
GOES_ON, BEGINS_ANEW = "training continues from the previous state", "this training starts over"
"""Ends of the warning about a damaged state: an older state is used, or there is none."""


def write_folder(folder: Path, fill: Callable[[Path], object], keep: int = 1, share: bool = True) -> None:
    """Let `fill` write a folder under a temporary name, add digests, and replace the old folder with it.

    If the process is killed at any moment, the old or the new folder is complete after `recover`. Only the first rank
    writes.

    Args:
        keep: number of folders to keep, including the new one. Older ones lie beside it under the names of `_older`.
        share: store large files that neighbouring folders also have once (`link_equal_files`). Not for folders outside
            a run, which their owner may change in place.

    Raises:
        OSError: the folder cannot be written, for instance because the disk is full. The old folder is unchanged.
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
        neighbours = sorted(folder.parent.iterdir()) if share else []
        for neighbour in neighbours:
            if neighbour.is_dir() and neighbour != fresh:
                link_equal_files(fresh, neighbour)
        apply_umask(fresh)
        _sync(fresh)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    existing = [path for path in (folder, *_older(folder)) if path.exists()]
    older_count = max(1, keep - 1)
    for path in existing[older_count:]:
        shutil.rmtree(path, ignore_errors=True)
    for number, path in reversed([*enumerate(existing[:older_count], 1)]):  # the oldest makes room first
        path.rename(_old(folder, number))
    fresh.rename(folder)
    if keep == 1:
        shutil.rmtree(_old(folder, 1), ignore_errors=True)


@contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Convert libraries' exceptions for system errors, such as a full disk, to OSError within the block.

    safetensors has its own exception, and tokenizers raises a bare `Exception`. Both quote the error number.

    Args:
        path: file or folder that is being written, for the message.
    """
    try:
        yield
    except Exception as error:
        match = re.search(r"\(os error (\d+)\)", str(error))
        if type(error) not in (SafetensorError, Exception) or match is None:
            raise
        raise OSError(int(match[1]), os.strerror(int(match[1])), str(path)) from error


def recover(folder: Path, keep: int = 1) -> None:
    """Finish the renames of a `write_folder` that was killed, and remove older folders beyond `keep`."""
    _complete(folder)
    for path in _older(folder)[keep - 1 :]:
        shutil.rmtree(path, ignore_errors=True)


def _complete(folder: Path) -> None:
    """Finish the replacement of a folder that was moved aside.

    The old folder is moved aside only when the new one is complete. So if only an old folder exists, the new one under
    its temporary name is complete.
    """
    older = _older(folder)
    if older and not folder.exists():
        (_fresh(folder) if _fresh(folder).is_dir() else older[0]).rename(folder)


def _fresh(folder: Path) -> Path:
    return folder.with_name(folder.name + ".writing")


def _old(folder: Path, number: int) -> Path:
    """Return the name of the `number`-th older folder: "name.old", "name.old2", "name.old3" and so on."""
    return folder.with_name(f"{folder.name}.old{number if number > 1 else ''}")


def _older(folder: Path) -> list[Path]:
    """Return the older folders, the latest first. A kill may have left a gap in their numbers."""
    prefix, numbers = f"{folder.name}.old", list[int]()
    if not folder.parent.is_dir():
        return []
    for path in folder.parent.iterdir():
        number = path.name.removeprefix(prefix) or "1"
        if path.name.startswith(prefix) and number.isdecimal():
            numbers.append(int(number))
    return [_old(folder, number) for number in sorted(numbers)]


def write_text(path: Path, text: str) -> None:
    """Write a file atomically."""
    with replacing(path) as file:
        file.write(text)


def _sync(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb+") as handle:
                os.fsync(handle.fileno())


# ---- the state of a learner ------------------------------------------------------------------------------------------

_keep = 2
"""Number of a learner's states to keep (`keeping`)."""


@contextmanager
def keeping(count: int) -> Iterator[None]:
    """Set the number of a learner's latest states to keep within the block, including the current one."""
    global _keep
    before, _keep = _keep, count
    try:
        yield
    finally:
        _keep = before


def save_state(folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], meta: Mapping[str, Any]) -> None:
    """Write a learner's state, so that an interrupted training can continue. `keeping` sets how many states are kept.

    Args:
        tensors: tensors by group (a model, an optimiser) and name. Names of groups contain no dot.
        meta: everything else, as JSON values.
    """

    def fill(fresh: Path) -> None:
        flat = dict[str, Tensor]()
        for group, named in tensors.items():
            flat |= {f"{group}.{name}": tensor for name, tensor in named.items()}
        save_file(_without_sharing(flat), fresh / TENSORS)
        (fresh / META).write_text(json.dumps(meta), encoding="utf-8")

    write_folder(folder, fill, _keep)


def _without_sharing(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors in the form that safetensors needs: on the CPU, contiguous, and without shared memory.

    Tensors that already have this form are not copied, since weights and optimiser states take several times the memory
    of the model.
    """
    separate, seen = dict[str, Tensor](), set[int]()
    for name, tensor in named.items():
        own = tensor.detach().cpu().contiguous()
        if own.untyped_storage().data_ptr() in seen or own.untyped_storage().nbytes() != own.nbytes:
            own = own.clone()
        seen.add(own.untyped_storage().data_ptr())
        separate[name] = own
    return separate


def load_state(folder: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]] | None:
    """Load tensors and metadata that `save_state` wrote, or None if there is no state (see `load_meta`)."""
    meta = load_meta(folder)
    if meta is None:
        return None
    return load_tensors(folder), meta


def load_tensors(folder: Path) -> dict[str, dict[str, Tensor]]:
    """Load the tensors of a learner's state by group and name. Groups without tensors appear as empty dictionaries."""
    groups: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, tensor in load_file(folder / TENSORS).items():
        group, _, name = key.partition(".")
        groups[group][name] = tensor
    return groups


def load_meta(folder: Path) -> dict[str, Any] | None:
    """Load the metadata of a learner's state, or None if there is no state.

    A damaged state is removed with a warning, and the previous state takes its place. If all are damaged, the result is
    None: no finished artifact depends on them, and training again is the only remedy.
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
    """Remove a learner's state, and all older states."""
    for path in (_fresh(folder), *_older(folder), folder):
        shutil.rmtree(path, ignore_errors=True)


def _flaw(folder: Path) -> str | None:
    """Return the problem with a learner's state, in a few words that begin with a path; None if it is usable."""
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
    """Return an optimiser's state as tensors named "<parameter index>.<name>"."""
    tensors = dict[str, Tensor]()
    for i, values in optimizer.state_dict()["state"].items():
        tensors |= {f"{i}.{name}": torch.as_tensor(value) for name, value in values.items()}
    return tensors


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore an optimiser's state from `optimizer_tensors`."""
    state: dict[int, dict[str, Tensor]] = defaultdict(dict)
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        state[int(index)][name] = value.clone()
    optimizer.load_state_dict({"state": dict(state), "param_groups": optimizer.state_dict()["param_groups"]})
