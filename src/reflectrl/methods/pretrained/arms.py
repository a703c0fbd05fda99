"""Arms of a pretrained model without training: with instructions only (zero-shot), or with example steps (few-shot)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reflectrl.core.config.rules import Count
from reflectrl.runs.arms import BASE, Arm

MODELS: dict[str, Any] = {}
SHOTS = "reflectrl.methods.pretrained.shots"
SETTINGS = ("teach", "pretrained")

ARMS: dict[str, Arm] = {
    "zero-shot": Arm("the model as it came, in both roles", BASE, BASE),
    "zero-shot-no-reflection": Arm("the model as it came, without a reflector", BASE),
    "few-shot": Arm(
        "the model as it came, in both roles, shown some steps",
        BASE,
        BASE,
        shows=f"{SHOTS}:steps",
        settings=SETTINGS,
    ),
    "few-shot-no-reflection": Arm(
        "the model as it came, shown some steps, without a reflector",
        BASE,
        shows=f"{SHOTS}:choices",
        settings=SETTINGS,
    ),
}


@dataclass(frozen=True)
class PretrainedConfig:
    """Settings of the arms `few-shot` and `few-shot-no-reflection`, which prompt an untrained model."""

    shots: Count = 4
    """Number of demonstrated steps in the system prompt."""
