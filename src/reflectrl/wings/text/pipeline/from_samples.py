"""Training a model on samples with rewards: a folder with settings, the reference cache, metrics and the model."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from reflectrl.config import ModelConfig, OfflineConfig
from reflectrl.config.folders import refuse_links
from reflectrl.learn.checkpoint import drop_state, recover, write_folder, write_text
from reflectrl.learn.offline import train_offline
from reflectrl.learn.offline_algorithms import BY_ADVANTAGE
from reflectrl.learn.reference_cache import cached_reference
from reflectrl.models.lm import CARD, LanguageModel
from reflectrl.models.load import load_model
from reflectrl.pipeline.metrics import MetricsFile
from reflectrl.types import UserError, named_seed
from reflectrl.wings.text.learn.text_dataset import shortened, text_dataset
from reflectrl.wings.text.samples.sample import Sample

Say = Callable[[str], None]

LOGGED = "the value is fitted to the rewards in the data: it is that of whoever wrote the completions, not of the model"
"""What is to be known where nothing can be played or scored."""


def train_on_samples(
    samples: Sequence[Sample],
    source: str | Path,
    model: ModelConfig,
    config: OfflineConfig,
    seed: int,
    folder: Path,
    say: Say,
) -> Path:
    """Train a model, which is its own reference; called again, it goes on, or finds that nothing is left to do.

    Args:
        source: name or folder of the model.
        folder: gets `settings.json`, `reference-cache/`, `metrics.jsonl`, and at last `model/` (Hugging Face's format).
        say: receives a line now and then.

    Returns:
        The model's folder.

    Raises:
        UserError: the model cannot be loaded, the samples teach nothing, or the folder holds another training.
    """
    done, learner = folder / "model", folder / "learner"
    _claim(folder, _settings(samples, source, model, config, seed))
    recover(done)
    if (done / CARD).is_file():
        say(f"{done} is complete")
        return done
    lm = load_model(source, model, "policy", named_seed(seed, "policy"))
    data = text_dataset(lm, samples, config)
    _say_shortened(lm, samples, config, say)
    with MetricsFile(folder / "metrics.jsonl", learner, {"part": "offline", "seed": seed, "arm": None}) as file:

        def note(metrics: Mapping[str, Any]) -> None:
            file.write(dict(metrics))
            _say_metrics(say, metrics)

        needs_value = config.algorithm in BY_ADVANTAGE
        if needs_value:
            say(f"warning: {LOGGED}")
        fitted = partial(_say_metrics, say)
        known = cached_reference(
            folder / "reference-cache", data, config, named_seed(seed, "value"), fitted, needs_value=needs_value
        )
        torch.manual_seed(named_seed(seed, "offline"))
        train_offline(data, known, config, named_seed(seed, "offline"), note, learner)
    write_folder(done, partial(lm.save, algorithm=config.algorithm, seed=seed))
    drop_state(learner)
    say(f"written: {done}")
    return done


def _settings(
    samples: Sequence[Sample], source: str | Path, model: ModelConfig, config: OfflineConfig, seed: int
) -> dict[str, Any]:
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(repr((sample.prompt, sample.completion, sample.reward)).encode("utf-8", "surrogatepass"))
    own = {"model": str(source), "data": digest.hexdigest()[:16], "seed": seed}
    sections = {"model": dataclasses.asdict(model), "offline": dataclasses.asdict(config)}
    return own | {f"{name}.{key}": value for name, values in sections.items() for key, value in values.items()}


def _claim(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings into the folder, or check that those in it are the same.

    Raises:
        UserError: they are not (the first that differs is named), nothing can be written there, or it holds links.
    """
    path = folder / "settings.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        refuse_links(folder)
        if not path.is_file():
            write_text(path, json.dumps(dict(settings), indent=1))
            return
        before = dict(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged; remove {folder} to train anew, or use another --out") from error
    for key, value in settings.items():
        if before.get(key) != value:
            held, wanted = ("other data", "these") if key == "data" else (f"{key} = {before.get(key)!r}", repr(value))
            raise UserError(f"{folder} holds a training with {held}, not {wanted}; use another --out, or remove it")


def _say_shortened(lm: LanguageModel, samples: Sequence[Sample], config: OfflineConfig, say: Say) -> None:
    prompts, completions = shortened(lm, samples, config)
    if prompts:
        say(f"{prompts} of {len(samples)} prompts lost their beginning (longer than {config.prompt_tokens} tokens)")
    if completions:
        say(f"{completions} of {len(samples)} completions lost their end (longer than {config.completion_tokens})")


def _say_metrics(say: Say, metrics: Mapping[str, Any]) -> None:
    values = [f"{name.replace('_', ' ')} {x:.4g}" for name, x in metrics.items() if name not in ("step", "steps")]
    where = f"step {metrics['step']}/{metrics['steps']}" if "steps" in metrics else f"value, epoch {metrics['step']}"
    say(f"{where}: {', '.join(values)}")
