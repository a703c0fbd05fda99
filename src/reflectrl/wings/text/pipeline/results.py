"""The end of a text task: every arm writes for every split, and what it wrote is judged: `results.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from reflectrl.learn.checkpoint import write_text
from reflectrl.models.lm import LanguageModel
from reflectrl.pipeline.progress import Tick
from reflectrl.pipeline.results import commit, hardware
from reflectrl.wings.text.generation.generate import read_completions
from reflectrl.wings.text.generation.table import TextRow, percentiles, pooled, row_of
from reflectrl.wings.text.pipeline.parts import completions, last, reference_cache
from reflectrl.wings.text.pipeline.place import DATA, REFERENCE, TextRun
from reflectrl.wings.text.samples import Sample

Place = dict[str, Any]
"""task, arm, seed, checkpoint, split and sampling of a row."""


def places(text: TextRun, seed: int, arm: str) -> list[Place]:
    """What is to be written by an arm: its best and its last checkpoint, on every split, in every way of sampling."""
    checkpoints = ("",) if arm in (DATA, REFERENCE) else ("best", "last")
    ways = ("",) if arm == DATA else text.recipe.eval.sampling
    shared = {"task": _task(text), "arm": arm, "seed": seed}
    return [
        {**shared, "checkpoint": checkpoint, "split": split, "sampling": sampling}
        for split in text.recipe.eval.splits
        if text.samples(split)
        for sampling in ways
        for checkpoint in checkpoints
    ]


def _task(text: TextRun) -> str:
    settings = text.recipe.text
    name = text.recipe.name if settings.task == "own" else settings.task
    return f"{name}-{settings.subset}" if settings.subset else name


def write_part(text: TextRun, seed: int, arm: str, tick: Tick) -> None:
    """Let an arm write all that is missing."""
    models: dict[str, LanguageModel] = {}
    for place in places(text, seed, arm) if arm != DATA else ():
        prompts, path = text.prompts(place["split"], text.recipe.eval.episodes), _path(text, place)
        if {sample.id for sample in prompts} <= read_completions(path).keys():
            continue
        part = last(arm) if place["checkpoint"] == "last" else arm
        if part not in models:
            models = {part: text.load(part, seed)}  # one in memory
        found = completions(text, models[part], prompts, path, place["sampling"], seed)
        about = f"completions of {place['split']} prompts, {place['sampling']} {place['checkpoint']}"
        tick(len(found), len(found), about.rstrip())


def _path(text: TextRun, place: Place) -> Any:
    return text.written(place["arm"], place["seed"], place["split"], place["sampling"], place["checkpoint"] or "only")


def rows(text: TextRun) -> Iterator[TextRow]:
    """A row per arm, seed, checkpoint, split and sampling; the data's own completions have no seed of training."""
    for arm in text.recipe.arms:
        for seed in text.recipe.seeds[:1] if arm == DATA else text.recipe.seeds:
            for place in places(text, seed, arm):
                references = {} if arm == DATA else text.references(place["split"])
                written = text.test_reward.label(_written(text, place))
                yield row_of(place, written, references, text.recipe.eval.confidence)


def _written(text: TextRun, place: Place) -> list[Sample]:
    """Completions, one per prompt: of the data, too, since the variety of texts can be compared for equal numbers."""
    if place["arm"] == DATA:
        return text.prompts(place["split"], text.recipe.eval.episodes)
    kept = {sample.group for sample in text.prompts(place["split"], text.recipe.eval.episodes)}
    return [sample for sample in read_completions(_path(text, place)).values() if sample.group in kept]


def spread(text: TextRun) -> list[dict[str, Any]]:
    """Percentiles of reward, value and advantage of the training samples, per seed."""
    found = []
    for seed in text.recipe.seeds if text.offline else ():
        _, known = reference_cache(text, text.load(REFERENCE, seed), seed, text.offline[0], lambda _: None)
        numbers = {
            "reward": known.values_N + known.advantages_N,
            "value": known.values_N,
            "advantage": known.advantages_N,
        }
        found.append({"seed": seed, **{name: percentiles(values.tolist()) for name, values in numbers.items()}})
    return found


def write_results(text: TextRun) -> None:
    """Write `results.json`."""
    found = list(rows(text))
    results = {
        "kind": "text",
        "recipe": text.recipe.name,
        "task": _task(text),
        "commit": commit(),
        "hardware": hardware(),
        "confidence": text.recipe.eval.confidence,
        "rewards": sorted(text.recipe.test_rewards or text.recipe.rewards),
        "rows": [asdict(row) for row in found],
        "summary": [asdict(line) for line in pooled(found, text.recipe.eval.confidence)],
        "percentiles": spread(text),
    }
    write_text(text.run.path / "results.json", json.dumps(results, indent=1) + "\n")
