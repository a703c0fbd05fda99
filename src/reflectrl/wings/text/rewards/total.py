"""A reward: components by name, each with a weight, and their weighted sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reflectrl.config import checked
from reflectrl.plugins import one_line, resolve_class
from reflectrl.types import UserError
from reflectrl.wings.text.rewards.base import Component
from reflectrl.wings.text.rewards.cache import Scores
from reflectrl.wings.text.samples.sample import Sample


@dataclass(frozen=True)
class Reward:
    """Components and weights. `scores` and `weights` have the same names."""

    scores: Mapping[str, Scores]
    weights: Mapping[str, float]

    def prepare(self, training: Sequence[Sample]) -> None:
        """Show every component the training set."""
        for scores in self.scores.values():
            scores.component.prepare(training)

    def label(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples with their components and, as their reward, the weighted sum."""
        columns = {name: scores.score(samples) for name, scores in self.scores.items()}
        return [
            replace(sample, reward=self.total(found), components={**sample.components, **found})
            for i, sample in enumerate(samples)
            for found in [{name: column[i] for name, column in columns.items()}]
        ]

    def total(self, components: Mapping[str, float]) -> float:
        """The weighted sum of one sample's components."""
        return sum(weight * components[name] for name, weight in self.weights.items())


def build(section: Mapping[str, Any], cache: Path | None = None, download: bool = False) -> Reward:
    """The reward that a recipe's section describes.

    Args:
        section: by name of a component its weight, or a table with `weight` (1 if not given) and the keyword arguments
            of the component. A name that is no component's says by `use` which one it is, so that one component may
            occur twice: `judge = {use = "reward_model", model = "..."}`.
        cache: folder in which scores are kept between runs.
        download: let components fetch their models, where a recipe does not forbid it.

    Raises:
        UserError: no such component, an argument that it does not take, or a model that cannot be loaded.
    """
    if not section:
        raise UserError("the rewards section names no component; write for instance [rewards] fluency = 1.0")
    made, weights = {}, {}
    for name, value in section.items():
        settings = dict(value) if isinstance(value, Mapping) else {"weight": value}
        weight = settings.pop("weight", 1.0)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not abs(weight) < float("inf"):
            raise UserError(f"rewards.{name}: the weight must be a number, not {weight!r}")
        weights[name] = float(weight)
        made[name] = Scores(name, _component(name, settings, download), cache)
    return Reward(made, weights)


def _component(name: str, settings: dict[str, Any], download: bool) -> Component:
    kind = settings.pop("use", name)
    if not isinstance(kind, str):
        raise UserError(f"rewards.{name}.use must be the name of a component, not {kind!r}")
    made, what = resolve_class("rewards", kind, Component), f"reward {name!r}"
    arguments = checked(made, settings, what, f"rewards.{name}")
    if download and "download" in made.__init__.__annotations__:
        arguments = {"download": True, **arguments}
    try:
        return made(**arguments)
    except UserError:
        raise
    except Exception as error:  # a plug-in may raise anything
        raise UserError(f"{what} cannot be made: {one_line(error)}") from error
