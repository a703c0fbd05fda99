"""Arms of distillation in a run, their models, and the artifacts from which those are made."""

from __future__ import annotations

from dataclasses import dataclass

from reflectrl.core.types import UserError
from reflectrl.methods.distill.config import distill_settings
from reflectrl.runs.arms import PLAYED, Arm, chosen
from reflectrl.runs.graph import Plan

BUILDERS = "reflectrl.methods.distill.builders"


@dataclass(frozen=True)
class Distilled:
    """A policy that learns to choose, without reflections, what a pair chose with its reflector.

    Attributes:
        pair: the arm whose players are imitated.
    """

    pair: str

    def artifacts(self, plan: Plan, name: str) -> list[str]:
        """Plan the pair, its episodes and the policy; return the policy's key."""
        settings = distill_settings(plan.recipe)
        if settings.start == "reflector" and plan.recipe.model.lora_rank:
            raise UserError("distill.start is 'reflector'; with model.lora_rank above 0 it must be 'policy'")
        inputs = plan.players(self.pair, chosen([self.pair])[self.pair])
        played = ("distill.episodes", "distill.temperature")
        output = f"episodes/{name}-seed{plan.seed}.jsonl"
        inputs += [
            plan.add("distill", f"{name}-episodes", "rl", f"{BUILDERS}:episodes", output, inputs, *PLAYED, *played)
        ]
        learned = (*PLAYED, "sft", "distill", "rl.eval_sampling")
        return [plan.add("distill", name, "rl", f"{BUILDERS}:policy", plan.checkpoint(name), inputs, *learned)]


MODELS = {"distilled": Distilled("reflect-rl"), "distilled-sft": Distilled("sft")}
ARMS = {
    "distilled": Arm("the full method's choices, learned without its reflector", "distilled"),
    "distilled-sft": Arm("the choices of both players after SFT, learned without the reflector", "distilled-sft"),
}
