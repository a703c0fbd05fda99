"""Endpoints in a run: the arms of [players.NAME], the arm "dagger", and the endpoint as teacher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from reflectrl.core.types import UserError
from reflectrl.runs.arms import BASE, PLAYED, SFT, Arm, all_arms
from reflectrl.runs.graph import Plan
from reflectrl.serving.endpoints.config import ASKED, Style, teacher_settings

if TYPE_CHECKING:
    from reflectrl.core.config import Recipe

BUILDERS = "reflectrl.serving.endpoints.builders"
SHARED = tuple(f"endpoint.{key}" for key in ASKED)
ABOUT: dict[Style, str] = {
    "act": "a model behind an endpoint, which acts",
    "reason": "a model behind an endpoint, which reasons, then acts",
    "react": "a model behind an endpoint: one turn to reflect, one to act",
    "pair": "a model behind an endpoint, which acts on our reflector's words",
    "reflector": "our policy after SFT, with reflections of a model behind an endpoint",
}


@dataclass(frozen=True)
class Round:
    """A round of DAgger: the student that plays, and the logs of episodes that the round reads and writes.

    Attributes:
        log: name of the log that it writes, `episodes/LOG-seedN-train.jsonl`.
        before: name of the previous round's log; "" for the teaching episodes.
        policy: the student's policy, one of the models.
        reflector: the student's reflector.
    """

    log: str
    before: str
    policy: str
    reflector: str


ROUNDS = {
    "train": Round("dagger", "", "policy", "reflector"),
    "2": Round("dagger-2", "dagger", "dagger-policy", "dagger-reflector"),
    "3": Round("dagger-3", "dagger-2", "dagger-2-policy", "dagger-2-reflector"),
    "4": Round("dagger-4", "dagger-3", "dagger-3-policy", "dagger-3-reflector"),
}
"""Artifact name → round. Each round starts from the models that the previous one has trained."""


@dataclass(frozen=True)
class Aggregated(SFT):
    """A model fine-tuned on the teaching episodes and on the teacher's labels of the student's own states (DAgger)."""

    def artifacts(self, plan: Plan, name: str) -> list[str]:
        """Add the aggregated episodes (earlier ones, then the student's) and the model. Return the model's artifact."""
        [(number, played)] = [(number, one) for number, one in ROUNDS.items() if one.log == self.log]
        output = f"episodes/{self.log}-seed{plan.seed}-train.jsonl"
        asks = (*SHARED, "teacher") if plan.recipe.teach.by == "endpoint" else ("teacher",)
        inputs = [plan.reflected("train"), *plan.model(played.policy), *plan.model(played.reflector)]
        walked = plan.add("dagger", number, "sft", f"{BUILDERS}:dagger", output, inputs, *PLAYED, "teach", *asks)
        inputs = [*plan.model(BASE), walked, plan.reflected("validation")]
        return [plan.add("sft", name, "sft", "reflectrl.runs.training:sft", plan.checkpoint(name), inputs, *PLAYED,
                         "sft")]  # fmt: skip


MODELS = {
    f"{played.log}-{player}": Aggregated(player, log=played.log)
    for played in ROUNDS.values()
    for player in ("reflector", "policy")
}
ARMS = {
    played.log: Arm(
        "SFT, walks of its own labelled by the teacher, SFT again"
        if not played.before
        else f"{played.before}, once more",
        f"{played.log}-policy",
        f"{played.log}-reflector",
    )
    for played in ROUNDS.values()
}


def arms_of(recipe: Recipe) -> dict[str, Arm]:
    """Return an arm for each [players.NAME].

    Raises:
        UserError: another arm has that name already.
    """
    taken = all_arms()  # not of this recipe: those would be asked for here
    for name in recipe.sections["players"]:
        if name in taken:
            raise UserError(f"players.{name}: {name!r} is the name of another arm already; call the player otherwise")
    return {name: _arm(recipe, name) for name in recipe.sections["players"]}


def _arm(recipe: Recipe, name: str) -> Arm:
    table, shared = recipe.sections["players"][name], recipe.sections["endpoint"]
    style: Style = table.get("style", "act")
    host = urlsplit(table.get("base_url", shared.base_url)).hostname  # never a key, which may stand in a query
    here = table.get("local") or ("" if {"base_url", "model"} & set(table) else shared.local)
    asked = here or f"{table.get('model', shared.model)} at {host}"
    settings = (*SHARED, *(f"players.{name}.{key}" for key in (*ASKED, "style", "max_tokens", "history")))
    players = "reflectrl.serving.endpoints.contestants:players"
    if style == "reflector":
        return Arm(ABOUT[style], "policy", players=players, settings=settings, asked=asked)
    reflector = "reflector" if style == "pair" else ""
    settings = (*settings, "play", "model") if style == "pair" else settings
    return Arm(ABOUT[style], reflector=reflector, player="endpoint", players=players, settings=settings, asked=asked)


def teaching(plan: Plan, split: str) -> str:
    """Add the teaching episodes of a split that an endpoint writes."""
    output, config = f"episodes/teach-seed{plan.seed}-{split}.jsonl", teacher_settings(plan.recipe)
    files = plan.recipe.teach.log if config.ask == "log" else ()
    return plan.add("teach", split, "teach", f"{BUILDERS}:teaching", output, (), "env", "teach", "teacher", *SHARED,
                    remaining=f"{BUILDERS}:remaining_teaching", files=files)  # fmt: skip
