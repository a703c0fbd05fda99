"""Arms, which are the rows of a results table, and the models they play with. To add one, add a line to a table.

Packages can bring more of both: an entry point of the group "reflectrl.arms" names a module that has tables with the
same names (offline learning is such a package).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from reflectrl.core.plugins import names, resolve, suggestion
from reflectrl.core.types import UserError

if TYPE_CHECKING:
    from reflectrl.core.config import Recipe
    from reflectrl.runs.graph import Plan

BASE = "base"
"""The model from which everything starts: a model made from scratch, or the one in `model.source`."""
PLAYED = ("env", "model", "play")
"""Recipe sections that affect every artifact for which a model plays."""


class TrainedModel(Protocol):
    """A model that is trained before online RL: a row of `MODELS`."""

    def artifacts(self, plan: Plan, name: str) -> list[str]:
        """Add the artifacts that make this model to a plan.

        Args:
            name: the name of the row, which is also that of the model's checkpoint in a run folder.

        Returns:
            Keys of the artifacts that are needed to play with it.
        """
        ...


@dataclass(frozen=True)
class SFT:
    """A model fine-tuned on teaching episodes.

    Attributes:
        player: the role it learns: "reflector", "policy", or "plain" (a policy that reads no reflections).
        negatives: True if its data contain negative examples.
        reflector: the reflector from which it starts if the recipe says `sft.policy_from = "reflector"`.
        log: it learns from `episodes/LOG-seedN-train.jsonl` of the run; "" means the teaching episodes.
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
        return [plan.add("sft", name, "sft", "reflectrl.runs.training:sft", output, inputs, *PLAYED, "sft")]


MODELS: dict[str, TrainedModel] = {
    "reflector": SFT("reflector"),
    "policy": SFT("policy", reflector="reflector"),
    "plain": SFT("plain"),
    "reflector-positive": SFT("reflector", negatives=False),
    "policy-positive": SFT("policy", negatives=False, reflector="reflector-positive"),
    "plain-positive": SFT("plain", negatives=False),
}
"""Models that are trained before online RL, by the name of their checkpoint in a run folder."""


@dataclass(frozen=True)
class Arm:
    """One way to play.

    Attributes:
        about: one line for tables and lists.
        policy: the model that plays, or from which RL starts: one of `MODELS`, or the base model.
        reflector: the model that writes reflections for it; "" for none.
        rl: None if no online RL follows. Otherwise the arm's own settings of [rl]; {} takes the recipe's.
        player: the kind of player if no model plays.
        speaker: function of the recipe that makes a writer of reflections in place of a reflector; "" for none.
        guide: function of the recipe and the policy that makes a player which uses the policy's model; "" for none.
        players: function that makes both players, if the fields above are not enough. Its arguments are the `Context`,
            the arm's name, the seed, the models and the temperature. "" for none.
        shows: function that returns demonstrations for the base model's system prompt, as text. Its arguments are the
            recipe, the teaching episodes, the player's role and its model. "" for none.
        settings: further recipe keys on which its play depends.
        asked: name and host of the endpoint's model that plays or reflects; "" for none.

    Functions are named as "module:function".
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
        """True if the arm needs the teacher's episodes. Every model except the base model is trained on them."""
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
    """Return the modules with further tables that installed packages bring."""
    return tuple(resolve("arms", name) for name in names("arms"))


def all_arms(recipe: Recipe | None = None) -> dict[str, Arm]:
    """Return every arm by name: the core's, those that packages bring, and those that a recipe itself describes.

    A recipe describes arms in [players.NAME]; a package's module returns them from `arms_of(recipe)`.
    """
    known = ARMS | {name: arm for module in brought() for name, arm in module.ARMS.items()}
    for module in brought() if recipe is not None else ():
        known |= module.arms_of(recipe) if hasattr(module, "arms_of") else {}
    return known


def model(name: str) -> TrainedModel:
    """Return the row with this name in the tables of models."""
    found: TrainedModel = (MODELS | {key: row for module in brought() for key, row in module.MODELS.items()})[name]
    return found


def chosen(names: Iterable[str], recipe: Recipe | None = None) -> dict[str, Arm]:
    """Return the arms with these names, including arms that a recipe describes.

    Raises UserError for an unknown name.
    """
    known = all_arms(recipe)
    for name in names:
        if name not in known:
            raise UserError(f"unknown arm {name!r} in 'arms'{suggestion(name, known)}")
    return {name: known[name] for name in names}


def played_model(name: str, recipe: Recipe | None = None) -> str:
    """Return the name of the model that finally acts for an arm; "" if no model does."""
    arm = all_arms(recipe)[name]
    return arm.policy if arm.rl is None else f"rl-{name}"


def planner(name: Literal["log", "teaching"]) -> Callable[..., str]:
    """Return a package's function that adds artifacts to a plan which the core cannot make itself.

    Args:
        name: "log" is called with a plan and adds a log of episodes; "teaching" is called with a plan and a split, and
            adds teaching episodes by a model behind an endpoint.

    Raises:
        UserError: no installed package has such a function.
    """
    for module in brought():
        if hasattr(module, name):
            found: Callable[..., str] = getattr(module, name)
            return found
    lacking = {"log": "rl.replay_log: no installed package writes a log of episodes"}
    raise UserError(lacking.get(name, "teach.by is 'endpoint': no installed package asks endpoints"))
