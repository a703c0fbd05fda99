"""Builders of a text task's artifacts, from files to files: samples, models, values, and completions."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from reflectrl.core.config import Recipe
from reflectrl.core.config.folders import data_folder
from reflectrl.core.plugins import names
from reflectrl.core.types import Sampling, UserError, named_seed
from reflectrl.learn.checkpoint import drop_state, load_state, write_folder
from reflectrl.learn.examples import Example
from reflectrl.learn.sft import train_sft
from reflectrl.learn.trainer import Verdict
from reflectrl.methods.expert_iteration import Collected, train_expert_iteration
from reflectrl.methods.offline import imitation_rates, train_offline
from reflectrl.methods.shared.offline.completions import Dataset
from reflectrl.methods.shared.offline.config import Algorithm, OfflineConfig, offline_settings
from reflectrl.methods.shared.offline.reference_cache import CARD as REFERENCE_CACHE
from reflectrl.methods.shared.offline.reference_cache import (
    Outcomes,
    ReferenceCache,
    cached_reference,
    fit_reference,
    score_reference,
)
from reflectrl.models.lm import LanguageModel
from reflectrl.models.scratch import save_scratch
from reflectrl.runs.artifact import Build, Source
from reflectrl.runs.metrics import MetricsFile
from reflectrl.wings.text.config import text_settings
from reflectrl.wings.text.generation.generate import read_completions, repeated, write_completions
from reflectrl.wings.text.learn.conditions import asked_for_the_best, with_ranks
from reflectrl.wings.text.learn.online_text import train_online_text
from reflectrl.wings.text.learn.text_dataset import TextCompletions, prompt_ids, text_dataset
from reflectrl.wings.text.pipeline.graph import PPO, REFERENCE, RVS, SPLITS, VALUE, completion_sets, draws_of, last
from reflectrl.wings.text.pipeline.left_out import nothing_to_learn, reason_left_out, write_left_out
from reflectrl.wings.text.pipeline.task import TextTask, read_split
from reflectrl.wings.text.samples import Sample, write_samples
from reflectrl.wings.text.samples.orders import orders
from reflectrl.wings.text.samples.sample import imitable

LOG = logging.getLogger(__name__)

Note = Callable[[dict[str, float]], None]

ORDERS = {"train": 1000, "validation": 150, "test": 200}
"""Default number of prompts per split of the task "orders"."""


def write_data(build: Build, text: TextTask) -> None:
    """Score the samples of all splits and write them into the run folder, the training set last.

    Raises:
        UserError: there is no training or no validation set.
    """
    by_split, task = {split: _source(text, split) for split in SPLITS}, text_settings(text.recipe).task
    for split in SPLITS[:2]:
        if not by_split[split]:
            hint = (
                f"looked in {_folder(text)}; {_source_of_data(text, split)} writes them, docs/offline-text.md says more"
            )
            raise UserError(f"text task {task!r}: no {split} samples ({hint})")
    text.unprepared.prepare([sample for sample in by_split["train"] if imitable(sample)])
    # The training set comes last, because its file tells that the artifact is complete.
    for split in reversed(SPLITS):
        if by_split[split]:
            samples = _labelled(text, by_split[split])
            noise = text_settings(text.recipe).noise
            if split == "train" and noise:
                samples = with_noise(samples, noise)
            write_samples(text.data(split), samples)
            build.progress(len(samples), len(samples), f"{split} samples, mean reward {_mean(samples):.3f}")


def _source(text: TextTask, split: str) -> list[Sample]:
    """Return the samples of a split's first prompts, as many prompts as the recipe asks for."""
    settings = text_settings(text.recipe)
    limit = {"train": settings.prompts, "validation": settings.validation_prompts}.get(split, 0)
    samples: Sequence[Sample]
    if settings.task == "orders":
        samples = list(orders(limit or ORDERS[split], settings.answers, split, named_seed("orders")))
    else:
        samples = read_split(_folder(text), split)
    groups = list(dict.fromkeys(sample.group for sample in samples))
    first_groups = set(groups[:limit] if limit else groups)
    return [sample for sample in samples if sample.group in first_groups]


