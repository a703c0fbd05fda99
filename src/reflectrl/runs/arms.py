"""Arms, which are the rows of a results table, and the models they play with. To add one, add a line to a table.

Each file of the folder `methods` can add more, in a table ARMS. Other packages can too, by an entry point of the group
"reflectrl.methods" that names such a module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from reflectrl.core.plugins import names, resolve, suggestion, table_modules
from reflectrl.core.types import UserError
from reflectrl.runs import stages
from reflectrl.runs.artifact import PLAYED, PRETRAINED, Artifact, Handle, Plan

if TYPE_CHECKING:
    from reflectrl.core.config import Recipe

Model = Callable[[Plan], Handle | Literal["pretrained"]]
"""Function that plans a model: it adds the model and its inputs to the plan, and returns the model's handle."""


# ---- models --------------------------------------------------------------------------------------------------------


def base(plan: Plan) -> Handle | Literal["pretrained"]:
    """Plan the model from which everything starts: a model made from scratch, or the one in `model.source`."""
    if "scratch" not in plan.recipe.model.sources:
        return PRETRAINED
    # A scratch tokenizer has to know the texts that the model will read. Without a teacher, random play shows them.
    episodes = teaching(plan, "train") if plan.is_taught else stages.random_episodes(plan, "random")
    return stages.scratch_model(plan, "model", episodes=episodes)


def teaching(plan: Plan, split: str) -> Artifact:
    """Plan the teaching episodes of a split."""
    if plan.recipe.teach.by == "endpoint":
        planned: Artifact = hook("teaching")(plan, split)
        return planned
    return stages.teacher_episodes(plan, split, files=plan.recipe.teach.log)  # no files where a teacher plays


def reflected(plan: Plan, split: str) -> Artifact:
    """Plan the teaching episodes of a split, with the reflections that players learn to write and to read."""
    episodes = teaching(plan, split)
    if plan.recipe.teach.reflections == "given":
        return episodes
    return stages.outcome_episodes(plan, split, episodes=episodes, plain=plain(plan))


def plain(plan: Plan) -> Artifact:
    """Plan a policy that reads no reflections, after SFT."""
    return _without_reflections(plan, "plain", negatives=True)


def plain_positive(plan: Plan) -> Artifact:
    """Plan a policy that reads no reflections, after SFT without negative examples."""
    return _without_reflections(plan, "plain-positive", negatives=False)


def reflector(plan: Plan) -> Artifact:
    """Plan a reflector after SFT."""
    return _with_reflections(plan, "reflector", "reflector", base, negatives=True)


def reflector_positive(plan: Plan) -> Artifact:
    """Plan a reflector after SFT without negative examples."""
    return _with_reflections(plan, "reflector-positive", "reflector", base, negatives=False)


def policy(plan: Plan) -> Artifact:
    """Plan a policy that reads reflections, after SFT."""
    start: Model = base
    if plan.recipe.sft.policy_from == "reflector":
        start = reflector
    return _with_reflections(plan, "policy", "policy", start, negatives=True)


def policy_positive(plan: Plan) -> Artifact:
    """Plan a policy that reads reflections, after SFT without negative examples."""
    start: Model = base
    if plan.recipe.sft.policy_from == "reflector":
        start = reflector_positive
    return _with_reflections(plan, "policy-positive", "policy", start, negatives=False)


def _without_reflections(plan: Plan, name: str, negatives: bool) -> Artifact:
    return stages.fine_tuned(
        plan,
        name,
        start=base(plan),
        train=teaching(plan, "train"),
        validation=teaching(plan, "validation"),
        player="plain",
        negatives=negatives,
    )


def _with_reflections(plan: Plan, name: str, player: str, start: Model, negatives: bool) -> Artifact:
    return stages.fine_tuned(
        plan,
        name,
        start=start(plan),
        train=reflected(plan, "train"),
        validation=reflected(plan, "validation"),
        player=player,
        negatives=negatives,
    )


