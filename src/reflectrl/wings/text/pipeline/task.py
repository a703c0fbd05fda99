"""Samples and rewards of a text task, and the context that keeps them during a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import get_args

from reflectrl.core.config import Recipe
from reflectrl.core.types import named_seed
from reflectrl.methods.shared.offline.algorithms import A_LOL, PREFERENCES
from reflectrl.methods.shared.offline.config import Algorithm, offline_settings
from reflectrl.models.lm import LanguageModel
from reflectrl.models.load import load_model
from reflectrl.runs.artifact import PRETRAINED, Source
from reflectrl.runs.folder import Context
from reflectrl.wings.text.generation.generate import one_per_prompt
from reflectrl.wings.text.rewards import Reward, build
from reflectrl.wings.text.samples import Reading, Sample, read_samples
from reflectrl.wings.text.samples.sample import imitable


@dataclass(frozen=True)
class TextTask:
    """Samples with rewards in a folder, and the rewards that score completions. Both are loaded once.

    Attributes:
        folder: folder with a file of samples per split.
        scores: folder for the scores of texts, which the rewards keep.
    """

    recipe: Recipe
    folder: Path
    scores: Path

    @property
    def offline(self) -> list[str]:
        """Arms that learn from the samples, and so need the reference's value."""
        return [arm for arm in self.recipe.arms if arm in get_args(Algorithm)]

    def data(self, split: str) -> Path:
        """Return the file of a split's samples with rewards."""
        return self.folder / f"{split}.jsonl"

    def samples(self, split: str) -> list[Sample]:
        """Return the samples of a split with rewards; [] if the data have no such split."""
        if split not in self._samples:
            path = self.data(split)
            self._samples[split] = list(read_samples(path)) if path.is_file() else []
        return self._samples[split]

    @cached_property
    def _samples(self) -> dict[str, list[Sample]]:
        return {}

    def training(self, algorithm: str) -> list[Sample]:
        """Return the training samples of an algorithm. Preference algorithms use all samples, and so does the sampling
        "all_priority" of advantages; the others leave out rejected answers.
        """
        samples, pooled = self.samples("train"), offline_settings(self.recipe).sampling == "all_priority"
        if algorithm in PREFERENCES or (pooled and algorithm in A_LOL):
            return samples
        return [sample for sample in samples if imitable(sample)]

    def prompts(self, split: str, most: int = 0) -> list[Sample]:
        """Return one sample worth imitating for each of the first `most` prompts of a split; 0 means all prompts."""
        return list(islice(one_per_prompt(filter(imitable, self.samples(split))), most or None))

    def references(self, split: str) -> dict[str, list[str]]:
        """Return the completions of the data that are worth imitating, by group of the prompt."""
        completions: dict[str, list[str]] = {}
        for sample in filter(imitable, self.samples(split)):
            completions.setdefault(sample.group, []).append(sample.completion)
        return completions

    @cached_property
    def unprepared(self) -> Reward:
        """Reward of the section [rewards], not yet fitted to the training samples."""
        return build(self.recipe.sections["rewards"], self.scores)

    @cached_property
    def reward(self) -> Reward:
        """Reward of the section [rewards], fitted to the training samples. It scores training and validation."""
        self.unprepared.prepare(self.training("nll"))
        return self.unprepared

    @cached_property
    def test_reward(self) -> Reward:
        """Reward of the final evaluation: from [test_rewards], or else from [rewards]."""
        if not self.recipe.sections["test_rewards"]:
            return self.reward
        reward = build(self.recipe.sections["test_rewards"], self.scores)
        reward.prepare(self.training("nll"))
        return reward

    def load(self, source: Source, seed: int) -> LanguageModel:
        """Load a model: one of the run, or the pretrained one."""
        folder = self.recipe.model.source if source == PRETRAINED else source
        config = replace(self.recipe.model, chat="off")  # prompts are the samples' own
        return load_model(folder, config, "policy", named_seed(seed, "policy"))


@dataclass(frozen=True)
class TextContext(Context):
    """Recipe and run folder, with the samples and rewards that builders have used so far."""

    def task(self, folder: Path) -> TextTask:
        """Return the task whose samples are in this folder."""
        if folder not in self._tasks:
            self._tasks[folder] = TextTask(self.recipe, folder, self.run.path / "scores")
        return self._tasks[folder]

    @cached_property
    def _tasks(self) -> dict[Path, TextTask]:
        return {}


def read_split(folder: Path, split: str) -> Sequence[Sample]:
    """Read a split's samples, including samples without reward; [] if there is no such file."""
    paths = [path for path in (folder / f"{split}.jsonl", folder / f"{split}.jsonl.gz") if path.is_file()]
    return read_samples(paths[0], reading=Reading(missing_reward=float("nan"))) if paths else []
