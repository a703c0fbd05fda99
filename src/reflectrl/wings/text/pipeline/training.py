"""Builders of a text task, each from files to files: samples, base, reference, its value, arms, and completions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from reflectrl.core.config.folders import data_folder
from reflectrl.core.plugins import names
from reflectrl.core.types import Sampling, UserError, named_seed
from reflectrl.learn.checkpoint import drop_state, load_state, write_folder
from reflectrl.learn.examples import Example
from reflectrl.learn.sft import train_sft
from reflectrl.learn.trainer import Verdict
from reflectrl.methods.offline.completions import Dataset
from reflectrl.methods.offline.config import Algorithm, OfflineConfig, offline_settings
from reflectrl.methods.offline.learn import train_offline
from reflectrl.methods.offline.reference_cache import CARD as REFERENCE_CACHE
from reflectrl.methods.offline.reference_cache import Outcomes, ReferenceCache, cached_reference
from reflectrl.models.lm import LanguageModel
from reflectrl.models.scratch import save_scratch
from reflectrl.runs.artifacts import Artifact
from reflectrl.runs.metrics import MetricsFile
from reflectrl.runs.progress import Tick
from reflectrl.wings.text.config import text_settings
from reflectrl.wings.text.generation.generate import read_completions, write_completions
from reflectrl.wings.text.learn.online_text import train_online_text
from reflectrl.wings.text.learn.text_dataset import TextCompletions, prompt_ids, text_dataset
from reflectrl.wings.text.pipeline.graph import PPO, REFERENCE, SPLITS, VALUE, last, places
from reflectrl.wings.text.pipeline.task import TextContext, imitable, read_split
from reflectrl.wings.text.samples import Sample, write_samples
from reflectrl.wings.text.samples.orders import orders

Note = Callable[[dict[str, float]], None]

ORDERS = {"train": 1000, "validation": 150, "test": 200}
"""Default number of prompts per split of the task "orders"."""


def data(text: TextContext, artifact: Artifact, tick: Tick) -> None:
    """Score the samples of all splits and write them into the run folder, the training set last.

    Raises:
        UserError: there is no training or no validation set.
    """
    found, task = {split: _source(text, split) for split in SPLITS}, text_settings(text.recipe).task
    for split in SPLITS[:2]:
        if not found[split]:
            where = (
                f"looked in {_folder(text)}; {_source_of_data(text, split)} writes them, docs/offline-text.md says more"
            )
            raise UserError(f"text task {task!r}: no {split} samples ({where})")
    text.unprepared.prepare([sample for sample in found["train"] if imitable(sample)])
    # The training set comes last, because its file tells that the artifact is complete.
    for split in reversed(SPLITS):
        if found[split]:
            samples = _labelled(text, found[split])
            write_samples(text.data(split), samples)
            tick(len(samples), len(samples), f"{split} samples, mean reward {_mean(samples):.3f}")


def _source(text: TextContext, split: str) -> list[Sample]:
    """Return the samples of a split's first prompts, as many prompts as the recipe asks for."""
    settings = text_settings(text.recipe)
    most = {"train": settings.prompts, "validation": settings.validation_prompts}.get(split, 0)
    samples: Sequence[Sample]
    if settings.task == "orders":
        samples = list(orders(most or ORDERS[split], settings.answers, split, named_seed("orders")))
    else:
        samples = read_split(_folder(text), split)
    groups = list(dict.fromkeys(sample.group for sample in samples))
    kept = set(groups[:most] if most else groups)
    return [sample for sample in samples if sample.group in kept]


def _folder(text: TextContext) -> Path:
    settings = text_settings(text.recipe)
    return (Path(settings.data) if settings.data else data_folder(settings.task)) / settings.subset


def _source_of_data(text: TextContext, split: str) -> str:
    """Return the command that writes the samples of a task.

    For a task of the user's own, the data folder's name may be the name of an installed benchmark.
    """
    settings = text_settings(text.recipe)
    if settings.task != "own":
        return f"`reflectrl data {settings.task} --from DIR`"
    maker = Path(settings.data).name
    if maker in names("benchmarks"):
        return f"`reflectrl data {maker}`"
    return f"`reflectrl data convert --from FILE --to {_folder(text) / split}.jsonl`"


def _labelled(text: TextContext, samples: Sequence[Sample]) -> list[Sample]:
    if text_settings(text.recipe).label == "all" or any(math.isnan(sample.reward) for sample in samples):
        return text.unprepared.label(samples)
    return list(samples)