def _folder(text: TextTask) -> Path:
    settings = text_settings(text.recipe)
    return (Path(settings.data) if settings.data else data_folder(settings.task)) / settings.subset


def _source_of_data(text: TextTask, split: str) -> str:
    """Return the command that writes the samples of a task.

    For a task of the user's own, the data folder's name may be the name of an installed benchmark.
    """
    settings = text_settings(text.recipe)
    if settings.task != "own":
        return f"`reflectrl data {settings.task} --from DIR`"
    benchmark = Path(settings.data).name
    if benchmark in names("benchmarks"):
        return f"`reflectrl data {benchmark}`"
    return f"`reflectrl data convert --from FILE --to {_folder(text) / split}.jsonl`"


def _labelled(text: TextTask, samples: Sequence[Sample]) -> list[Sample]:
    if text_settings(text.recipe).label == "all" or any(math.isnan(sample.reward) for sample in samples):
        return text.unprepared.label(samples)
    return list(samples)


def with_noise(samples: Sequence[Sample], deviation: float) -> list[Sample]:
    """Add Gaussian noise to the rewards of samples, and keep them within [0, 1].

    The noise of a sample is drawn from its id, so it does not depend on the other samples.
    """
    noisy = []
    for sample in samples:
        rng = np.random.default_rng(named_seed("reward-noise", sample.id))
        noisy.append(replace(sample, reward=min(1.0, max(0.0, sample.reward + deviation * rng.normal()))))
    return noisy


def make_base(build: Build, text: TextTask) -> None:
    """Make a model from scratch, with a vocabulary from the training samples."""
    texts = [words for sample in text.samples("train") for words in (sample.prompt, sample.completion)]
    init = named_seed(build.seed, "base")
    fill = partial(save_scratch, config=text.recipe.model, texts=texts, choices=0, seed=init)
    write_folder(build.out, fill)


def make_reference(build: Build, text: TextTask, base: Source) -> None:
    """Train the reference by imitation of the data, or take the base model as it is."""
    seed, recipe = build.seed, build.recipe
    lm = text.load(base, seed)
    if text_settings(recipe).reference == "sft":
        steps = offline_settings(recipe).reference_steps
        rows = {
            split: _examples(lm, filter(imitable, text.samples(split)), offline_settings(recipe))
            for split in SPLITS[:2]
        }
        shared = {"kind": "sft", "seed": seed, "arm": None}
        with MetricsFile(build.metrics, build.learner, shared) as file:

            def note(metrics: dict[str, float]) -> None:
                file.write(metrics)
                build.progress(int(metrics["step"]), steps, f"validation loss {metrics['eval_loss']:.3f}")

            sft = replace(recipe.sft, steps=steps)
            train_sft(lm, rows["train"], rows["validation"], sft, named_seed(seed, REFERENCE), note, build.learner)
    _save(build.out, lm, seed)
    drop_state(build.learner)


def _examples(lm: LanguageModel, samples: Any, config: OfflineConfig) -> Sequence[Example]:
    data = text_dataset(lm, list(samples), config)
    return cast(TextCompletions, data.completions).examples


def fit_values(build: Build, text: TextTask, reference: Path) -> None:
    """Fit the reference's value to the rewards of its completions, and compute advantages of the training samples."""
    seed, run = build.seed, build.context.run
    lm = text.load(reference, seed)
    learner = run.learner(seed, VALUE)  # never written: the reference cache is made in one go
    shared = {"kind": "offline_value", "seed": seed, "arm": None}
    with MetricsFile(run.metrics(seed, VALUE), learner, shared) as file:

        def note(metrics: dict[str, float]) -> None:
            file.write(metrics)
            message = f"explained variance {metrics['explained_variance']:.2f}"
            build.progress(int(metrics["step"]), offline_settings(text.recipe).value_epochs, message)

        sets = dict[tuple[str, ...], str]()
        for arm in reversed(text.offline):
            sets[tuple(sample.id for sample in text.training(arm))] = arm
        for algorithm in reversed(sets.values()):  # one algorithm per distinct set of training samples
            reference_cache(text, lm, seed, build.out.parent, written_by_reference(build, seed), algorithm, note)


