"""Making the players of an arm from the checkpoints of a run folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from reflectrl.core.config import Recipe, read_recipe
from reflectrl.core.config.trust import REMOTE_CODE, needing_trust, require
from reflectrl.core.envs import make
from reflectrl.models.adapters import backbone_of, is_adapter
from reflectrl.models.lm import LanguageModel
from reflectrl.models.load import load_model, second_player
from reflectrl.models.sources import find_model
from reflectrl.runs.arms import BASE, Arm, chosen, played_model
from reflectrl.runs.artifacts import CARD, POLICY, REFLECTOR
from reflectrl.runs.calibration import temperature_of
from reflectrl.runs.card import Card, read_card
from reflectrl.runs.folder import Context, RunFolder
from reflectrl.runs.precision import in_run
from reflectrl.runs.workers import function
from reflectrl.core.players import Player
from reflectrl.models.players import Policy, Reflector
from reflectrl.core.players.simple import UNLEARNED
from reflectrl.core.prompts.chat import Role, chat_of, system_prompt
from reflectrl.core.types import Sampling, UserError, named_seed

Models = tuple[LanguageModel, LanguageModel | None]
"""Policy and reflector."""


def load_players(folder: Path, arm: str, seed: int, trust: bool = False) -> tuple[Player, Player | None]:
    """Load the acting player (greedy) and the reflector of an arm, from a run folder or an exported agent's folder.

    Args:
        trust: allow the run's models to run code of their own, and the arm to ask the servers that the recipe names.
            The environment is not concerned: the caller brings it.

    Raises:
        UserError: there is no such run or arm, the arm is not trained yet, or what its models or servers need is not
            trusted.
    """
    path = folder / "recipe.toml"
    if not path.is_file():
        raise UserError(f"{folder} is no run folder (it has no recipe.toml)")
    recipe = read_recipe(path)
    row = chosen([arm], recipe)[arm]
    base = [
        role for role, name in (("policy", played_model(arm, recipe)), ("reflector", row.reflector)) if name == BASE
    ]
    told = any(recipe.model.source_of(role) != "scratch" for role in base)  # by the environment's class
    wanted = (REMOTE_CODE, "env.name") if told else (REMOTE_CODE,)
    needed = {
        key: one
        for key, one in needing_trust(recipe.plain()).items()
        if key in wanted or (row.players and one.kind in ("address", "secret"))
    }
    require(path, needed, trust, typed=False)
    run = RunFolder(folder)
    if (folder / CARD).exists():
        card: Card = read_card(folder)
        recipe = as_described(recipe, card)
        if arm not in recipe.arms:
            raise UserError(f"{folder} is an agent of the arm {recipe.arms[0]!r}, not {arm!r}")
        return calibrated(players_of(recipe, row, exported_models(recipe, folder), 0.0), card.play.calibration)
    recipe = replace(recipe, model=in_run(recipe.model, folder))
    trained_seed = seed if seed in recipe.seeds else recipe.seeds[0]
    models = load_models(recipe, run, trained_seed, arm)
    temperature = temperature_of(recipe, run, arm, trained_seed)
    return calibrated(seated(Context(recipe, run), arm, trained_seed, models, 0.0), temperature)


def calibrated(players: tuple[Player, Player | None], temperature: float) -> tuple[Player, Player | None]:
    """Give a policy the temperature of the probabilities that it reports. Other players are returned unchanged."""
    if isinstance(players[0], Policy):
        players[0].calibration = temperature
    return players


def as_described(recipe: Recipe, card: Card) -> Recipe:
    """Return the recipe of an exported agent, with the arm and the settings of play from its card."""
    play = replace(
        recipe.play,
        scoring=card.play.scoring,
        reflection_tokens=card.play.reflection_tokens,
        shuffle_labels=card.play.shuffle_labels,
    )
    arms = (card.arm,) if card.arm else recipe.arms
    return replace(recipe, arms=arms, play=play, model=replace(recipe.model, context=card.play.context))


def seated(
    context: Context, name: str, seed: int, models: Models | None, temperature: float
) -> tuple[Player, Player | None]:
    """Return the players of an arm of a run, with empty caches."""
    arm = chosen([name], context.recipe)[name]
    if arm.players:
        found: tuple[Player, Player | None] = function(arm.players)(context, name, seed, models, temperature)
        return found
    return players_of(context.recipe, arm, models, temperature)


def exported_models(recipe: Recipe, folder: Path) -> Models:
    """Load policy and reflector of an agent's folder (as `reflectrl export-agent` writes it)."""
    policy, second = load_model(folder / POLICY, recipe.model, POLICY), folder / REFLECTOR
    if not second.is_dir():
        return policy, None
    return policy, load_model(second, recipe.model) if policy.adapter is None else second_player(
        policy, REFLECTOR, second, recipe.model.chat
    )


