"""Sections of a recipe that text tasks bring: [text], [rewards] and [test_rewards]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from reflectrl.config.recipe import Recipe
from reflectrl.config.rules import Count, Natural, Range
from reflectrl.config.values import FreeSection


class Rewards(FreeSection):
    """Of text: components by name, each with its weight, or with `weight` and keyword arguments."""


class TestRewards(FreeSection):
    """The same for the final evaluation, where another reward is to judge; empty means the same."""


@dataclass(frozen=True)
class TextConfig:
    """Offline learning on text instead of episodes: which samples there are, and what is made of them."""

    task: Literal["none", "orders", "hha", "comet", "reddit", "knowledge", "own"] = "none"
    """"none" plays an environment; "orders" is a small task made here; the others read samples that `reflectrl data`
    has written, "own" those of the folder `data`."""
    data: str = ""
    """Folder with train.jsonl, validation.jsonl and test.jsonl; if empty, where `reflectrl data` puts the task's."""
    subset: str = ""
    """Folder within it: "positive" or "negative" (reddit); "wow", "faithdial" or "both" (knowledge)."""
    prompts: Natural = 0
    """Training prompts, the first ones; 0 means all (of the orders, 1000)."""
    validation_prompts: Natural = 0
    """Validation prompts, on which the reference's value is learned; 0 means all (of the orders, 150)."""
    eval_prompts: Count = 100
    """Validation prompts per evaluation while an arm learns; the checkpoint of the highest mean reward is the best."""
    answers: Count = 4
    """Logged answers per prompt of the orders."""
    label: Literal["missing", "all"] = "missing"
    """Which samples [rewards] scores: those of files in which some have no reward, or all."""
    reference: Literal["sft", "base"] = "sft"
    """What the arms start from and are compared with: the model after imitation of the data, or as it is."""
    top_p: Annotated[float, Range(above=0, most=1)] = 1.0
    """Sampled writing keeps the likeliest tokens whose probability reaches this."""
    eval_sampling: Literal["greedy", "sampled"] = "greedy"
    """How validation prompts are answered while an arm learns."""

    def problem(self) -> str | None:
        """What is wrong between the keys, in one line, or None."""
        return "'task' is own; set 'data' to its folder" if self.task == "own" and not self.data else None


def text_settings(recipe: Recipe) -> TextConfig:
    """The section [text] of a recipe."""
    found: TextConfig = recipe.sections["text"]
    return found