def remaining_values(folder: Path, text: TextTask) -> bool:
    """Return whether a reference cache that the arms need is missing below a folder."""
    folders = [cache_folder(folder, text, arm) for arm in text.offline]
    return not all((folder / REFERENCE_CACHE).is_file() for folder in folders)


def reference_cache(
    text: TextTask,
    lm: LanguageModel,
    seed: int,
    folder: Path,
    written: Path,
    algorithm: str,
    note: Note,
) -> tuple[Dataset, ReferenceCache]:
    """Return an algorithm's samples as data of the model, and the reference's view of them.

    The model must still have the reference's weights.

    Args:
        folder: the folder with the caches.
        written: the file for completions of the reference, if its value is fitted to them.
    """
    config, samples = offline_settings(text.recipe), text.training(algorithm)
    data = text_dataset(lm, samples, config)
    played = partial(_played, text, lm, seed, written) if config.value_from == "rollouts" else None
    cache = cache_folder(folder, text, algorithm)
    return data, cached_reference(cache, data, config, named_seed(seed, "value"), note, played)


def _renewed(text: TextTask, lm: LanguageModel, data: Dataset, seed: int, path: Path) -> ReferenceCache:
    """Return the view that the current weights have of the data, with their own value.

    Args:
        path: file for their completions. It is removed afterwards.
    """
    config = offline_settings(text.recipe)
    path.unlink(missing_ok=True)
    played = partial(_played, text, lm, seed, path) if config.value_from == "rollouts" else None
    cache = fit_reference(data, config, named_seed(seed, "value"), lambda _: None, played)
    path.unlink(missing_ok=True)
    return cache


def cache_folder(folder: Path, text: TextTask, algorithm: str) -> Path:
    """Return the folder of the reference cache of an algorithm's samples: of all, or of the imitable samples only."""
    uses_all = len(text.training(algorithm)) == len(text.samples("train"))
    return folder / (VALUE if uses_all else f"{VALUE}-imitable")


def _played(text: TextTask, lm: LanguageModel, seed: int, path: Path) -> Outcomes:
    """Score the reference's greedy completions of validation prompts."""
    config = offline_settings(text.recipe)
    prompts = text.prompts("validation")
    scored = text.reward.label(completions(text, lm, prompts, path, "greedy", seed))
    ids = [prompt_ids(lm, sample, config.prompt_tokens, config.completion_tokens) for sample in scored]
    return Outcomes(ids, torch.tensor([sample.reward for sample in scored]), [sample.group for sample in scored])


def completions(
    text: TextTask,
    lm: LanguageModel,
    prompts: Sequence[Sample],
    path: Path,
    sampling: str,
    seed: int,
    draws: int = 1,
) -> list[Sample]:
    """Generate a model's completions of prompts, `draws` of each.

    `sampling` is "greedy", or "sampled" with the recipe's settings.
    """
    recipe = text.recipe
    sampling_settings = (
        Sampling(0.0) if sampling == "greedy" else Sampling(recipe.rl.temperature, text_settings(recipe).top_p)
    )
    return write_completions(
        lm,
        prompts,
        path,
        sampling_settings,
        most_tokens=offline_settings(recipe).completion_tokens,
        prompt_tokens=offline_settings(recipe).prompt_tokens,
        seed=named_seed(seed, "write", path.stem),
        draws=draws,
        batch_size=recipe.eval.batch,
    )