# ---- arms ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arm:
    """One way to play.

    Attributes:
        about: one line for tables and lists.
        policy: plans the model that plays, or from which RL starts; None if no model of ours plays.
        reflector: plans the model that writes reflections for it; None for none.
        rl: None if no online RL follows. Otherwise the arm's own settings of [rl]; {} takes the recipe's.
        player: the kind of player if no model plays.
        speaker: function of the recipe that makes a writer of reflections in place of a reflector.
        guide: function of the recipe and the policy that makes a player which uses the policy's model.
        players: function that makes both players, if the fields above are not enough. Its arguments are the recipe,
            the run folder, the arm's name, the models and the temperature.
        shows: function that returns demonstrations for the base model's system prompt, as text. Its arguments are the
            recipe, the teaching episodes, the player's role, its model and the seed.
        settings: further recipe keys on which its play depends.
        asked: name and host of the endpoint's model that plays or reflects; "" for none.
    """

    about: str
    policy: Model | None = None
    reflector: Model | None = None
    rl: Mapping[str, Any] | None = None
    player: Literal["policy", "random", "expert", "oracle", "baseline", "endpoint"] = "policy"
    speaker: Callable[..., Any] | None = None
    guide: Callable[..., Any] | None = None
    players: Callable[..., Any] | None = None
    shows: Callable[..., str] | None = None
    settings: tuple[str, ...] = ()
    asked: str = ""

    @property
    def is_taught(self) -> bool:
        """True if the arm needs the teacher's episodes. Every model except the base model is trained on them."""
        return any(model not in (None, base) for model in (self.policy, self.reflector)) or self.shows is not None

    @property
    def plays_model(self) -> bool:
        """True if a model of ours acts or reflects."""
        return self.player == "policy" or self.reflector is not None


ARMS: dict[str, Arm] = {
    "random": Arm("a legal action at random", player="random"),
    "expert": Arm("the environment's expert, who teaches", player="expert"),
    "oracle": Arm("knows what is hidden from players", player="oracle"),
    "baseline": Arm("the usual method without learning", player="baseline"),
    "sft": Arm("both players after SFT, no RL", policy, reflector),
    "sft-no-reflection": Arm("SFT policy without a reflector, no RL", plain),
    "sft-no-negatives": Arm("both players after SFT without negatives, no RL", policy_positive, reflector_positive),
    "sft-neither": Arm("SFT policy without a reflector and without negatives, no RL", plain_positive),
    "rl-only": Arm("RL from the base model, no SFT, no reflector", base, rl={}),
    "neither": Arm("SFT + RL without a reflector, SFT data without negatives", plain_positive, rl={}),
    "no-reflection": Arm("SFT + RL without a reflector", plain, rl={}),
    "no-negatives": Arm("SFT + RL, SFT data without negatives", policy_positive, reflector_positive, rl={}),
    "reflect-rl": Arm("the full method: reflector, negatives, SFT + RL", policy, reflector, rl={}),
}


class Players(NamedTuple):
    """Planned models of an arm; None where it has none."""

    policy: Handle | Literal["pretrained"] | None
    reflector: Handle | Literal["pretrained"] | None
    teaching: Handle | None = None


def start_of(plan: Plan, arm: Arm) -> Players:
    """Plan the models of an arm before online RL, and the teaching episodes that it shows to them."""
    players = Players(None, None)
    if arm.reflector:
        players = players._replace(reflector=arm.reflector(plan))
    if arm.policy:
        players = players._replace(policy=arm.policy(plan))
    if arm.shows:
        players = players._replace(teaching=teaching(plan, "train"))
    return players


def imitation_of_wins(recipe: Recipe, arm: Arm) -> str | None:
    """Return the name of an arm's imitation of wins that a search finds (`rl.own_wins`); None if it has none.

    With demonstrations by a program, no search is needed. With a few recorded episodes it is, since RL alone would
    memorise their tasks.
    """
    if arm.rl is None or not replace(recipe.rl, **arm.rl).own_wins:
        return None
    if arm.policy is base:
        return "own-wins"
    if arm.policy is plain and recipe.teach.by == "log":
        return "own-wins-shown"
    return None


