"""`offline`: train a model on a file of completions with rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tyro

from reflectrl.core.config import ModelConfig, Word, from_dict, parse_overrides
from reflectrl.core.plugins import suggestion
from reflectrl.core.types import UserError
from reflectrl.methods.shared.offline.config import Algorithm, OfflineConfig

Choice = Annotated[Literal[Algorithm, "ppo"], tyro.conf.arg(metavar="{" + ",".join(get_args(Algorithm)) + "}")]
"""An algorithm. "ppo" is accepted only to raise an error that names the right command."""


@dataclass(frozen=True)
class _Sections:
    """The sections of a recipe that this command uses."""

    model: ModelConfig = field(default_factory=ModelConfig)
    offline: OfflineConfig = field(default_factory=OfflineConfig)


@dataclass(frozen=True)
class Offline:
    """Train a model on completions with rewards. Keys of [offline] and [model] are options: --offline.lr 1e-4"""

    data: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """File with samples, HHA rows, normalised rows, TRL's columns or an episode log, as JSON lines or a JSON list; or a
    folder of JSON-lines files."""
    model: Annotated[str, tyro.conf.arg(metavar="MODEL")]
    """Name or folder of the initial model, which is also the reference."""
    algo: Choice = "a_lol"
    """Learning algorithm. Online PPO needs a reward function, so it is an arm of text tasks: use `reflectrl run`."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder for the model and the metrics. Default: runs/offline-DATA-ALGO. The same command resumes a training."""
    skip_bad: bool = False
    """Leave bad rows out and count them, instead of refusing the file."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of the training."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Read the samples, train, and print where the model is."""
        if self.algo == "ppo":
            raise UserError(
                "offline: ppo writes its own completions and needs a reward function, not a file of rewards;"
                " make it an arm of a text task with [rewards]: reflectrl run RECIPE --arms reference,ppo"
            )
        model, config = self._sections(settings, self.algo)
        from reflectrl.runs.workers import silence
        from reflectrl.wings.text.pipeline.from_samples import train_on_samples
        from reflectrl.wings.text.samples import read_samples

        silence()
        samples = read_samples(self.data, self.skip_bad)
        print(f"{self.data}: {len(samples)} samples of {len(samples.groups())} prompts, {samples.ties} ties")
        for reason, skipped in samples.skipped.items():
            print(f"left out: {skipped.count} rows ({reason}; first {', '.join(skipped.first)})")
        folder = self.out or Path("runs") / f"offline-{self.data.name.partition('.')[0]}-{self.algo}"
        say = partial(print, flush=True)
        train_on_samples(samples, self.model, model, config, self.seed, folder, say)

    def _sections(self, settings: Sequence[str], algorithm: Algorithm) -> tuple[ModelConfig, OfflineConfig]:
        """Return the settings given as options, with a context long enough for prompts and completions."""
        data: dict[str, dict[str, Any]] = {"model": {}, "offline": {}}
        for dotted, value in parse_overrides(settings):
            section, _, key = dotted.partition(".")
            if section not in data or not key:
                options = ["--data", "--model", "--algo", "--out", "--skip-bad", "--seed"]
                raise UserError(
                    f"unknown option {'--' + dotted!r}{suggestion('--' + dotted, options)}; or --offline.KEY"
                )
            data[section][key] = Word(value)
        if "algorithm" in data["offline"] or "source" in data["model"]:
            raise UserError("give the algorithm as --algo, and the model as --model")
        sections = from_dict(_Sections, data, "offline")
        config = replace(sections.offline, algorithm=algorithm)
        context = config.prompt_tokens + config.completion_tokens
        return (sections.model if "context" in data["model"] else replace(sections.model, context=context)), config