def base(text: TextContext, artifact: Artifact, tick: Tick) -> None:
    """Make a model from scratch, with a vocabulary from the training samples."""
    texts = [words for sample in text.samples("train") for words in (sample.prompt, sample.completion)]
    init = named_seed(artifact.seed, "base")
    fill = partial(save_scratch, config=text.recipe.model, texts=texts, choices=0, seed=init)
    write_folder(text.run.checkpoint(artifact.seed, "base"), fill)


def reference(text: TextContext, artifact: Artifact, tick: Tick) -> None:
    """Train the reference by imitation of the data, or take the base model as it is."""
    seed, recipe = artifact.seed, text.recipe
    lm = text.load("base", seed)
    if text_settings(recipe).reference == "sft":
        steps = offline_settings(recipe).reference_steps
        rows = {
            split: _examples(lm, filter(imitable, text.samples(split)), offline_settings(recipe))
            for split in SPLITS[:2]
        }
        learner = text.run.learner(seed, REFERENCE)
        shared = {"kind": "sft", "seed": seed, "arm": None}
        with MetricsFile(text.run.metrics(seed, REFERENCE), learner, shared) as file:

            def note(metrics: dict[str, float]) -> None:
                file.write(metrics)
                tick(int(metrics["step"]), steps, f"validation loss {metrics['eval_loss']:.3f}")

            sft = replace(recipe.sft, steps=steps)
            train_sft(lm, rows["train"], rows["validation"], sft, named_seed(seed, REFERENCE), note, learner)
    _save(text, lm, seed, REFERENCE)
    drop_state(text.run.learner(seed, REFERENCE))


def _examples(lm: LanguageModel, samples: Any, config: OfflineConfig) -> Sequence[Example]:
    data = text_dataset(lm, list(samples), config)
    return cast(TextCompletions, data.completions).examples


def value(text: TextContext, artifact: Artifact, tick: Tick) -> None:
    """Fit the reference's value to the rewards of its completions, and compute advantages of the training samples."""
    seed = artifact.seed
    lm = text.load(REFERENCE, seed)
    learner = text.run.learner(seed, VALUE)  # never written: the reference cache is made in one go
    shared = {"kind": "offline_value", "seed": seed, "arm": None}
    with MetricsFile(text.run.metrics(seed, VALUE), learner, shared) as file:

        def note(metrics: dict[str, float]) -> None:
            file.write(metrics)
            about = f"explained variance {metrics['explained_variance']:.2f}"
            tick(int(metrics["step"]), offline_settings(text.recipe).value_epochs, about)

        sets = {tuple(sample.id for sample in text.training(arm)): arm for arm in reversed(text.offline)}
        for algorithm in reversed(sets.values()):  # one algorithm per distinct set of training samples
            reference_cache(text, lm, seed, algorithm, note)


def remaining_values(text: TextContext, artifact: Artifact) -> bool:
    """Return whether a reference cache that the arms need is missing. The arms themselves refuse a stale cache."""
    folders = [cache_folder(text, artifact.seed, arm) for arm in text.offline]
    return not all((folder / REFERENCE_CACHE).is_file() for folder in folders)


def reference_cache(
    text: TextContext, lm: LanguageModel, seed: int, algorithm: str, note: Note
) -> tuple[Dataset, ReferenceCache]:
    """Return an algorithm's samples as data of the model, and the reference's view of them.

    The model must still have the reference's weights.
    """
    config, samples = offline_settings(text.recipe), text.training(algorithm)
    data = text_dataset(lm, samples, config)
    folder = cache_folder(text, seed, algorithm)
    played = partial(_played, text, lm, seed) if config.value_from == "rollouts" else None
    return data, cached_reference(folder, data, config, named_seed(seed, "value"), note, played)


def cache_folder(text: TextContext, seed: int, algorithm: str) -> Path:
    """Return the folder of the reference cache of an algorithm's samples: of all, or of the imitable samples only."""
    everything = len(text.training(algorithm)) == len(text.samples("train"))
    return text.run.checkpoint(seed, VALUE if everything else f"{VALUE}-imitable")


def _played(text: TextContext, lm: LanguageModel, seed: int) -> Outcomes:
    """Score the reference's greedy completions of validation prompts."""
    config = offline_settings(text.recipe)
    prompts = text.prompts("validation")
    path = text.written(REFERENCE, seed, "validation", "greedy", "value")
    found = text.reward.label(completions(text, lm, prompts, path, "greedy", seed))
    ids = [prompt_ids(lm, sample, config.prompt_tokens, config.completion_tokens) for sample in found]
    return Outcomes(ids, torch.tensor([sample.reward for sample in found]), [sample.group for sample in found])


