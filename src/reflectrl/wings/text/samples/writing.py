"""Atomic writing of samples: a file is either complete or left as it was."""

from __future__ import annotations

import gzip
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal, cast, get_args

from reflectrl.core.config.folders import no_link
from reflectrl.core.plugins import reason, suggestion
from reflectrl.core.types import UserError
from reflectrl.wings.text.samples.sample import Sample, Samples


class LineFile:
    """A file that is written line by line under a temporary name, and moved to its final name by `keep`.

    It is compressed if the final name ends in .gz. Use it as a context manager. Without `keep`, the lines are dropped.

    Raises:
        UserError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.count = path, 0
        self._part = path.with_name(f"{path.name}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self._part, "wb", opener=no_link)  # noqa: SIM115  (closed by `keep` or on leaving)
        except OSError as error:
            raise self._failed(error) from error
        packed = path.suffix == ".gz"
        self._lines = cast(IO[bytes], gzip.GzipFile("", "wb", fileobj=self._file, mtime=0)) if packed else self._file

    def write(self, line: str) -> None:
        """Write a line, and a line break after it."""
        try:
            self._lines.write(line.encode("utf-8") + b"\n")
        except OSError as error:
            raise self._failed(error) from error
        self.count += 1

    def keep(self) -> None:
        """Flush the file and move it to its final name."""
        try:
            if self._lines is not self._file:
                self._lines.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.replace(self.path)
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> UserError:
        return UserError(f"{self.path} cannot be written: {reason(error)}")

    def __enter__(self) -> LineFile:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._part.unlink(missing_ok=True)


def write_samples(path: Path, samples: Iterable[Sample]) -> int:
    """Write samples in our own form, one JSON line each; return their number.

    Raises:
        UserError: the file cannot be written, or a number is not finite.
    """
    return write_lines(path, map(to_line, samples))


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write lines to a file; return their number.

    Raises:
        UserError: the file cannot be written.
    """
    with LineFile(path) as file:
        for line in lines:
            file.write(line)
        file.keep()
    return file.count


def to_line(sample: Sample) -> str:
    """Return a sample as a JSON line without line break. Empty and unknown fields and a NaN reward are left out."""
    row: dict[str, Any] = {key: value for key, value in vars(sample).items() if value is not None and value != {}}
    if math.isnan(sample.reward):
        del row["reward"]
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise UserError(f"sample {sample.id!r} has a number that is not finite") from error


TrlForm = Literal["prompt-completion", "preference", "unpaired"]
FORMS: tuple[str, ...] = get_args(TrlForm)


def to_trl(samples: Sequence[Sample], form: str, threshold: float | None = None) -> Iterator[dict[str, Any]]:
    """Convert samples to rows in a form that TRL reads, in order. Spaces in prompts and completions are kept.

    - "prompt-completion": a row per sample, with its reward, which TRL ignores.
    - "preference": for each group, the best completion paired with every completion of lower reward, with
      "score_chosen" and "score_rejected". Our own DPO learns from the same pairs. A completion that occurs several
      times has its mean reward.
    - "unpaired": a row per sample, whose "label" is True if its reward is above `threshold`.

    Args:
        threshold: threshold of "unpaired"; None means the mean reward.

    Raises:
        UserError: the form is unknown, or a sample has no reward yet.
    """
    if unscored := [sample.id for sample in samples if math.isnan(sample.reward)]:
        raise UserError(f"{len(unscored)} samples have no reward yet, the first being {unscored[0]!r}")
    if form == "preference":
        return _pairs(samples)
    if form == "unpaired":
        mean = sum(sample.reward for sample in samples) / max(1, len(samples))
        return _labelled(samples, mean if threshold is None else threshold)
    if form == "prompt-completion":
        return (
            {"prompt": scored.prompt, "completion": scored.completion, "reward": scored.reward} for scored in samples
        )
    raise UserError(f"unknown form {form!r}{suggestion(form, FORMS)}")


def _pairs(samples: Sequence[Sample]) -> Iterator[dict[str, Any]]:
    for group in Samples(tuple(samples)).groups().values():
        rewards_of: dict[str, list[float]] = {}
        for sample in group:
            rewards_of.setdefault(sample.completion, []).append(sample.reward)
        means = {completion: sum(rewards) / len(rewards) for completion, rewards in rewards_of.items()}
        best = max(means, key=lambda completion: means[completion])
        for other, score in means.items():
            if score < means[best]:
                pair = {"prompt": group[0].prompt, "chosen": best, "rejected": other}
                yield {**pair, "score_chosen": means[best], "score_rejected": score}


def _labelled(samples: Sequence[Sample], threshold: float) -> Iterator[dict[str, Any]]:
    for sample in samples:
        yield {"prompt": sample.prompt, "completion": sample.completion, "label": sample.reward > threshold}
