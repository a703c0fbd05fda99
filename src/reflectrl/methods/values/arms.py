"""Arms with critics in a run, their models, and the artifacts from which those are made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from reflectrl.runs.arms import PLAYED, Arm
from reflectrl.runs.graph import Plan


@dataclass(frozen=True)
class ValueTrained:
    """A policy that learns online, with a critic of single actions.

    Attributes:
        algorithm: learning algorithm.
        start: name of the initial model.
        reflector: name of the model that writes reflections for it; "" for none.
    """

    algorithm: Literal["archer", "linvit"]
    start: str = "policy"
    reflector: str = "reflector"

    def artifacts(self, plan: Plan, name: str) -> list[str]:
        """Plan the initial models and the policy; return the policy's key."""
        inputs = [key for one in (self.reflector, self.start) if one for key in plan.model(one)]
        build, output = "reflectrl.methods.values.builders:policy", plan.checkpoint(name)
        return [plan.add("values", name, "rl", build, output, inputs, *PLAYED, "rl", "values")]


MODELS = {
    "archer": ValueTrained("archer"),
    "linvit": ValueTrained("linvit"),
    "archer-no-reflection": ValueTrained("archer", "plain", ""),
    "linvit-no-reflection": ValueTrained("linvit", "plain", ""),
}
GUIDED = partial(Arm, guide="reflectrl.methods.values.guided:value_guided", settings=("values.kl_lambda",))
ARMS = {
    "archer": Arm("SFT + ArCHer: RL by a critic of single actions", "archer", "reflector"),
    "linvit": GUIDED("SFT as a prior, sampled by a learned value (LINVIT)", "linvit", "reflector"),
    "archer-no-reflection": Arm("SFT + ArCHer without a reflector", "archer-no-reflection"),
    "linvit-no-reflection": GUIDED("SFT as a prior for LINVIT, without a reflector", "linvit-no-reflection"),
}