def completions(
    text: TextContext, lm: LanguageModel, prompts: Sequence[Sample], path: Path, sampling: str, seed: int
) -> list[Sample]:
    """Generate a model's completions of prompts. `sampling` is "greedy", or "sampled" with the recipe's settings."""
    recipe = text.recipe
    how = Sampling(0.0) if sampling == "greedy" else Sampling(recipe.rl.temperature, text_settings(recipe).top_p)
    return write_completions(
        lm,
        prompts,
        path,
        how,
        most_tokens=offline_settings(recipe).completion_tokens,
        prompt_tokens=offline_settings(recipe).prompt_tokens,
        seed=named_seed(seed, "write", path.stem),
        batch_size=recipe.eval.batch,
    )


def arm(text: TextContext, artifact: Artifact, tick: Tick) -> None:
    """Train one arm from the reference, and save its best checkpoint on validation prompts and its last one."""
    seed, name = artifact.seed, artifact.name
    lm, learner = text.load(REFERENCE, seed), text.run.learner(seed, name)
    shared = {"kind": "rl" if name == PPO else "offline", "seed": seed, "arm": name}
    with MetricsFile(text.run.metrics(seed, name), learner, shared) as file:

        def note(metrics: dict[str, float]) -> Verdict:
            verdict = file.write(metrics)
            total = max(int(metrics["steps"]), int(metrics["step"]))
            kind = "eval_reward" if "eval_reward" in metrics else "return"
            about = {"eval_reward": "validation reward", "return": "reward"}[kind]
            tick(int(metrics["step"]), total, f"{about} {metrics[kind]:.3f}")
            return verdict

        recipe, learning_seed = text.recipe, named_seed(seed, name)
        evaluate = partial(_evaluate, text, lm, seed, name)
        if name == PPO:
            prompts, reward = text.prompts("train"), text.reward.label
            train_online_text(
                lm, prompts, reward, evaluate, recipe.rl, offline_settings(recipe), learning_seed, note, learner
            )
        else:
            config = replace(offline_settings(recipe), algorithm=cast(Algorithm, name))
            data, known = reference_cache(text, lm, seed, name, lambda _: None)
            train_offline(data, known, config, learning_seed, note, learner, evaluate)
    _save(text, lm, seed, name)
    saved = load_state(learner)
    if saved is not None:
        lm.load_weights(saved[0]["weights"])
    _save(text, lm, seed, last(name))
    drop_state(learner)


def _evaluate(text: TextContext, lm: LanguageModel, seed: int, arm: str) -> dict[str, float]:
    """Return the mean reward of the current model's completions of validation prompts."""
    prompts = text.prompts("validation", text_settings(text.recipe).eval_prompts)
    path = text.written(arm, seed, "validation", "learning", "now")
    path.unlink(missing_ok=True)
    found = text.reward.label(completions(text, lm, prompts, path, text.recipe.rl.eval_sampling, seed))
    path.unlink()
    return {"eval_reward": _mean(found)}


def _save(text: TextContext, lm: LanguageModel, seed: int, name: str) -> None:
    write_folder(text.run.checkpoint(seed, name), partial(lm.save, artifact=name, seed=seed))


def _mean(samples: Sequence[Sample]) -> float:
    return float(np.mean([sample.reward for sample in samples]))


# ---- final completions of an arm -----------------------------------------------------------------------------------


def writing(text: TextContext, artifact: Artifact, tick: Tick) -> None:
    """Generate the missing completions of an arm's best and last checkpoint."""
    models: dict[str, LanguageModel] = {}
    for place, prompts in _unwritten(text, artifact):
        name = last(artifact.name) if place["checkpoint"] == "last" else artifact.name
        if name not in models:
            models = {name: text.load(name, artifact.seed)}  # one in memory
        found = completions(text, models[name], prompts, written_to(text, place), place["sampling"], artifact.seed)
        about = f"completions of {place['split']} prompts, {place['sampling']} {place['checkpoint']}"
        tick(len(found), len(found), about.rstrip())


def remaining_writing(text: TextContext, artifact: Artifact) -> bool:
    """Return whether completions of an arm are missing."""
    return any(_unwritten(text, artifact))


def _unwritten(text: TextContext, artifact: Artifact) -> Iterator[tuple[dict[str, Any], list[Sample]]]:
    """Yield each incomplete set of completions (an entry of `places`) with all its prompts."""
    for place in places(text.recipe, artifact.seed, artifact.name, text.samples):
        prompts = text.prompts(place["split"], text.recipe.eval.episodes)
        if not {sample.id for sample in prompts} <= read_completions(written_to(text, place)).keys():
            yield place, prompts


def written_to(text: TextContext, place: Mapping[str, Any]) -> Path:
    """Return the file of a set of completions (an entry of `places`)."""
    return text.written(place["arm"], place["seed"], place["split"], place["sampling"], place["checkpoint"] or "only")