def train_arm(build: Build, text: TextTask, start: Source, values: Path | None) -> None:
    """Train one arm, and save its best checkpoint on validation prompts and its last one.

    Args:
        start: the reference; for the arm "rvs" the base model.
        values: the folder with the reference caches; None for arms that need none.
    """
    seed, name = build.seed, build.name
    lm, learner = text.load(start, seed), build.learner
    shared = {"kind": "rl" if name == PPO else "offline", "seed": seed, "arm": name}
    with MetricsFile(build.metrics, learner, shared) as file:
        note = partial(_note_progress, build, file)
        recipe, learning_seed = text.recipe, named_seed(seed, name)
        evaluate = partial(
            _evaluate, text, lm, name, seed, _written(build, name, seed, "now", "validation", "learning")
        )
        if name == PPO:
            prompts, reward = text.prompts("train"), text.reward.label
            train_online_text(
                lm, prompts, reward, evaluate, recipe.rl, offline_settings(recipe), learning_seed, note, learner
            )
        elif name == RVS:
            config = _from_base(recipe)
            data = text_dataset(lm, with_ranks(text.training(name)), config)
            cache = score_reference(data, torch.zeros(len(data)))
            train_offline(data, cache, config, learning_seed, note, learner, evaluate)
        else:
            assert values is not None
            config = replace(offline_settings(recipe), algorithm=cast(Algorithm, name))
            data, cache = reference_cache(
                text, lm, seed, values, written_by_reference(build, seed), name, lambda _: None
            )
            if why := nothing_to_learn(data, cache, config, name):
                leave_out(build, why)
                return
            rewritten = _written(build, name, seed, "now", "validation", "reference")
            renew = partial(_renewed, text, lm, data, seed, rewritten)
            train_offline(data, cache, config, learning_seed, note, learner, evaluate, renew)
    _save(build.out, lm, seed)
    saved = load_state(learner)
    if saved is not None:
        lm.load_weights(saved[0]["weights"])
    _save(build.out.with_name(last(name)), lm, seed)
    drop_state(learner)


def _from_base(recipe: Recipe) -> OfflineConfig:
    """Return the settings of imitation from the base model: as many steps as the reference and another arm together."""
    config = offline_settings(recipe)
    before = config.reference_steps if text_settings(recipe).reference == "sft" else 0
    return replace(config, algorithm="nll", steps=before + config.steps, **imitation_rates(recipe))


def train_on_own_best(build: Build, text: TextTask, reference: Path) -> None:
    """Train the arm "expert-iteration" from the reference, and save its best checkpoint on validation prompts."""
    seed, name = build.seed, build.name
    lm, config, learning_seed = text.load(reference, seed), offline_settings(text.recipe), named_seed(seed, name)
    with MetricsFile(build.metrics, build.learner, {"kind": "offline", "seed": seed, "arm": name}) as file:
        note = partial(_note_progress, build, file)
        collect = partial(_own_best, text, lm, seed, _written(build, name, seed, "own", "train", "learning"))
        evaluate = partial(
            _evaluate, text, lm, name, seed, _written(build, name, seed, "now", "validation", "learning")
        )
        train_expert_iteration(lm, collect, config, learning_seed, note, build.learner, evaluate)
    _save(build.out, lm, seed)
    drop_state(build.learner)


def _own_best(text: TextTask, lm: LanguageModel, seed: int, path: Path, round_number: int) -> Collected:
    """Write `offline.round_episodes` completions of every training prompt, and keep the best of each.

    Completions that are all equally good say nothing about what to write, so their prompt is left out.
    """
    config, recipe = offline_settings(text.recipe), text.recipe
    path.unlink(missing_ok=True)
    written = write_completions(
        lm,
        text.prompts("train"),
        path,
        Sampling(recipe.rl.temperature, text_settings(recipe).top_p),
        most_tokens=config.completion_tokens,
        prompt_tokens=config.prompt_tokens,
        seed=named_seed(seed, "own", round_number),
        draws=config.round_episodes,
        batch_size=recipe.eval.batch,
    )
    path.unlink()
    groups: dict[str, list[Sample]] = {}
    scored = text.reward.label(written)
    for sample in scored:
        groups.setdefault(sample.group, []).append(sample)
    best = []
    for group in groups.values():
        first = max(group, key=lambda sample: sample.reward)
        if config.round_episodes == 1 or first.reward > min(sample.reward for sample in group):
            best.append(first)
    metrics = {"written_reward": _mean(scored)}
    return text_dataset(lm, best, config) if best else None, metrics


def _note_progress(build: Build, file: MetricsFile, metrics: dict[str, float]) -> Verdict:
    """Log the metrics of a training, and show its progress. Return the callbacks' request."""
    verdict = file.write(metrics)
    total = max(int(metrics["steps"]), int(metrics["step"]))
    kind = "eval_reward" if "eval_reward" in metrics else "return"
    metric_name = {"eval_reward": "validation reward", "return": "reward"}[kind]
    build.progress(int(metrics["step"]), total, f"{metric_name} {metrics[kind]:.3f}")
    return verdict