def load_models(recipe: Recipe, run: RunFolder, seed: int, name: str) -> Models | None:
    """Load the policy's and the reflector's model of an arm; None if the arm needs no model."""
    arm = chosen([name], recipe)[name]
    return load_pair(recipe, run, seed, arm, played_model(name, recipe)) if arm.player == "policy" else None


def players_of(recipe: Recipe, arm: Arm, models: Models | None, temperature: float) -> tuple[Player, Player | None]:
    """Return the players of an arm, given its models, with empty caches."""
    if models is None:
        return UNLEARNED[arm.player](), None
    policy = make_policy(recipe, models[0], Sampling(temperature))
    if arm.guide:
        policy = function(arm.guide)(recipe, policy)
    if arm.speaker:
        speaker: Player = function(arm.speaker)(recipe)
        return policy, speaker
    return policy, None if models[1] is None else make_reflector(recipe, models[1])


def make_policy(recipe: Recipe, lm: LanguageModel, sampling: Sampling = Sampling()) -> Policy:  # noqa: B008  (frozen)
    """Return a policy that plays with a model, with the settings of the recipe."""
    play = recipe.play
    return Policy(lm, sampling, play.shuffle_labels, play.result_cache, play.kv_cache_mib * 2**20, play.scoring)


def make_reflector(recipe: Recipe, lm: LanguageModel) -> Reflector:
    """Return a reflector that writes with a model, with the settings of the recipe."""
    sampling = Sampling(recipe.play.reflection_temperature)
    play = recipe.play
    return Reflector(
        lm, play.reflection_tokens, sampling, play.result_cache, play.kv_cache_mib * 2**20, play.speculative
    )


def load_pair(recipe: Recipe, run: RunFolder, seed: int, arm: Arm, policy: str) -> Models:
    """Load a policy, by the name of its model, and the reflector of an arm: two models, or two adapters on one.

    Raises:
        UserError: one of them is not trained yet.
    """
    for name in (policy, arm.reflector):
        if name not in ("", BASE) and not run.is_trained(seed, name):
            raise UserError(f"{run.checkpoint(seed, name)} is not trained yet; run the recipe first")

    def place(name: str, role: Role) -> str | Path:
        return base_source(recipe, run, seed, role) if name == BASE else run.checkpoint(seed, name)

    def told(lm: LanguageModel, name: str, role: Role) -> LanguageModel:
        return instructed(recipe, lm, role, arm, run.teach(seed, "train"), seed) if name == BASE else lm

    policy_lm = load_model(place(policy, "policy"), recipe.model, "policy", named_seed(seed, "policy"))
    if not arm.reflector:
        return told(policy_lm, policy, "policy"), None
    source = place(arm.reflector, "reflector")
    if policy_lm.adapter is not None and (len(recipe.model.sources) == 1 or backbone_of(source) == policy_lm.base):
        fresh = arm.reflector == BASE and not is_adapter(source)
        reflector_lm = second_player(policy_lm, "reflector", None if fresh else Path(source), recipe.model.chat)
    else:
        reflector_lm = load_model(source, recipe.model, "reflector")
    return told(policy_lm, policy, "policy"), told(reflector_lm, arm.reflector, "reflector")


def instructed(
    recipe: Recipe,
    lm: LanguageModel,
    role: Role,
    arm: Arm | None = None,
    episodes: Path | None = None,
    seed: int = 0,
) -> LanguageModel:
    """Return the base model with a role's system prompt: the environment's instructions, and an arm's demonstrations if
    any.

    A model without a chat template is returned as it is.

    Args:
        episodes: the teaching episodes, of which the arm may show some.
        seed: decides which.

    Raises:
        UserError: the arm shows something, and there is no chat in which to do so.
    """
    if lm.chat is None:
        if arm is not None and arm.shows:
            raise UserError(f"model {lm.base!r} has no chat template in which to show demonstrations ({arm.about})")
        return lm
    shown = function(arm.shows)(recipe, episodes, role, lm, seed) if arm is not None and arm.shows else ""
    rules = system_prompt(make(recipe.env).instructions, role, shown, recipe.play.scoring == "enumeration")
    return replace(lm, chat=chat_of(lm.tokenizer, rules, lm.base))


def base_source(recipe: Recipe, run: RunFolder, seed: int, role: Role) -> str:
    """Return the model from which a player starts: a folder or a name. Adapters store it, so they get the full path."""
    source = find_model(recipe.model.source_of(role))
    folder = run.checkpoint(seed, BASE) if source == "scratch" else Path(source)
    return str(folder.resolve() if recipe.model.lora_rank else folder) if folder.is_dir() else source
