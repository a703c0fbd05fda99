"""Arms that train a reflector in a run, their models, and the artifacts from which those are made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from reflectrl.core.types import UserError
from reflectrl.runs.arms import PLAYED, Arm
from reflectrl.runs.graph import Plan

WRITER = "-reflector"
"""Suffix that turns the name of a jointly trained pair into the name of its reflector's checkpoint."""


@dataclass(frozen=True)
class Reflecting:
    """A reflector that learns from what a policy does after its reflections. The policy may learn as well.

    Attributes:
        method: learning method of the reflector.
        trains: the players that learn. If both do, there are two checkpoints: the policy's has the name of this entry,
            and the reflector's has the suffix WRITER.
        policy: name of the policy that reads the reflections; if both learn, of the initial policy.
        reflector: name of the initial reflector.
    """

    method: Literal["rl", "rejection"] = "rl"
    trains: Literal["reflector", "both"] = "reflector"
    policy: str = "policy"
    reflector: str = "reflector"

    def artifacts(self, plan: Plan, name: str) -> list[str]:
        """Plan the initial pair and the training, which makes one or two checkpoints; return the training's key.

        Raises:
            UserError: no initial reflector is named, or `rl.reflect_probability` is 0, so there are no reflections.
        """
        name = name.removesuffix(WRITER) if self.trains == "both" else name
        if not self.reflector:
            raise UserError(f"arm {name!r} trains a reflector and names none to start from; give it one")
        if not plan.recipe.rl.reflect_probability:
            raise UserError(f"rl.reflect_probability is 0; arm {name!r} learns from reflections, so set it above 0")
        inputs = [key for one in (self.reflector, self.policy) for key in plan.model(one)]
        build, outputs = f"reflectrl.methods.reflecting.builders:{self.method}", [plan.checkpoint(name)]
        if self.trains == "both":
            outputs.append(plan.checkpoint(name + WRITER))
        key = plan.add("reflecting", name, "rl", build, outputs[0], inputs, *PLAYED, "rl", "reflecting")
        plan.made[key] = replace(plan.made[key], outputs=tuple(outputs))
        return [key]


MODELS = {
    "reflector-rl": Reflecting(),
    "reflector-rejection": Reflecting("rejection"),
    "both-rl": Reflecting(trains="both"),
    "both-rl" + WRITER: Reflecting(trains="both"),
}
ARMS = {
    "reflector-rl": Arm("SFT, then RL of the reflector; the policy stays", "policy", "reflector-rl"),
    "both-rl": Arm("SFT, then RL of both players", "both-rl", "both-rl" + WRITER),
    "reflector-rejection": Arm(
        "SFT, then the reflector imitates its best reflections", "policy", "reflector-rejection"
    ),
}
