"""Preparation of a family's data: samples, written split by split into a store, with an account of their number."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from reflectrl.core.json_lines import read_json
from reflectrl.core.plugins import suggestion
from reflectrl.core.types import UserError
from reflectrl.wings.text.samples.families.sources import SPLITS, Source, find
from reflectrl.wings.text.samples.rows import BadRowError, EmptyTextError, Gate, LeftOutError
from reflectrl.wings.text.samples.sample import Sample, through_sigmoid, tied
from reflectrl.wings.text.samples.writing import LineFile, to_line

ACCOUNT = "data.json"

ProgressCallback = Callable[[int, int, str], None]
"""Progress callback, called with (done, total, what)."""
EVERY = 10_000
"""Number of records between two calls of the progress callback."""


class Entry(NamedTuple):
    """Samples from one record of the raw data.

    Attributes:
        split: split of the record; "" for training data from which held-out sets may be drawn.
        key: records with the same key stay in one split when held-out sets are drawn.
        folders: folders of the store that get the samples; "" is the store itself.
    """

    samples: list[Sample]
    split: str
    key: str
    folders: tuple[str, ...] = ("",)


class Family(NamedTuple):
    """Reader of a family's raw data.

    Attributes:
        endings: endings of the files' names.
        styles: formats of prompts, the default first.
        usable: returns, from its name, whether a file can be used.
        records: yields ("file:line", record) of a file, in order.
        read: maps (record, name, source, style) to entries. It raises BadRowError for a bad record, and yields
            LeftOutError for a part of a record that is left out.
        set_aside: returns, by name, why some of the files are not data.
    """

    name: str
    endings: tuple[str, ...]
    styles: tuple[str, ...]
    usable: Callable[[Source], bool]
    records: Callable[[Source], Iterator[tuple[str, Any]]]
    read: Callable[[Any, str, Source, str], Iterable[Entry | LeftOutError]]
    set_aside: Callable[[Sequence[Source]], Mapping[str, str]] = lambda sources: {}


@dataclass
class Account:
    """Contents of a store, and the rows and files that were left out.

    Attributes:
        files: file in the store → number of samples, of prompts, and of prompts that occur in `train` as well.
        rewards: lowest and highest reward; empty if no sample has a reward yet.
        ties: number of records whose completions all have the same reward. They are kept.
        left_out: reason → (count, first places) of rows that are known to be unusable and need no repair.
        skipped: reason → (count, first places) of bad rows.
        unread: files whose names do not contain their split.
        set_aside: file → why it is not data.
        options: options of the preparation.
    """

    family: str
    files: dict[str, dict[str, int]] = field(default_factory=dict)
    rewards: list[float] = field(default_factory=list)
    ties: int = 0
    left_out: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, Any] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    set_aside: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def read_account(store: Path, family: str) -> Account | None:
    """Read the account of a store; None if there is none.

    Raises:
        UserError: the store belongs to another family, or its account cannot be read.
    """
    path = store / ACCOUNT
    if not path.exists():
        return None
    try:
        account = Account(**read_json(path))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} is not an account of prepared data; remove it") from error
    if account.family != family:
        raise UserError(f"{store} holds {account.family} data; choose another --store for {family}")
    return account


def prepare(
    family: Family,
    paths: Sequence[Path],
    store: Path,
    gate: Gate,
    style: str = "",
    held_out: float = 0.05,
    sigmoid: bool = False,
    progress: ProgressCallback = lambda done, total, what: None,
) -> Account:
    """Write a family's samples into a store. Its old files are replaced only after all new files are complete.

    Args:
        paths: raw files, or folders with raw files.
        style: format of prompts; "" means the family's default.
        held_out: share of the training data's keys that goes to each split without a file of its own.
        sigmoid: apply the sigmoid to rewards that are a reward model's raw outputs.

    Raises:
        UserError: a row is bad, no sample is found, the store cannot be written, or it belongs to another family.
    """
    style = style or family.styles[0]
    if style not in family.styles:
        raise UserError(f"unknown style {style!r}{suggestion(style, family.styles)}")
    if not 0 <= held_out < 0.5:
        raise UserError(f"the held-out share must be from 0 to below 0.5, not {held_out}")
    before = read_account(store, family.name)
    candidates = [
        candidate
        for candidate in find(paths, family.endings)
        if store.resolve() not in candidate.path.resolve().parents
    ]
    account = Account(family.name, options={"style": style, "held_out": held_out, "sigmoid": sigmoid})
    account.set_aside = dict(family.set_aside(candidates))
    candidates = [source for source in candidates if source.name not in account.set_aside]
    sources = [source for source in candidates if family.usable(source)]
    account.unread = [source.name for source in candidates if source not in sources]
    missing = [split for split in SPLITS[1:] if split not in {source.split for source in sources}]
    writer = _Writer(store, missing, held_out, sigmoid)
    try:
        with writer.stack:
            for entry in _entries(family, sources, gate, style, progress):
                writer.write(entry)
            account.files, account.ties, account.rewards = writer.counts(), writer.ties, writer.rewards
            account.left_out = {reason: asdict(skipped) for reason, skipped in gate.left_out.items()}
            account.skipped = {reason: asdict(skipped) for reason, skipped in gate.skipped.items()}
            if not account.files:
                raise _nothing_found(account, paths)
            writer.keep(account)
    finally:
        writer.tidy()
    _remove_outdated(store, set(before.files if before else ()) - set(account.files))
    return account


def _nothing_found(account: Account, paths: Sequence[Path]) -> UserError:
    """Return the error that says why there is no sample."""
    rows = account.left_out | account.skipped
    counts = ", ".join(f"{counted['count']} {reason}" for reason, counted in rows.items())
    unread = ", ".join(account.unread)
    return UserError(
        f"{', '.join(map(str, paths))}: not one {account.family} sample{counts and f'; left out: {counts}'}"
        + (unread and f"; files whose names contain no split: {unread}")
    )


def _remove_outdated(store: Path, names: Iterable[str]) -> None:
    """Remove files of an earlier preparation, and folders that are then empty. Nothing outside the store is removed."""
    for name in names:
        if store.resolve() in (store / name).resolve().parents:
            with suppress(OSError):
                (store / name).unlink()
                (store / name).parent.rmdir()


def _entries(
    family: Family, sources: Sequence[Source], gate: Gate, style: str, progress: ProgressCallback
) -> Iterator[Entry]:
    """Yield the entries of all records. Bad records are refused or counted by `gate`.

    Records with an empty text are known from the published data, so they are left out and counted without a question.
    """
    for done, source in enumerate(sources):
        for k, (location, record) in enumerate(family.records(source), start=1):
            if k % EVERY == 1:
                progress(done, len(sources), f"files; {k} records of {source.name}")
            try:
                for entry in list(family.read(record, f"{source.name}:{k}", source, style)):
                    if isinstance(entry, LeftOutError):
                        gate.refuse(location, entry)
                    else:
                        yield entry
            except EmptyTextError as error:
                gate.refuse(location, LeftOutError(str(error)))
            except BadRowError as error:
                gate.refuse(location, error)


class _Writer:
    """Writer of a store's files, which stay temporary until `keep`."""

    def __init__(self, store: Path, missing: Sequence[str], held_out: float, sigmoid: bool) -> None:
        self.store, self.missing, self.held_out, self.sigmoid = store, missing, held_out, sigmoid
        self.stack, self.ties, self.rewards = ExitStack(), 0, list[float]()
        self._files: dict[str, LineFile] = {}
        self._prompts: dict[str, set[bytes]] = {}

    def write(self, entry: Entry) -> None:
        split = entry.split or _drawn(entry.key, self.missing, self.held_out)
        samples = [through_sigmoid(sample) for sample in entry.samples] if self.sigmoid else entry.samples
        self.ties += tied(samples)
        rewards = [*self.rewards, *(sample.reward for sample in samples if not math.isnan(sample.reward))]
        self.rewards = [min(rewards), max(rewards)] if rewards else []
        for folder in entry.folders:
            name = f"{folder}/{split}.jsonl" if folder else f"{split}.jsonl"
            if name not in self._files:
                self._files[name] = self.stack.enter_context(LineFile(self.store / name))
            for sample in samples:
                self._files[name].write(to_line(sample))
                self._prompts.setdefault(name, set()).add(bytes.fromhex(sample.group))

    def counts(self) -> dict[str, dict[str, int]]:
        """Count samples, prompts, and prompts that occur in the training file as well, for each file."""
        counts = {}
        for name in sorted(self._files):
            train = str(PurePosixPath(name).with_name("train.jsonl"))
            shared = len(self._prompts[name] & self._prompts.get(train, set())) if name != train else 0
            counts[name] = {"samples": self._files[name].count, "prompts": len(self._prompts[name]), "in_train": shared}
        return counts

    def keep(self, account: Account) -> None:
        """Move all files to their final places, the account last."""
        written = self.stack.enter_context(LineFile(self.store / ACCOUNT))
        written.write(json.dumps(asdict(account), indent=1, ensure_ascii=False))
        for file in (*self._files.values(), written):
            file.keep()

    def tidy(self) -> None:
        """Remove folders that stayed empty."""
        for folder in (*{file.path.parent for file in self._files.values()}, self.store):
            with suppress(OSError):
                folder.rmdir()


def _drawn(key: str, missing: Sequence[str], share: float) -> str:
    """Return the split of a key. It is the same in every run and does not depend on the other data."""
    fraction = int.from_bytes(hashlib.sha256(f"held out {key}".encode()).digest()[:8], "big") / 2**64
    return next((split for i, split in enumerate(missing) if fraction < (i + 1) * share), "train")
