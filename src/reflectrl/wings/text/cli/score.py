"""`score`: evaluate any saved model or adapter on the prompts of a text run, by the run's rewards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from reflectrl.core.config.folders import refuse_links
from reflectrl.core.types import UserError


@dataclass(frozen=True)
class Score:
    """Let any saved model or adapter answer the prompts of a text run, and print its rewards and metrics."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder of a text task. Its samples, rewards and settings are used."""
    model: Annotated[str, tyro.conf.arg(metavar="MODEL")]
    """Folder or hub name of a model, or folder of an adapter. It must be on this machine."""
    split: Annotated[str, tyro.conf.arg(metavar="SPLIT")] = "test"
    """Split from which the prompts come."""
    sampling: Literal["greedy", "sampled"] = "greedy"
    """Sampling of the completions."""
    prompts: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Number of prompts, from the first on; 0 means all."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of sampled completions."""
    trust: bool = False
    """Trust the run's recipe to use the code and addresses that it names, now and from now on."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Write the missing completions into the run folder, and print a row as JSON."""
        if settings:
            raise UserError(f"unknown option {settings[0].partition('=')[0]!r} (--help lists the options)")
        if self.prompts < 0:
            raise UserError("score: --prompts must be at least 0")
        from reflectrl.core.config import load_recipe
        from reflectrl.core.types import named_seed
        from reflectrl.methods.shared.offline.reference_cache import weights_fingerprint
        from reflectrl.models.load import load_model
        from reflectrl.runs.workers import silence
        from reflectrl.wings.text.generation.table import row_of
        from reflectrl.wings.text.pipeline.graph import has_text_task, task_name
        from reflectrl.wings.text.pipeline.task import TextTask
        from reflectrl.wings.text.pipeline.training import completions, written_to

        if not (self.run / "recipe.toml").is_file():
            raise UserError(f"{self.run} is not a run folder (it has no recipe.toml)")
        recipe = load_recipe(self.run / "recipe.toml", trust=self.trust)
        if not has_text_task(recipe):
            raise UserError(f"{self.run} is not a run of a text task")
        refuse_links(self.run)  # completions are written there
        silence()
        text = TextTask(recipe, self.run / "data", self.run / "scores")
        prompts = text.prompts(self.split, self.prompts)
        if not prompts:
            raise UserError(f"{self.run}: no {self.split} samples there")
        config = replace(recipe.model, chat="off")  # prompts are the samples' own
        lm = load_model(self.model, config, "policy", named_seed(self.seed, "policy"))
        # Two models of one name must not share a file.
        name = f"{Path(self.model).name}-{weights_fingerprint(lm)[:8]}"
        labels = {"task": task_name(recipe), "arm": name, "seed": self.seed, "checkpoint": "", "split": self.split}
        labels |= {"sampling": self.sampling}
        path = written_to(self.run, labels)
        written = completions(text, lm, prompts, path, self.sampling, self.seed)
        row = row_of(labels, text.test_reward.label(written), text.references(self.split), recipe.eval.confidence)
        print(json.dumps(asdict(row)))
        print(
            f"{self.model}: reward {row.reward:.3f} [{row.low:.3f}, {row.high:.3f}] on {row.completions} {self.split}"
            f" prompts, {self.sampling}; completions in {path}"
        )
