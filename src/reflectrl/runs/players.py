"""Making the players of an arm from the checkpoints of a run folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from reflectrl.core.calibration import Calibration
from reflectrl.core.config import Recipe, read_recipe
from reflectrl.core.config.trust import REMOTE_CODE, needing_trust, require
from reflectrl.core.envs import make
from reflectrl.core.players import Player
from reflectrl.core.players.simple import UNLEARNED
from reflectrl.core.prompts.chat import Role, chat_of, system_prompt
from reflectrl.core.types import Sampling, UserError, named_seed
from reflectrl.learn.checkpoint import recover
from reflectrl.models.adapters import backbone_of, is_adapter
from reflectrl.models.cards import CARD as TRAINED
from reflectrl.models.lm import LanguageModel
from reflectrl.models.load import load_model, second_player
from reflectrl.models.players import Policy, Reflector
from reflectrl.models.seq2seq import TEXTS_ONLY
from reflectrl.models.sources import find_model
from reflectrl.runs.arms import Arm, base, players_of, select_arms, start_of
from reflectrl.runs.artifact import PRETRAINED, Handle, Plan, Source
from reflectrl.runs.calibration import calibration_of
from reflectrl.runs.card import Card, read_card
from reflectrl.runs.folder import RunFolder
from reflectrl.runs.precision import in_run
from reflectrl.runs.state import CARD, POLICY, REFLECTOR

BASE = "base"
"""Name of an untrained model in the provenance of episodes."""
Models = tuple[LanguageModel | None, LanguageModel | None]
"""Policy and reflector; None where no model of ours acts or reflects."""


def load_players(folder: Path, arm: str, seed: int, trust: bool = False) -> tuple[Player, Player | None]:
    """Load the acting player (greedy) and the reflector of an arm, from a run folder or an exported agent's folder.

    Args:
        trust: allow the run's models to run their own code, and the arm to ask the servers that the recipe names. The
            environment is not covered, since the caller provides it.

    Raises:
        UserError: there is no such run or arm, the arm is not trained yet, or its models' code or its servers are not
            trusted.
    """
    path = folder / "recipe.toml"
    if not path.is_file():
        raise UserError(f"{folder} is not a run folder (it has no recipe.toml)")
    recipe = read_recipe(path)
    row = select_arms([arm], recipe)[arm]
    untrained = []
    if row.policy is base and row.rl is None:
        untrained.append("policy")
    if row.reflector is base:
        untrained.append("reflector")
    named = {REMOTE_CODE}
    if any(recipe.model.source_of(role) != "scratch" for role in untrained):
        # The system prompt of a pretrained model contains the environment's instructions, so its class is imported.
        named.add("env.name")
    needed = {}
    for key, value in needing_trust(recipe.plain()).items():
        # An arm with players of its own asks the servers that the recipe names.
        if key in named or (row.players and value.kind in ("address", "secret")):
            needed[key] = value
    require(path, needed, trust, typed=False)
    if (folder / CARD).exists():
        card: Card = read_card(folder)
        recipe = as_described(recipe, card)
        if arm not in recipe.arms:
            raise UserError(f"{folder} is an agent of the arm {recipe.arms[0]!r}, not {arm!r}")
        return calibrated(combined(recipe, row, exported_models(recipe, folder), 0.0), card.play.to_calibration())
    recipe = replace(recipe, model=in_run(recipe.model, folder))
    trained_seed = seed if seed in recipe.seeds else recipe.seeds[0]
    players = build_players(recipe, folder, arm, row, load_models(recipe, folder, trained_seed, arm), 0.0)
    return calibrated(players, calibration_of(recipe, RunFolder(folder), arm, trained_seed))


def calibrated(players: tuple[Player, Player | None], calibration: Calibration) -> tuple[Player, Player | None]:
    """Set the calibration of the probabilities that a policy reports. Other players are returned unchanged."""
    if isinstance(players[0], Policy):
        players[0].calibration = calibration
    return players


def as_described(recipe: Recipe, card: Card) -> Recipe:
    """Return the recipe of an exported agent, with the arm and the settings of play from its card."""
    play = replace(
        recipe.play,
        scoring=card.play.scoring,
        reflection=card.play.reflection,
        reflection_tokens=card.play.reflection_tokens,
        shuffle_labels=card.play.shuffle_labels,
    )
    recipe = replace(recipe, play=play, model=replace(recipe.model, context=card.play.context))
    return replace(recipe, arms=(card.arm,)) if card.arm else recipe


def build_players(
    recipe: Recipe, folder: Path, name: str, arm: Arm, models: Models, temperature: float
) -> tuple[Player, Player | None]:
    """Return the players of an arm of a run, with empty caches.

    Args:
        folder: the run folder, for the answers of models behind endpoints.
        name: name of the arm.
    """
    if arm.players is not None:
        players: tuple[Player, Player | None] = arm.players(recipe, folder, name, models, temperature)
        return players
    return combined(recipe, arm, models, temperature)


def exported_models(recipe: Recipe, folder: Path) -> Models:
    """Load policy and reflector of an agent's folder (as `reflectrl export-agent` writes it)."""
    policy, second = load_model(folder / POLICY, recipe.model, POLICY), folder / REFLECTOR
    if not second.is_dir():
        return policy, None
    if policy.adapter is None:
        return policy, load_model(second, recipe.model)
    return policy, second_player(policy, REFLECTOR, second, recipe.model.chat)  # two adapters on one backbone


