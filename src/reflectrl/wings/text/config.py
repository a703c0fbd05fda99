"""Settings of text tasks: the sections [text], [rewards] and [test_rewards] of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from reflectrl.core.config.recipe import Recipe
from reflectrl.core.config.rules import Count, Natural, NonNegative, Range
from reflectrl.core.config.values import FreeSection


class Rewards(FreeSection):
    """Reward of a text task: components by name, each with its weight, or with `weight` and keyword arguments."""


class TestRewards(FreeSection):
    """Reward of the final evaluation, in the form of [rewards]; if empty, [rewards] is used."""


@dataclass(frozen=True)
class TextConfig:
    """Offline learning on text instead of episodes: the samples, and how models are trained and evaluated on them."""

    task: Literal["none", "orders", "hha", "comet", "reddit", "knowledge", "own"] = "none"
    """Task: "none" plays an environment; "orders" is a small generated task; "own" reads samples from the folder
    `data`; the others read samples that `reflectrl data` has written."""
    data: str = ""
    """Folder with train.jsonl, validation.jsonl and test.jsonl. Default: the folder in which `reflectrl data` puts the
    task's samples."""
    subset: str = ""
    """Subfolder of the data: "positive" or "negative" (reddit); "wow", "faithdial" or "both" (knowledge)."""
    prompts: Natural = 0
    """Number of training prompts, from the first on; 0 means all (1000 for "orders")."""
    validation_prompts: Natural = 0
    """Number of validation prompts, on which the reference's value is learned; 0 means all (150 for "orders")."""
    eval_prompts: Count = 100
    """Validation prompts per evaluation during training. The checkpoint with the highest mean reward is the best."""
    answers: Count = 4
    """Logged answers per prompt of the task "orders"."""
    label: Literal["missing", "all"] = "missing"
    """Splits that [rewards] scores: "missing" scores a split if any of its samples has no reward, "all" scores every
    split."""
    noise: NonNegative = 0.0
    """Standard deviation of Gaussian noise on the rewards of training samples, which then are kept within [0, 1]. It
    shows how an algorithm stands wrong rewards; validation and test keep the true ones."""
    reference: Literal["sft", "base"] = "sft"
    """Reference model, from which the arms start and with which they are compared: "sft" imitates the data first,
    "base" is the model as given."""
    top_p: Annotated[float, Range(above=0, most=1)] = 1.0
    """Nucleus sampling: sampled completions use the most likely tokens whose total probability reaches this."""

    def problem(self) -> str | None:
        """Return a one-line error if two keys contradict each other, else None."""
        return "'task' is own; set 'data' to its folder" if self.task == "own" and not self.data else None


def text_settings(recipe: Recipe) -> TextConfig:
    """Return the section [text] of a recipe."""
    config: TextConfig = recipe.sections["text"]
    return config
