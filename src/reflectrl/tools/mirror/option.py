"""`run --mirror ADDRESS`: a run on a machine that may be taken away, which continues on another machine."""

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
from reflectrl.core.terminal import console
from reflectrl.core.types import UserError
from reflectrl.tools.mirror.store import Moved, Store, at, ordered

LOG = logging.getLogger(__name__)
TRIES = 20
"""Number of attempts at a snapshot if files are replaced meanwhile."""


@dataclass(frozen=True)
class Mirror(RunOption):
    """The options `--mirror` and `--mirror-every` of `reflectrl run`."""

    mirror: Annotated[str, tyro.conf.arg(metavar="ADDRESS")] = ""
    """Keep a copy of the run folder at this address (s3://BUCKET/RUN, or any other that fsspec knows). If the folder
    does not exist yet, continue from the copy."""
    mirror_every: Annotated[float, tyro.conf.arg(metavar="SECONDS")] = 60.0
    """Seconds between two copies. The last copy is made when the command ends."""

    @contextmanager
    def during(self, folder: Path) -> Iterator[None]:
        """Fetch the folder if it does not exist. Copy it now and then, and once more at the end of the run."""
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
    """Bring an empty folder to the state of an address.

    Raises:
        UserError: both hold something, but not the same run; or another machine has continued the run since.
    """
    from reflectrl.runs.folder import alone  # imports torch, which a dry run does without

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
    """Take a snapshot, and try again if files are replaced meanwhile. Does nothing if the folder does not exist yet."""
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
    """Turn an address that cannot be reached into a warning, so that it stops no training."""
    try:
        yield
    except UserError as error:
        LOG.warning("reflectrl: not copied: %s", error)