def leave_out(build: Build, why: str) -> None:
    """Write the reason why an arm has nothing to learn from in place of its models."""
    write_left_out(build.out.with_name(last(build.name)), why)
    write_left_out(build.out, why)
    build.progress(1, 1, f"left out: {why}")
    LOG.warning("reflectrl: the arm %s (seed %d) is left out: %s", build.name, build.seed, why)


def _evaluate(text: TextTask, lm: LanguageModel, arm: str, seed: int, path: Path) -> dict[str, float]:
    """Return the mean reward of the current model's completions of validation prompts."""
    prompts = _asked(text, arm, "validation", text_settings(text.recipe).eval_prompts)
    path.unlink(missing_ok=True)
    scored = text.reward.label(completions(text, lm, prompts, path, text.recipe.rl.eval_sampling, seed))
    path.unlink()
    return {"eval_reward": _mean(scored)}


def _asked(text: TextTask, arm: str, split: str, most: int) -> list[Sample]:
    """Return the prompts of a split as an arm reads them."""
    prompts = text.prompts(split, most)
    return asked_for_the_best(prompts) if arm == RVS else prompts


def _save(folder: Path, lm: LanguageModel, seed: int) -> None:
    write_folder(folder, partial(lm.save, artifact=folder.name, seed=seed))


def _mean(samples: Sequence[Sample]) -> float:
    return float(np.mean([sample.reward for sample in samples]))


# ---- final completions of an arm -----------------------------------------------------------------------------------


def write_arm(build: Build, text: TextTask, best: Path, last: Path | None) -> None:
    """Generate the missing completions of an arm's best and last checkpoint."""
    if reason_left_out(best):
        without_completions(build.context.run.path, build.name, build.seed).touch()
        return
    models: dict[Path, LanguageModel] = {}
    for labels, prompts in unwritten(build, text):
        source = last if labels["checkpoint"] == "last" else best
        assert source is not None
        if source not in models:
            models = {source: text.load(source, build.seed)}  # one in memory
        path = written_to(build.context.run.path, labels)
        draws = draws_of(text.recipe, labels)
        written = completions(text, models[source], prompts, path, labels["sampling"], build.seed, draws)
        description = f"completions of {labels['split']} prompts, {labels['sampling']} {labels['checkpoint']}"
        build.progress(len(written), len(written), description.rstrip())


def unwritten(build: Build, text: TextTask) -> Iterator[tuple[dict[str, Any], list[Sample]]]:
    """Yield each incomplete set of completions of an arm (an entry of `completion_sets`) with all its prompts."""
    if without_completions(build.context.run.path, build.name, build.seed).exists():
        return
    for labels in completion_sets(text.recipe, build.seed, build.name, text.samples):
        prompts = _asked(text, build.name, labels["split"], text.recipe.eval.episodes)
        path = written_to(build.context.run.path, labels)
        if (
            not {sample.id for sample in repeated(prompts, draws_of(text.recipe, labels))}
            <= read_completions(path).keys()
        ):
            yield labels, prompts


def without_completions(folder: Path, arm: str, seed: int) -> Path:
    """Return the empty file that stands in a run folder for the completions of an arm that was left out."""
    return folder / "completions" / f"{arm}-seed{seed}-left-out.jsonl"


def written_by_reference(build: Build, seed: int) -> Path:
    """Return the file for completions of the reference to which its value is fitted."""
    return _written(build, REFERENCE, seed, "value", "validation", "greedy")


def _written(build: Build, arm: str, seed: int, checkpoint: str, split: str, sampling: str) -> Path:
    labels = {"arm": arm, "seed": seed, "checkpoint": checkpoint, "split": split, "sampling": sampling}
    return written_to(build.context.run.path, labels)


def written_to(folder: Path, labels: Mapping[str, Any]) -> Path:
    """Return the file of a set of completions (an entry of `completion_sets`) in a run folder."""
    checkpoint = labels["checkpoint"] or "only"
    name = f"{labels['arm']}-seed{labels['seed']}-{checkpoint}-{labels['split']}-{labels['sampling']}.jsonl"
    return folder / "completions" / name
