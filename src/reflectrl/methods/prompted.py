"""Arms of a pretrained model without training: with instructions only (zero-shot), or with example steps (few-shot)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reflectrl.core.config.rules import Count
from reflectrl.runs.arms import Arm, base

SETTINGS = ("teach", "pretrained")


def shown_steps(*given: Any) -> str:
    """Return some demonstrated steps as text. Takes the arguments of `Arm.shows`."""
    from reflectrl.methods.pretrained.shots import steps  # brings torch, which a dry run does without

    return steps(*given)


def shown_choices(*given: Any) -> str:
    """Return some demonstrated steps without reflections as text. Takes the arguments of `Arm.shows`."""
    from reflectrl.methods.pretrained.shots import choices

    return choices(*given)


ARMS: dict[str, Arm] = {
    "zero-shot": Arm("the model as it came, in both roles", base, base),
    "zero-shot-no-reflection": Arm("the model as it came, without a reflector", base),
    "few-shot": Arm(
        "the model as it came, in both roles, shown some steps",
        base,
        base,
        shows=shown_steps,
        settings=SETTINGS,
    ),
    "few-shot-no-reflection": Arm(
        "the model as it came, shown some steps, without a reflector",
        base,
        shows=shown_choices,
        settings=SETTINGS,
    ),
}


@dataclass(frozen=True)
class PretrainedConfig:
    """Settings of the arms `few-shot` and `few-shot-no-reflection`, which prompt an untrained model."""

    shots: Count = 4
    """Number of demonstrated steps in the system prompt."""


SECTIONS = {"pretrained": PretrainedConfig}
