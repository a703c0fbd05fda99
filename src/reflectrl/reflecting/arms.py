"""Training of the reflector in a run: its arms, their models, and the artifacts that these are made from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from reflectrl.pipeline.arms import PLAYED, Arm
from reflectrl.pipeline.graph import Plan
from reflectrl.types import UserError

WRITER = "-reflector"
"""Behind the name of a pair that learns together: the checkpoint of its reflector."""


@dataclass(frozen=True)
class Reflecting:
    """A reflector that learns from what a policy does after its reflections; perhaps the policy learns beside it.

    Attributes:
        method: how it learns.
        trains: who learns. A pair has two checkpoints: the policy's has the row's name, the reflector's ends in WRITER.
        policy: the policy that reads the reflections, or from which it starts where both learn.
        reflector: the reflector from which it starts.
    """

    method: Literal["rl", "rejection"] = "rl"
    trains: Literal["reflector", "both"] = "reflector"
    policy: str = "policy"
    reflector: str = "reflector"

    def artifacts(self, plan: Plan, name: str) -> list[str]:
        """The pair that it starts from, and the training, which leaves one checkpoint or two.

        Raises:
            UserError: nobody would write a reflection, or nothing could be learned from one.
        """
        name = name.removesuffix(WRITER) if self.trains == "both" else name
        if not self.reflector:
            raise UserError(f"arm {name!r} trains a reflector and names none to start from; give it one")
        if not plan.recipe.rl.reflect_probability:
            raise UserError(f"rl.reflect_probability is 0; arm {name!r} learns from reflections, so set it above 0")
        inputs = [key for one in (self.reflector, self.policy) for key in plan.model(one)]
        build, outputs = f"reflectrl.reflecting.builders:{self.method}", [plan.checkpoint(name)]
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
