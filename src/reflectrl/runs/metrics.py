"""The metrics of a run: one file per training while it is under way, and one file for all of them afterwards.

Listeners, which packages add through the entry points "reflectrl.listeners", get every line before it is written.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from reflectrl.core import distributed
from reflectrl.core.digests import seal, unseal
from reflectrl.core.episodes import drop_half_line
from reflectrl.core.json_lines import parse_json
from reflectrl.core.plugins import names, resolve
from reflectrl.learn.checkpoint import BEGINS_ANEW, drop_state, load_meta, write_text
from reflectrl.learn.trainer import Verdict
from reflectrl.runs.folder import Context, RunFolder

LOG = logging.getLogger(__name__)
NOTED = ".sha256"
"""Ending of the file with the digest of a training's metrics. It is written when the training has ended."""


class MetricsCallback(Protocol):
    """A callback that receives the metrics of a single training as they are logged."""

    def on_metrics(self, metrics: Mapping[str, Any]) -> tuple[Verdict, str]:
        """Receive a line before it is written. Return a verdict (such as to stop or to roll back), and the reason."""

    def close(self) -> None:
        """Close the listener. Called when the training has ended, with or without an error."""


CallbackFactory = Callable[[Path, Sequence[Mapping[str, Any]]], MetricsCallback]
"""Function from the path of a training's metrics and the lines logged so far to a callback. It is called when the
training begins or continues."""

_listen: list[CallbackFactory] = []


@contextmanager
def listening(context: Context) -> Iterator[None]:
    """Pass the metrics of every training to the listeners of installed packages, within the block."""
    _listen[:] = [listen for name in names("listeners") for listen in resolve("listeners", name)(context)]
    try:
        yield
    finally:
        _listen.clear()


class MetricsFile:
    """The metrics of a single training, one JSON line each.

    When a training continues from a saved state, lines logged after that state are removed, since they will be logged
    again. If lines from before that state are missing, the state is dropped with a warning and the training begins
    anew: no finished work depends on it, and otherwise its metrics would stay incomplete.

    Args:
        learner: the folder of the learner's state, which says where the training continues.
        shared: the values that every line contains beside its metrics.
    """

    def __init__(self, path: Path, learner: Path, shared: dict[str, Any]) -> None:
        self.shared = shared
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(NOTED).unlink(missing_ok=True)
        before = _before(path, learner)
        write_text(path, "".join(f"{seal(text)}\n" for text in before))
        self._file = path.open("a", encoding="utf-8")
        earlier = [json.loads(text) for text in before] if _listen else []
        self._listeners = [listen(path, earlier) for listen in _listen]

    def write(self, metrics: dict[str, Any]) -> Verdict:
        """Write a line. Returns a listener's request to the training, which is the same on all ranks."""
        verdict, why = distributed.first(lambda: self._verdict(metrics)) if self._listeners else ("", "")
        if why:
            metrics = {**metrics, "alarm": why}
        self._file.write(seal(json.dumps({**self.shared, **metrics})) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())  # a state that is saved next relies on it
        return verdict

    def _verdict(self, metrics: Mapping[str, Any]) -> tuple[Verdict, str]:
        """Return the first listener's answer that has a reason."""
        answers = [listener.on_metrics(metrics) for listener in self._listeners]
        return next((answer for answer in answers if answer[1]), ("", ""))

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the file. If the training has ended well, write the digest of its metrics beside it."""
        self._file.close()
        for listener in self._listeners:
            listener.close()
        if kind is None:
            path = Path(self._file.name)
            write_text(path.with_suffix(NOTED), _digest(path).decode())


def collect(run: RunFolder) -> None:
    """Write all metrics into one file, in a fixed order.

    Only the report's curves depend on it. Damaged lines are left out, with a warning and advice.
    """
    folder = run.path / "metrics"
    texts: list[str] = []
    for path in sorted({*folder.glob("*.jsonl"), *(noted.with_suffix(".jsonl") for noted in folder.glob(f"*{NOTED}"))}):
        lines = list(_lines(path))
        texts += [f"{text}\n" for _, text in lines if text]
        noted = path.with_suffix(NOTED)  # there once the training has ended
        lacking = noted.is_file() and not (path.is_file() and noted.read_bytes() == _digest(path))
        if lacking or not all(text for _, text in lines):
            seed, _, name = path.stem.partition("-")
            checkpoint = run.path / "checkpoints" / seed / name
            _warn_once(f"{path} is damaged, and curves lack lines; remove it and {checkpoint} to make them anew")
    write_text(run.path / "metrics.jsonl", "".join(texts))


def _digest(path: Path) -> bytes:
    return f"{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()


@cache
def _warn_once(text: str) -> None:
    """Log a warning once, since metrics are collected after every stage."""
    LOG.warning("reflectrl: %s", text)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the step and the text of each line, without its checksum; (0, "") for a damaged line."""
    drop_half_line(path)
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            text = unseal(line.decode("utf-8"))
            yield int(parse_json(text)["step"]), text
        except (ValueError, TypeError, KeyError):
            yield 0, ""


def _before(path: Path, learner: Path) -> list[str]:
    """Return the lines that were logged before the learner's state was saved."""
    meta = load_meta(learner)
    saved = 0 if meta is None else int(meta["logged"]) + 1  # the first step not yet logged when the state was saved
    lines = list(_lines(path))
    end = max((i + 1 for i, (step, text) in enumerate(lines) if text and step < saved), default=0)
    earlier = lines[:end]
    # A training in rounds (expert iteration) logs nothing in a round with nothing to imitate, so steps may be missing.
    is_complete = "round" in (meta or {}) or saved in (0, *(step + 1 for step, _ in earlier))
    if is_complete and all(text for _, text in earlier):
        return [text for _, text in earlier]
    LOG.warning("reflectrl: %s is damaged; %s", path, BEGINS_ANEW)
    drop_state(learner)
    return []
