"""Arms, the rows of a results table, and the models that they play with: to add one, add a line to a table.

Packages bring more of both: an entry point of the group "reflectrl.arms" names a module with tables of the same names
(offline learning is such a package).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from reflectrl.plugins import names, resolve, suggestion
from reflectrl.types import UserError

if TYPE_CHECKING:
    from reflectrl.config import Recipe
    from reflectrl.pipeline.graph import Plan

BASE = "base"
"""The model that everything starts from: one made from scratch, or that of `model.source`."""
PLAYED = ("env", "model", "play")
"""Sections on which everything depends for which a model plays."""


class TrainedModel(Protocol):
    """A model that is trained before online RL: a row of `MODELS`."""

    def artifacts(self, plan: Plan, name: str) -> list[str]:
        """Add the artifacts that make the model to a plan.

        Args:
            name: of the row, and of the model's checkpoint in a run folder.

        Returns:
            Keys of the artifacts that it takes to play with it.
        """
        ...


@dataclass(frozen=True)
class SFT:
    """A model fine-tuned on teaching episodes.

    Attributes:
        player: what it becomes: "reflector", "policy", or "plain", a policy that reads no reflections.
        negatives: whether its data contain negative examples.
        reflector: from which reflector it starts where the recipe says `sft.policy_from = "reflector"`.
        log: the log `episodes/LOG-seedN-train.jsonl` of the run from which it learns; "" for the teaching episodes.
    """

    player: Literal["reflector", "policy", "plain"]
    negatives: bool = True
    reflector: str = ""
    log: str = ""

    def artifacts(self, plan: Plan, name: str) -> list[str]:
        start = self.reflector if plan.recipe.sft.policy_from == "reflector" else ""
        episodes = plan.teaching if self.player == "plain" else plan.reflected
        inputs = [*plan.model(start or BASE), episodes("train"), episodes("validation")]
        output = plan.checkpoint(name)
        return [plan.add("sft", name, "sft", "reflectrl.pipeline.training:sft", output, inputs, *PLAYED, "sft")]


MODELS: dict[str, TrainedModel] = {
    "reflector": SFT("reflector"),
    "policy": SFT("policy", reflector="reflector"),
    "plain": SFT("plain"),
    "reflector-positive": SFT("reflector", negatives=False),
    "policy-positive": SFT("policy", negatives=False, reflector="reflector-positive"),
    "plain-positive": SFT("plain", negatives=False),
}
"""What is trained before online RL, by name: the name of its checkpoint in a run folder."""


@dataclass(frozen=True)
class Arm:
    """One way to play.

    Attributes:
        about: one line for tables and lists.
        policy: the model that plays, or from which RL starts: one of `MODELS`, or the base model.
        reflector: the model that writes reflections for it; "" for none.
        rl: settings of [rl] that are the arm's own, {} for the recipe's; None where no online RL follows.
        player: who plays where no model does.
        speaker: who speaks in the reflector's place: a function of the recipe as "module:function"; "" for nobody.
        guide: who plays with the policy's model in its place: a function of the recipe and the policy; "" for nobody.
        players: who plays and who speaks, where that is not said above: a function of what a run is (`Context`), the
            arm's name, the seed, the models and the temperature, as "module:function"; "" for those above.
        shows: what the base model's system prompt shows of demonstrations: a function of the recipe, the teaching
            episodes, the player's role and its model, which returns a text; "" for nothing.
        settings: further recipe keys that decide how it plays.
        asked: the model behind an endpoint that plays or speaks, and its host; "" for none.
    """

    about: str
    policy: str = ""
    reflector: str = ""
    rl: Mapping[str, Any] | None = None
    player: Literal["policy", "random", "expert", "oracle", "baseline", "endpoint"] = "policy"
    speaker: str = ""
    guide: str = ""
    players: str = ""
    shows: str = ""
    settings: tuple[str, ...] = ()
    asked: str = ""

    @property
    def is_taught(self) -> bool:
        """Whether a teacher's episodes are needed: any model but the base model is trained on them."""
        return any(name not in ("", BASE) for name in (self.policy, self.reflector)) or bool(self.shows)


ARMS: dict[str, Arm] = {
    "random": Arm("a legal action at random", player="random"),
    "expert": Arm("the environment's expert, who teaches", player="expert"),
    "oracle": Arm("knows what is hidden from players", player="oracle"),
    "baseline": Arm("the usual method without learning", player="baseline"),
    "sft": Arm("both players after SFT, no RL", "policy", "reflector"),
    "sft-no-reflection": Arm("SFT policy without a reflector, no RL", "plain"),
    "sft-no-negatives": Arm("both players after SFT without negatives, no RL", "policy-positive", "reflector-positive"),
    "sft-neither": Arm("SFT policy without a reflector and without negatives, no RL", "plain-positive"),
    "rl-only": Arm("RL from the base model, no SFT, no reflector", BASE, rl={}),
    "neither": Arm("SFT + RL without a reflector, SFT data without negatives", "plain-positive", rl={}),
    "no-reflection": Arm("SFT + RL without a reflector", "plain", rl={}),
    "no-negatives": Arm("SFT + RL, SFT data without negatives", "policy-positive", "reflector-positive", rl={}),
    "reflect-rl": Arm("the full method: reflector, negatives, SFT + RL", "policy", "reflector", rl={}),
}


@cache
def brought() -> tuple[ModuleType, ...]:
    """The modules with tables of their own that installed packages bring."""
    return tuple(resolve("arms", name) for name in names("arms"))


def all_arms(recipe: Recipe | None = None) -> dict[str, Arm]:
    """Every arm by name: those of the core, those that packages bring, and those that a recipe itself describes.

    (Of the last kind are the players of [players.NAME], which a package's module gives as `arms_of(recipe)`.)
    """
    known = ARMS | {name: arm for module in brought() for name, arm in module.ARMS.items()}
    for module in brought() if recipe is not None else ():
        known |= module.arms_of(recipe) if hasattr(module, "arms_of") else {}
    return known


def model(name: str) -> TrainedModel:
    """The row of that name in a table of models."""
    found: TrainedModel = (MODELS | {key: row for module in brought() for key, row in module.MODELS.items()})[name]
    return found


def chosen(names: Iterable[str], recipe: Recipe | None = None) -> dict[str, Arm]:
    """The arms of those names, those of the recipe included; UserError names one that does not exist."""
    known = all_arms(recipe)
    for name in names:
        if name not in known:
            raise UserError(f"unknown arm {name!r} in 'arms'{suggestion(name, known)}")
    return {name: known[name] for name in names}


def played_model(name: str, recipe: Recipe | None = None) -> str:
    """The model that acts for an arm in the end; "" where none does."""
    arm = all_arms(recipe)[name]
    return arm.policy if arm.rl is None else f"rl-{name}"


def log_writer() -> Callable[[Plan], str]:
    """Find the function with which a package adds the artifact of a log of episodes to a plan.

    Raises:
        UserError: no installed package writes one.
    """
    for module in brought():
        if hasattr(module, "log"):
            found: Callable[[Plan], str] = module.log
            return found
    raise UserError("rl.replay_log: no installed package writes a log of episodes")


def endpoint_teaching() -> Callable[[Plan, str], str]:
    """Find the function with which a package adds teaching episodes by an endpoint to a plan.

    Raises:
        UserError: no installed package asks endpoints.
    """
    for module in brought():
        if hasattr(module, "teaching"):
            found: Callable[[Plan, str], str] = module.teaching
            return found
    raise UserError("teach.by is 'endpoint': no installed package asks endpoints")