def players_of(plan: Plan, name: str, arm: Arm) -> Players:
    """Plan the models with which an arm plays: after online RL, if it has any."""
    start = start_of(plan, arm)
    if arm.rl is None:
        return start
    config = replace(plan.recipe.rl, **arm.rl)
    taught = isinstance(start.policy, Artifact) and start.policy.kind == "sft"
    own, imitation = None, imitation_of_wins(plan.recipe, arm)
    if imitation and isinstance(start.policy, Artifact):
        own = stages.own_wins(plan, "own")
        learned = stages.imitated_wins(
            plan,
            imitation,
            start=base(plan),
            train=own.part(0),
            validation=own.part(1),
            taught=start.policy if taught else None,
            shown=teaching(plan, "train") if taught else None,
            shown_apart=teaching(plan, "validation") if taught else None,
        )
        start = start._replace(policy=learned)
    log = episodes = None
    if config.replay_log:
        log = hook("log")(plan)
    # Without teaching episodes, there are no wins from which to start.
    if config.reverse and (plan.is_taught or plan.recipe.teach.by == "log"):
        episodes = teaching(plan, "train")
    settings = list[str]()
    if arm.asked:
        settings += arm.settings
    for section in plan.recipe.sections.values():
        if hasattr(section, "rl_settings"):  # a package's section can change RL, for example by a judge's rewards
            settings += section.rl_settings(plan.recipe)
    trained = stages.learned_online(
        plan,
        name,
        reflector=start.reflector,
        policy=start.policy,
        log=log,
        teaching=episodes,
        imitated=taught,
        own=own and own.part(0),
        arm=arm if arm.asked else None,
        changes=dict(arm.rl),
        settings=settings,
    )
    return Players(trained, trained.given("reflector"))


def planned_evaluation(plan: Plan, name: str, arm: Arm) -> Artifact:
    """Plan the evaluation of an arm, with everything that it needs."""
    acting, speaking, episodes = players_of(plan, name, arm)
    config, settings, extent = plan.recipe.eval, ["env"], list[str]()
    if arm.player == "policy":
        settings = [*PLAYED]
    settings += arm.settings
    # Two keys count only where they are used, so that evaluations of earlier versions keep their fingerprints.
    if config.temperature == "fitted" and arm.policy:
        settings.append("eval.temperature")
    if config.repeats > 1:
        extent.append("eval.repeats")
    return stages.evaluation(
        plan,
        name,
        reflector=speaking,
        policy=acting,
        teaching=episodes,
        arm=arm,
        settings=settings,
        extent=extent,
    )


# ---- the tables ----------------------------------------------------------------------------------------------------


@cache
def installed_modules() -> tuple[ModuleType, ...]:
    """Return the modules with further tables of arms, our own and other packages'."""
    return (*table_modules(), *(resolve("arms", name) for name in names("arms")))


def all_arms(recipe: Recipe | None = None) -> dict[str, Arm]:
    """Return every arm by name: arms of the core, of packages, and of the recipe itself.

    A recipe describes arms in [players.NAME]; a package's module returns them from `arms_of(recipe)`.
    """
    arms = dict(ARMS)
    # Later tables win, so a package can replace an arm of the core by one of the same name.
    for module in installed_modules():
        arms |= getattr(module, "ARMS", {})
    if recipe is not None:
        for module in installed_modules():
            if hasattr(module, "arms_of"):
                arms |= module.arms_of(recipe)
    return arms


def select_arms(names: Iterable[str], recipe: Recipe | None = None) -> dict[str, Arm]:
    """Return the arms with these names, including arms that a recipe describes.

    Raises UserError for an unknown name.
    """
    arms = all_arms(recipe)
    for name in names:
        if name not in arms:
            raise UserError(f"unknown arm {name!r} in 'arms'{suggestion(name, arms)}")
    return {name: arms[name] for name in names}


def hook(name: Literal["log", "teaching"]) -> Callable[..., Artifact]:
    """Return a package's function that plans artifacts which the core cannot make itself, from HOOKS of its module.

    Args:
        name: "log" is called with a plan and plans a log of episodes; "teaching" is called with a plan and a split, and
            plans teaching episodes by a model behind an endpoint.

    Raises:
        UserError: no installed package has such a function.
    """
    for module in installed_modules():
        hooks: Mapping[str, Callable[..., Artifact]] = getattr(module, "HOOKS", {})
        if name in hooks:
            return hooks[name]
    lacking = {"log": "rl.replay_log: no installed package writes a log of episodes"}
    raise UserError(lacking.get(name, "teach.by is 'endpoint': no installed package asks endpoints"))
