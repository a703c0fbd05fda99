"""From a run folder to an agent's folder: the players of one arm, and where they come from.

The folder needs nothing of the run: `reflectrl play ENV --player FOLDER` and `reflectrl.load_agent(FOLDER)` take it as
they take a run.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from reflectrl.config import Recipe, load_recipe, to_toml
from reflectrl.envs import make
from reflectrl.learn.checkpoint import write_folder
from reflectrl.models.lm import LanguageModel
from reflectrl.pipeline.arms import all_arms, chosen
from reflectrl.pipeline.card import CARD, POLICY, REFLECTOR, Card, PlaySettings, write_card
from reflectrl.pipeline.players import load_players
from reflectrl.plugins import suggestion
from reflectrl.types import UserError


def export_agent(run: Path, arm: str, seed: int, out: Path, half: bool = False, trust: bool = False) -> Card:
    """Write the players of an arm into a folder of their own; an agent that is there is replaced.

    Adapters are written as such and need their backbone, under the name that the run knew it by.

    Args:
        half: store weights in 16 bits.
        trust: let the run's recipe use code that it names.

    Raises:
        UserError: no such run, arm or seed; it is not trained; or `out` holds something else than an agent.
    """
    if not (run / "recipe.toml").is_file():
        raise UserError(f"{run} is no run folder (it has no recipe.toml)")
    recipe = load_recipe(run / "recipe.toml", trust=trust)
    card = _card(recipe, run, arm, seed)
    if asked := chosen([arm], recipe)[arm].asked:
        raise UserError(f"the arm {arm!r} asks {asked}, which cannot be exported; choose an arm of trained models")
    if out.exists() and not (out / CARD).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already and is no agent's folder; name another one")
    players = load_players(run, arm, seed, trust)
    models = {name: getattr(player, "lm", None) for name, player in zip((POLICY, REFLECTOR), players, strict=True)}
    if models[POLICY] is None:
        raise UserError(f"the arm {arm!r} plays without a model; there is nothing to export")

    def fill(folder: Path) -> None:
        for name, lm in models.items():
            if isinstance(lm, LanguageModel):
                if half:
                    lm.model.half()
                # One that needs no other model does not say where it came from.
                (lm if lm.adapter else replace(lm, base="")).save(folder / name)
        (folder / "recipe.toml").write_text(to_toml(_travelling(recipe, arm, seed)), encoding="utf-8")
        write_card(folder, card)

    try:
        write_folder(out, fill)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}") from error
    return card


def _travelling(recipe: Recipe, arm: str, seed: int) -> Recipe:
    """The recipe of an exported agent: settings for playing, without those of teaching and training."""
    plain = Recipe()
    env = {"name": recipe.env["name"]}
    model = replace(recipe.model, source=plain.model.source)
    sections = {
        name: plain.sections[name] if getattr(section, "stays_behind", False) else section
        for name, section in recipe.sections.items()
    }
    return replace(recipe, arms=(arm,), seeds=(seed,), env=env, model=model, teach=plain.teach, sections=sections)


def _card(recipe: Recipe, run: Path, arm: str, seed: int) -> Card:
    chosen([arm], recipe)
    if arm not in recipe.arms:
        raise UserError(
            f"{run} has no arm {arm!r}{suggestion(arm, [name for name in recipe.arms if name in all_arms()])}"
        )
    if seed not in recipe.seeds:
        raise UserError(f"{run} has no seed {seed}; it has {', '.join(map(str, recipe.seeds))}")
    results: dict[str, Any] = {}  # empty where the run was not evaluated yet
    with suppress(OSError, ValueError, TypeError):
        results = dict(json.loads((run / "results.json").read_text(encoding="utf-8")))
    own = [row for row in results.get("rows", ()) if (row["arm"], row["seed"]) == (arm, seed)]
    play = recipe.play
    return Card(
        recipe.name,
        arm,
        seed,
        results.get("commit", ""),
        str(recipe.env["name"]),
        PlaySettings(play.scoring, play.reflection_tokens, play.shuffle_labels, recipe.model.context),
        make(recipe.env).card_settings(),
        tuple({key: value for key, value in row.items() if value is not None} for row in own),
    )