def load_models(recipe: Recipe, folder: Path, seed: int, name: str, before_rl: bool = False) -> Models:
    """Load the policy's and the reflector's model of an arm from a run folder.

    Args:
        before_rl: load the models from which online RL starts.

    Raises:
        UserError: one of them is not trained yet.
    """
    policy, reflector, teaching = planned_models(recipe, folder, seed, name, before_rl)
    for source in (policy, reflector):
        if isinstance(source, Path) and not source.exists():
            raise UserError(f"{source} is not trained yet; run the recipe first")
    return load_pair(recipe, seed, policy, reflector, select_arms([name], recipe)[name], teaching)


def planned_models(
    recipe: Recipe, folder: Path, seed: int, name: str, before_rl: bool = False
) -> tuple[Source | None, Source | None, Path | None]:
    """Return the paths of an arm's policy, of its reflector, and of the teaching episodes that it shows to them.

    They need not exist yet.
    """
    arm = select_arms([name], recipe)[name]
    plan = Plan(recipe, seed, is_taught=arm.is_taught)
    planned = start_of(plan, arm) if before_rl else players_of(plan, name, arm)
    teaching = None
    if planned.teaching is not None:
        teaching = folder / planned.teaching.path
    return _in_folder(folder, planned.policy), _in_folder(folder, planned.reflector), teaching


def _in_folder(folder: Path, handle: Handle | Literal["pretrained"] | None) -> Source | None:
    if handle is None or isinstance(handle, str):
        return handle
    recover(folder / handle.path)
    return folder / handle.path


def combined(recipe: Recipe, arm: Arm, models: Models, temperature: float) -> tuple[Player, Player | None]:
    """Return the players of an arm, given its models, with empty caches."""
    if models[0] is None:
        return UNLEARNED[arm.player](), None
    policy = make_policy(recipe, models[0], Sampling(temperature))
    if arm.guide is not None:
        policy = arm.guide(recipe, policy)
    if arm.speaker is not None:
        speaker: Player = arm.speaker(recipe)
        return policy, speaker
    if models[1] is None:
        return policy, None
    return policy, make_reflector(recipe, models[1])


def make_policy(recipe: Recipe, lm: LanguageModel, sampling: Sampling = Sampling()) -> Policy:  # noqa: B008  (frozen)
    """Return a policy that plays with a model, with the settings of the recipe.

    Args:
        sampling: gives the temperature. Top-k and top-p are the recipe's.

    Raises:
        UserError: it is an encoder-decoder model.
    """
    if lm.encoder_decoder:
        raise UserError(f"model {lm.base!r}: {TEXTS_ONLY}")
    play = recipe.play
    sampling = Sampling(sampling.temperature, play.top_p, play.top_k)
    return Policy(lm, sampling, play.shuffle_labels, play.result_cache, play.kv_cache_mib * 2**20, play.scoring)


