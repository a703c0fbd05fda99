"""Scores that are kept: in memory, and on the disk where a component has a fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from reflectrl.episodes.log import drop_half_line
from reflectrl.types import UserError
from reflectrl.wings.text.rewards.base import Component
from reflectrl.wings.text.samples.sample import Sample

CHUNK = 1024
"""So many new scores are written at a time; a kill loses no more."""


class Scores:
    """A component's scores, each computed once.

    Args:
        folder: where scores are kept between calls, one file per name and fingerprint; None keeps them in memory only.

    Raises:
        UserError: a file that is there is no file of scores.
    """

    def __init__(self, name: str, component: Component, folder: Path | None = None) -> None:
        self.name, self.component, self.folder = name, component, folder
        self._known: dict[str, float] = {}
        self._fingerprint = ""
        self._path: Path | None = None

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """One number per sample, in order.

        Raises:
            UserError: the component gave another number of scores, or one that is not finite.
        """
        self._open()
        keys = [_key(sample) for sample in samples]
        fresh = {key: sample for key, sample in zip(keys, samples, strict=True) if key not in self._known}
        missing = list(fresh)
        for start in range(0, len(missing), CHUNK):
            part = missing[start : start + CHUNK]
            self._keep(part, self._computed([fresh[key] for key in part]))
        return [self._known[key] for key in keys]

    def _computed(self, samples: Sequence[Sample]) -> list[float]:
        scores = [float(score) for score in self.component.score(samples)]
        if len(scores) != len(samples):
            raise UserError(f"reward {self.name!r} gave {len(scores)} scores for {len(samples)} samples")
        for sample, score in zip(samples, scores, strict=True):
            if not abs(score) < float("inf"):
                raise UserError(f"reward {self.name!r} gave {score} for sample {sample.id!r}")
        return scores

    def _open(self) -> None:
        """Forget what a component with another fingerprint has said, and read what this one has said before."""
        fingerprint = self.component.fingerprint
        if fingerprint == self._fingerprint:
            return
        self._fingerprint, self._known, self._path = fingerprint, {}, None
        if self.folder is not None and fingerprint:
            name = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in self.name)
            self.folder.mkdir(parents=True, exist_ok=True)
            self._path = self.folder / f"{name}-{hashlib.sha256(fingerprint.encode()).hexdigest()[:16]}.jsonl"
            self._known = _read(self._path)

    def _keep(self, keys: Sequence[str], scores: Sequence[float]) -> None:
        self._known |= dict(zip(keys, scores, strict=True))
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(pair)}\n" for pair in zip(keys, scores, strict=True))


def _key(sample: Sample) -> str:
    """Identifies what a component may look at."""
    seen = json.dumps([sample.prompt, sample.completion, dict(sample.meta)], sort_keys=True)
    return hashlib.sha256(seen.encode()).hexdigest()[:24]


def _read(path: Path) -> dict[str, float]:
    drop_half_line(path)
    if not path.exists():
        return {}
    try:
        return {str(key): float(score) for key, score in map(json.loads, path.read_text("utf-8").splitlines())}
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is no file of scores; remove it") from error
