"""`run --mirror ADDRESS`: a run on a machine that may be taken away, and that goes on on another one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from reflectrl.cli.run import RunOption
from reflectrl.mirror.store import Moved, Store, at, ordered
from reflectrl.terminal import console
from reflectrl.types import UserError

LOG = logging.getLogger(__name__)
TRIES = 20
"""How often a snapshot is begun anew because something was replaced meanwhile."""


@dataclass(frozen=True)
class Mirror(RunOption):
    """The options `--mirror` and `--mirror-every` of `reflectrl run`."""

    mirror: Annotated[str, tyro.conf.arg(metavar="ADDRESS")] = ""
    """Keep a copy of the run folder at this address (s3://BUCKET/RUN, or what else fsspec knows), and go on from there
    where the folder is not there yet."""
    mirror_every: Annotated[float, tyro.conf.arg(metavar="SECONDS")] = 60.0
    """Seconds between two copies; the last one is made when the command ends."""

    @contextmanager
    def during(self, folder: Path) -> Iterator[None]:
        """Fetch the folder if it is not there, and copy it now and then, and in the end, however the run ends."""
        if not self.mirror:
            yield
            return
        store = Store(self.mirror)
        begin(store, folder)
        ended = threading.Event()
        copying = threading.Thread(target=_copy_often, args=(store, folder, self.mirror_every, ended), daemon=True)
        copying.start()
        try:
            yield
        except BaseException:
            _end(copying, ended)
            with warned():  # what ended the run is what is to be said
                copy(store, folder)
            raise
        _end(copying, ended)
        copy(store, folder)


def begin(store: Store, folder: Path) -> None:
    """Bring a folder to the state of an address, if it holds nothing yet.

    Raises:
        UserError: both hold something, and not the same run, or another machine has gone on since.
    """
    from reflectrl.pipeline.folder import alone  # imports torch, which a dry run does without

    with alone(folder):  # nobody else may be at work there
        latest, (address, number, writer) = store.latest(), at(folder)
    if latest is None:
        return
    store.begun = latest.number
    if not ordered(folder):
        store.fetch(folder, latest)
        console(120).print(f"fetched from {store.address}: {len(latest.files)} files", soft_wrap=True)
    elif address != store.address:
        raise UserError(f"{folder} and {store.address} both hold a run; remove one of them, or use another --folder")
    elif (number, writer) != (latest.number, latest.writer) and number <= latest.number:
        raise UserError(f"another machine has gone on at {store.address}; remove {folder} to go on from there")


def copy(store: Store, folder: Path) -> None:
    """Take a snapshot, anew as long as something is replaced meanwhile; what is not there yet is not copied."""
    for _ in range(TRIES if folder.is_dir() else 0):
        try:
            store.copy(folder)
            return
        except Moved:
            continue
    if folder.is_dir():
        LOG.warning("reflectrl: %s changes too quickly to be copied to %s", folder, store.address)


def _copy_often(store: Store, folder: Path, seconds: float, ended: threading.Event) -> None:
    while not ended.wait(seconds):
        with warned():
            copy(store, folder)


def _end(copying: threading.Thread, ended: threading.Event) -> None:
    ended.set()
    copying.join()


@contextmanager
def warned() -> Iterator[None]:
    """An address that cannot be reached for a while stops no training."""
    try:
        yield
    except UserError as error:
        LOG.warning("reflectrl: not copied: %s", error)
