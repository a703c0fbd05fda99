"""Training of a model on samples with rewards, into a folder with settings, reference cache, metrics and model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from reflectrl.core.advice import option
from reflectrl.core.config import ModelConfig, Recipe
from reflectrl.core.json_lines import read_json
from reflectrl.core.plugins import reason
from reflectrl.core.types import UserError, named_seed
from reflectrl.learn.checkpoint import drop_state, recover, write_folder, write_text
from reflectrl.methods.offline import train_offline
from reflectrl.methods.shared.offline.algorithms import BY_ADVANTAGE
from reflectrl.methods.shared.offline.completions import Dataset
from reflectrl.methods.shared.offline.config import OfflineConfig
from reflectrl.methods.shared.offline.reference_cache import ReferenceCache, cached_reference
from reflectrl.models.cards import CARD
from reflectrl.models.lm import LanguageModel
from reflectrl.models.load import load_model
from reflectrl.runs.artifact import Graph, Plan, artifact
from reflectrl.runs.folder import folder_lock
from reflectrl.runs.metrics import MetricsFile
from reflectrl.runs.precision import decide, in_run, with_threads
from reflectrl.runs.state import State, refuse_other_settings
from reflectrl.wings.text.learn.text_dataset import shortened, text_dataset
from reflectrl.wings.text.samples.sample import Sample

Say = Callable[[str], None]

LOGGED = "the value is fitted to the logged completions: it describes the policy that wrote them, not the model"
"""Warning for trainings on a fixed file, where the reference's own completions cannot be scored."""


def train_on_samples(
    samples: Sequence[Sample],
    source: str | Path,
    model: ModelConfig,
    config: OfflineConfig,
    seed: int,
    folder: Path,
    say: Say,
) -> Path:
    """Train a model, which is its own reference. A second call resumes the training, or returns if it is complete.

    Args:
        source: name or folder of the model.
        folder: output folder for `settings.json`, `reference-cache/`, `metrics.jsonl`, and finally `model/` in Hugging
            Face's format.
        say: receives lines about the progress.

    Returns:
        The model's folder.

    Raises:
        UserError: the model cannot be loaded, there is nothing to learn from the samples, or the folder holds a
            training with other settings.
    """
    context = _Context(samples, source, model, config, seed, folder, say)
    graph = _graph(context)
    *_, trained = graph.values()
    try:
        with folder_lock(folder):
            recover(folder / "model")
            state = _require_own(context, graph)
            if trained.exists(folder):
                say(f"{folder / 'model'} is complete")
                return folder / "model"
            for artifact in [candidate for candidate in graph.values() if not candidate.exists(folder)]:
                state.begin(artifact, context.settings)
                state.write()
                with with_threads(state.threads):
                    artifact.maker.build(context, **artifact.inputs_in(folder))
                state.finish(artifact, context.settings)
            state.write()
    except OSError as error:
        raise UserError(f"{folder}: {reason(error)}") from error
    say(f"written: {folder / 'model'}")
    return folder / "model"


def _graph(context: _Context) -> Graph:
    """Return the graph of artifacts: the reference cache, then the model."""
    plan = Plan(Recipe(), context.seed)
    make_model(plan, "model", cache=make_reference_cache(plan, "reference-cache", settings=context.settings))
    return plan.made


@dataclass(frozen=True)
class _Context:
    """Inputs of the builders of reference cache and model. The language model is loaded once."""

    samples: Sequence[Sample]
    source: str | Path
    model: ModelConfig
    config: OfflineConfig
    seed: int
    folder: Path
    say: Say

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All settings and inputs that determine the result."""
        digest = hashlib.sha256()
        for sample in self.samples:
            digest.update(repr((sample.prompt, sample.completion, sample.reward)).encode("utf-8", "surrogatepass"))
        own = {"source": str(self.source), "data": digest.hexdigest()[:16], "seed": self.seed}
        return {**own, "model": asdict(self.model), "offline": asdict(self.config)}

    @cached_property
    def lm(self) -> LanguageModel:
        config = replace(in_run(self.model, self.folder), chat="off")  # prompts are the samples' own
        return load_model(self.source, config, "policy", named_seed(self.seed, "policy"))

    @cached_property
    def data(self) -> Dataset:
        _say_shortened(self.lm, self.samples, self.config, self.say)
        return text_dataset(self.lm, self.samples, self.config)

    def reference_cache(self, folder: Path) -> ReferenceCache:
        """Load the reference's log-probabilities and values on the samples, or compute and save them."""
        needs_value, fitted = self.config.algorithm in BY_ADVANTAGE, partial(_say_metrics, self.say)
        seed = named_seed(self.seed, "value")
        return cached_reference(folder, self.data, self.config, seed, fitted, needs_value=needs_value)


def _require_own(context: _Context, graph: Graph) -> State:
    """Write the settings into the folder, unless it holds a training with other settings.

    Raises:
        UserError: the settings differ (the error names the first difference), or the settings file is damaged.
    """
    path = context.folder / "settings.json"
    try:
        before = dict(read_json(path)) if path.is_file() else None
    except (ValueError, TypeError) as error:
        folder = context.folder
        raise UserError(f"{path} is damaged; remove {folder} to train anew, or use another {option('out')}") from error
    state = State.read(context.folder)
    refuse_other_settings(graph, state, before, context.settings, "out")
    decide(state, context.model, graph)
    write_text(path, json.dumps(context.settings, indent=1))
    return state


@artifact("offline", "rl", "reference-cache/reference_cache.json")
def make_reference_cache(context: _Context) -> None:
    """Compute the reference's log-probabilities and values on the samples."""
    if context.config.algorithm in BY_ADVANTAGE:
        context.say(f"warning: {LOGGED}")
    context.reference_cache(context.folder / "reference-cache")


@artifact("offline", "rl", f"model/{CARD}")
def make_model(context: _Context, *, cache: Path) -> None:
    """Train the model on the samples."""
    learner, seed = context.folder / "model.learner", named_seed(context.seed, "offline")
    data, reference = context.data, context.reference_cache(cache)
    shared = {"kind": "offline", "seed": context.seed, "arm": None}
    with MetricsFile(context.folder / "metrics.jsonl", learner, shared) as file:

        def note(metrics: Mapping[str, Any]) -> None:
            file.write(dict(metrics))
            _say_metrics(context.say, metrics)

        torch.manual_seed(seed)
        train_offline(data, reference, context.config, seed, note, learner)
    fill = partial(context.lm.save, algorithm=context.config.algorithm, seed=context.seed)
    write_folder(context.folder / "model", fill)
    drop_state(learner)


def _say_shortened(lm: LanguageModel, samples: Sequence[Sample], config: OfflineConfig, say: Say) -> None:
    prompts, completions = shortened(lm, samples, config)
    if prompts:
        say(f"{prompts} of {len(samples)} prompts lost their beginning (longer than {config.prompt_tokens} tokens)")
    if completions:
        say(f"{completions} of {len(samples)} completions lost their end (longer than {config.completion_tokens})")


def _say_metrics(say: Say, metrics: Mapping[str, Any]) -> None:
    values = [f"{name.replace('_', ' ')} {x:.4g}" for name, x in metrics.items() if name not in ("step", "steps")]
    position = f"step {metrics['step']}/{metrics['steps']}" if "steps" in metrics else f"value, epoch {metrics['step']}"
    say(f"{position}: {', '.join(values)}")
