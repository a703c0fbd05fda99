"""The players of an arm, from the checkpoints of a run folder."""

from __future__ import annotations

from pathlib import Path

from reflectrl.config import Recipe, load_recipe
from reflectrl.models.lm import LanguageModel
from reflectrl.models.load import load_model, second_player
from reflectrl.pipeline.arms import ARMS, Arm, chosen
from reflectrl.pipeline.layout import RunFolder
from reflectrl.players import (
    Player,
    Policy,
    Reflector,
    WishPlayer,
)
from reflectrl.players.simple import UNLEARNED
from reflectrl.types import Sampling, UserError, named_seed

Models = tuple[LanguageModel, LanguageModel | None]
"""Policy and reflector."""


def load_players(folder: Path, arm: str, seed: int) -> tuple[Player, Player | None]:
    """The acting player (greedy) and the reflector of an arm in a run folder.

    Raises:
        UserError: no such run or arm, or the arm is not trained yet.
    """
    if not (folder / "recipe.toml").is_file():
        raise UserError(f"{folder} is no run folder (it has no recipe.toml)")
    recipe = load_recipe(folder / "recipe.toml")
    chosen([arm])
    run = RunFolder(folder)
    trained_seed = seed if seed in recipe.seeds else recipe.seeds[0]
    models = load_models(recipe, run, trained_seed, arm)
    return seat_players(recipe, ARMS[arm], models, 0.0)


def load_models(recipe: Recipe, run: RunFolder, seed: int, name: str) -> Models | None:
    """What an arm plays with; None for one that needs no model."""
    arm = ARMS[name]
    if arm.player != "policy":
        return None
    return load_pair(recipe, run, seed, arm, f"rl-{name}" if arm.rl else arm.policy_part)


def seat_players(recipe: Recipe, arm: Arm, models: Models | None, temperature: float) -> tuple[Player, Player | None]:
    """The players of an arm, with empty memories."""
    if models is None:
        return UNLEARNED[arm.player](), None
    policy = make_policy(recipe, models[0], Sampling(temperature))
    if arm.offline == "rvs":
        return policy, WishPlayer(recipe.offline.wish)
    return policy, None if models[1] is None else make_reflector(recipe, models[1])


def make_policy(recipe: Recipe, lm: LanguageModel, sampling: Sampling = Sampling()) -> Policy:  # noqa: B008  (frozen)
    """The policy that chooses through a model, as the recipe has it."""
    play = recipe.play
    return Policy(lm, sampling, play.shuffle_labels, play.memory, play.cache_mib * 2**20, play.scoring)


def make_reflector(recipe: Recipe, lm: LanguageModel) -> Reflector:
    """The reflector that speaks through a model, as the recipe has it."""
    sampling = Sampling(recipe.play.reflection_temperature)
    play = recipe.play
    return Reflector(lm, play.reflection_tokens, sampling, play.memory, play.cache_mib * 2**20, play.drafts)


def load_pair(recipe: Recipe, run: RunFolder, seed: int, arm: Arm, policy_part: str | None) -> Models:
    """The policy (after `policy_part`, or as RL starts when None) and the reflector: two models, or two adapters."""
    start = policy_part or arm.policy_part
    policy_source = run.checkpoint(seed, start) if start else base_source(recipe, run, seed)
    for part in filter(None, (start, arm.reflector_part)):
        if not run.trained(seed, part):
            raise UserError(f"{run.checkpoint(seed, part)} is not trained yet; run the recipe first")
    policy_lm = load_model(policy_source, recipe.model, "policy", named_seed(seed, "policy"))
    if arm.reflector_part is None:
        return policy_lm, None
    folder = run.checkpoint(seed, arm.reflector_part)
    if policy_lm.adapter is not None:
        return policy_lm, second_player(policy_lm, "reflector", folder)
    return policy_lm, load_model(folder, recipe.model, "reflector")


def base_source(recipe: Recipe, run: RunFolder, seed: int) -> str:
    """The model that players start from: a folder or a name. Adapters remember it, so they get the whole path."""
    source = recipe.model.source
    folder = run.checkpoint(seed, "base") if source == "scratch" else Path(source)
    return str(folder.resolve() if recipe.model.lora_rank else folder) if folder.is_dir() else source