def make_reflector(recipe: Recipe, lm: LanguageModel) -> Reflector:
    """Return a reflector that writes with a model, with the settings of the recipe."""
    play = recipe.play
    sampling = Sampling(play.reflection_temperature, play.top_p, play.top_k)
    cache, carries = play.kv_cache_mib * 2**20, play.reflection == "carried"
    return Reflector(lm, play.reflection_tokens, sampling, play.result_cache, cache, play.speculative, carries)


def load_pair(
    recipe: Recipe,
    seed: int,
    policy: Source | None,
    reflector: Source | None,
    arm: Arm | None = None,
    teaching: Path | None = None,
) -> Models:
    """Load a policy and a reflector: two models, or two adapters on one.

    Args:
        arm: its demonstrations are shown to untrained models.
        teaching: the teaching episodes from which the demonstrations are taken.
    """
    policy_lm = reflector_lm = None
    if policy is not None:
        named = model_source(recipe, policy, "policy")
        policy_lm = load_model(named, recipe.model, "policy", named_seed(seed, "policy"))
    if reflector is not None:
        source = model_source(recipe, reflector, "reflector")
        if policy_lm is not None and _shares_backbone(recipe, policy_lm, source):
            adapter = None if is_base(reflector) and not is_adapter(source) else Path(source)  # None: a new adapter
            reflector_lm = second_player(policy_lm, "reflector", adapter, recipe.model.chat)
        else:
            reflector_lm = load_model(source, recipe.model, "reflector")
    # Only now: a second player on the policy's backbone must not get the policy's system prompt.
    if reflector_lm is not None and reflector is not None and is_base(reflector):
        reflector_lm = instructed(recipe, reflector_lm, "reflector", arm, teaching, seed)
    if policy_lm is not None and policy is not None and is_base(policy):
        policy_lm = instructed(recipe, policy_lm, "policy", arm, teaching, seed)
    return policy_lm, reflector_lm


def _shares_backbone(recipe: Recipe, policy_lm: LanguageModel, source: str | Path) -> bool:
    """Tell whether the reflector in `source` can be an adapter on the policy's backbone."""
    if policy_lm.adapter is None:
        return False
    return len(recipe.model.sources) == 1 or backbone_of(source) == policy_lm.base


def instructed(
    recipe: Recipe,
    lm: LanguageModel,
    role: Role,
    arm: Arm | None = None,
    teaching: Path | None = None,
    seed: int = 0,
) -> LanguageModel:
    """Return the base model with a role's system prompt: the environment's instructions, and any demonstrations.

    A model without a chat template is returned as it is.

    Args:
        teaching: the teaching episodes from which the arm may show some.
        seed: seed of their selection.

    Raises:
        UserError: the arm shows demonstrations, and the model has no chat template for them.
    """
    demonstrations = ""
    if arm is not None and arm.shows is not None:
        if lm.chat is None:
            raise UserError(f"model {lm.base!r} has no chat template in which to show demonstrations ({arm.about})")
        demonstrations = arm.shows(recipe, teaching, role, lm, seed)
    if lm.chat is None:
        return lm
    labelled, carries = recipe.play.scoring == "enumeration", recipe.play.reflection == "carried"
    rules = system_prompt(make(recipe.env).instructions, role, demonstrations, labelled, carries)
    return replace(lm, chat=chat_of(lm.tokenizer, rules, lm.base))


def is_base(source: Source) -> bool:
    """Tell whether a model was not trained in its run: the pretrained one, or one from scratch, without a card."""
    return source == PRETRAINED or not (Path(source) / TRAINED).is_file()


def name_of(source: Source) -> str:
    """Return the name of a model in the provenance of episodes."""
    return BASE if source == PRETRAINED else Path(source).name


def model_source(recipe: Recipe, source: Source, role: Role) -> str | Path:
    """Return the name or folder from which a player is loaded.

    With adapters it is a full path, since adapters store the path of their backbone.
    """
    if not is_base(source):
        return source
    named = find_model(recipe.model.source_of(role))
    folder = Path(source) if named == "scratch" else Path(named)
    if not folder.is_dir():
        return named
    return str(folder.resolve() if recipe.model.lora_rank else folder)
