"""Rewards as weighted sums of named components."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reflectrl.core.config import checked
from reflectrl.core.episodes.log import drop_half_line
from reflectrl.core.json_lines import parse_json, read_json_lines
from reflectrl.core.plugins import one_line, resolve_class
from reflectrl.core.types import UserError
from reflectrl.wings.text.rewards.base import Component
from reflectrl.wings.text.samples.sample import Sample

CHUNK = 1024
"""Number of new scores per write to the disk. A killed run loses at most as many."""


class Scores:
    """Cached scores of a component, each computed once.

    Args:
        folder: folder of the cache, with one file per name and fingerprint; None caches in memory only.

    Raises:
        UserError: a cache file cannot be read as scores.
    """

    def __init__(self, name: str, component: Component, folder: Path | None = None) -> None:
        self.name, self.component, self.folder = name, component, folder
        self._known: dict[str, float] = {}
        self._fingerprint = ""
        self._path: Path | None = None
        if getattr(component, "by_group", False):
            component.folder = folder

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Return one number per sample, in order.

        Raises:
            UserError: the component returned the wrong number of scores, or a score that is not finite.
        """
        if getattr(self.component, "by_group", False):  # such a component caches by itself
            return self._computed(samples)
        self._open()
        keys = [_key(sample) for sample in samples]
        unscored = {key: sample for key, sample in zip(keys, samples, strict=True) if key not in self._known}
        missing = list(unscored)
        for start in range(0, len(missing), CHUNK):
            part = missing[start : start + CHUNK]
            scores = self._computed([unscored[key] for key in part])
            self._known |= dict(zip(part, scores, strict=True))
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.writelines(f"{json.dumps(pair)}\n" for pair in zip(part, scores, strict=True))
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
        """Open the cache of the component's current fingerprint. Scores under another fingerprint are dropped."""
        fingerprint = self.component.fingerprint
        if fingerprint == self._fingerprint:
            return
        self._fingerprint, self._known, self._path = fingerprint, {}, None
        if self.folder is not None and fingerprint:
            name = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in self.name)
            self.folder.mkdir(parents=True, exist_ok=True)
            self._path = self.folder / f"{name}-{hashlib.sha256(fingerprint.encode()).hexdigest()[:16]}.jsonl"
            self._known = _read(self._path)


def _key(sample: Sample) -> str:
    """Return a hash of the fields that a component may read."""
    seen = json.dumps([sample.prompt, sample.completion, dict(sample.meta)], sort_keys=True)
    return hashlib.sha256(seen.encode()).hexdigest()[:24]


def _read(path: Path) -> dict[str, float]:
    drop_half_line(path)
    if not path.exists():
        return {}
    return dict(row for _, row in read_json_lines(path, key_and_number, "not a score", "remove the file"))


def key_and_number(line: str) -> tuple[str, float]:
    """Parse a line of a cache: a pair of a key and a number."""
    key, score = parse_json(line)
    return str(key), float(score)


@dataclass(frozen=True)
class Reward:
    """Components and weights. `scores` and `weights` have the same keys."""

    scores: Mapping[str, Scores]
    weights: Mapping[str, float]

    def prepare(self, training: Sequence[Sample]) -> None:
        """Fit every component to the training set."""
        for scores in self.scores.values():
            scores.component.prepare(training)

    def label(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return the samples with their components, and the weighted sum as their reward."""
        columns = {name: scores.score(samples) for name, scores in self.scores.items()}
        labelled = []
        for i, sample in enumerate(samples):
            components = {name: column[i] for name, column in columns.items()}
            labelled.append(
                replace(sample, reward=self.total(components), components={**sample.components, **components})
            )
        return labelled

    def total(self, components: Mapping[str, float]) -> float:
        """Return the weighted sum of a sample's components."""
        return sum(weight * components[name] for name, weight in self.weights.items())


def build(section: Mapping[str, Any], cache: Path | None = None, download: bool = False) -> Reward:
    """Build the reward that a recipe's section describes.

    Args:
        section: component names with a weight each, or with a table of `weight` (default 1) and the component's keyword
            arguments. With `use`, the table names the component and the key is free, so that one component may occur
            twice: `judge = {use = "reward_model", model = "..."}`.
        cache: folder in which scores are kept between runs.
        download: let components download their models, unless the recipe forbids it.

    Raises:
        UserError: a component is unknown, an argument is invalid, or a model cannot be loaded.
    """
    if not section:
        raise UserError("the rewards section names no component; write for instance [rewards] fluency = 1.0")
    scores, weights = {}, {}
    for name, value in section.items():
        settings = dict(value) if isinstance(value, Mapping) else {"weight": value}
        weight = settings.pop("weight", 1.0)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not abs(weight) < float("inf"):
            raise UserError(f"rewards.{name}: the weight must be a number, not {weight!r}")
        weights[name] = float(weight)
        scores[name] = Scores(name, _component(name, settings, download), cache)
    return Reward(scores, weights)


def _component(name: str, settings: dict[str, Any], download: bool) -> Component:
    kind = settings.pop("use", name)
    if not isinstance(kind, str):
        raise UserError(f"rewards.{name}.use must be the name of a component, not {kind!r}")
    component_class, description = resolve_class("rewards", kind, Component), f"reward {name!r}"
    arguments = checked(component_class, settings, description, f"rewards.{name}")
    if download and "download" in component_class.__init__.__annotations__:
        arguments = {"download": True, **arguments}
    try:
        return component_class(**arguments)
    except UserError:
        raise
    except Exception as error:  # a plug-in may raise anything
        raise UserError(f"{description} cannot be made: {one_line(error)}") from error
