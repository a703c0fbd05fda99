"""Export of a run's arm as an agent's folder: its players and their provenance.

The folder needs nothing of the run. `reflectrl play ENV --player FOLDER` and `reflectrl.load_agent(FOLDER)` accept it
like a run folder.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from reflectrl.core.advice import option
from reflectrl.core.config import Recipe, load_recipe, to_toml
from reflectrl.core.config.folders import writing
from reflectrl.core.envs import make
from reflectrl.core.json_lines import read_json
from reflectrl.core.plugins import suggestion
from reflectrl.core.types import UserError
from reflectrl.learn.checkpoint import write_folder
from reflectrl.models.backend import Counters
from reflectrl.models.lm import LanguageModel
from reflectrl.runs.arms import all_arms, select_arms
from reflectrl.runs.calibration import calibration_of
from reflectrl.runs.card import Card, PlaySettings, write_card
from reflectrl.runs.demonstrations import finished_lines
from reflectrl.runs.folder import RunFolder
from reflectrl.runs.players import load_players
from reflectrl.runs.state import CARD, POLICY, REFLECTOR
from reflectrl.tools.exporting.publishing import (
    MODEL_CARD,
    Publication,
    check_publication,
    model_card,
    push,
    weights_of,
)

MERGED, HALF = 1e-3, 0.5
"""Largest difference of logits, relative to 1 + their size, that merging an adapter may make: in float32, and in 16
bits, to which the sum is rounded."""


def export_agent(
    run: Path,
    arm: str,
    seed: int,
    out: Path,
    half: bool = False,
    trust: bool = False,
    merge: bool = False,
    licence: str = "",
    publication: Publication | None = None,
) -> Card:
    """Write the players of an arm into a separate folder. An agent that exists there is replaced.

    Adapters are written as such unless they are merged. They need their backbone under the name that the run used.

    Args:
        half: store weights in 16 bits.
        trust: let the run's recipe use code that it names.
        merge: add adapters to their backbone's weights, so that each player is an ordinary, separate model.
        licence: identifier of the agent's licence ("apache-2.0"). With it, a model card is written as `README.md`.
        publication: settings of an upload to a hub, which needs a licence; None contacts no hub.

    Raises:
        UserError: no such run, arm or seed; it is not trained; `out` holds something other than an agent; adapters on a
            local folder are to be published; or the hub cannot be reached, or refuses.
    """
    if publication is not None:
        check_publication(publication, licence)
    if not (run / "recipe.toml").is_file():
        raise UserError(f"{run} is not a run folder (it has no recipe.toml)")
    recipe = load_recipe(run / "recipe.toml", trust=trust)
    results = _results(run)
    card = _card(recipe, run, arm, seed, results)
    _refuse_to_write(out)
    models = _models(recipe, run, arm, seed, trust)
    if licence and not merge:
        _refuse_local_backbones(models)

    def fill(folder: Path) -> None:
        for name, lm in models.items():
            if isinstance(lm, LanguageModel):
                player = merged(lm) if merge else lm
                if half:
                    player.model.half()
                # A model that needs no other one must not carry the path that it came from.
                (player if player.adapter else replace(player, base="")).save(folder / name)
        (folder / "recipe.toml").write_text(to_toml(_travelling(recipe, arm, seed, merge)), encoding="utf-8")
        write_card(folder, card)
        if licence:
            log = RunFolder(run).teach(seed, "train")
            taught = finished_lines(log) if log.is_file() else 0
            summary = [row for row in results.get("summary", ()) if row["arm"] == arm]
            text = model_card(card, recipe, taught, licence, summary, weights_of(folder))
            (folder / MODEL_CARD).write_text(text, encoding="utf-8")

    with writing(out):
        write_folder(out, fill, share=False)
    if publication is not None:
        push(out, publication)
    return card


def _refuse_to_write(out: Path) -> None:
    """Refuse a folder that holds something other than an agent."""
    if out.exists() and not (out / CARD).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} already exists and is not an agent's folder; name another one")


def _refuse_local_backbones(models: Mapping[str, LanguageModel | None]) -> None:
    """Refuse to publish adapters on a local folder. Other people could not load them, and they name the folder."""
    for name, lm in models.items():
        if lm is not None and lm.adapter is not None and Path(lm.base).exists():
            raise UserError(
                f"the {name} is an adapter on {lm.base}, which only this machine has; "
                f"add {option('merge', True)} to publish it"
            )


def _models(recipe: Recipe, run: Path, arm: str, seed: int, trust: bool) -> dict[str, LanguageModel | None]:
    """Return the models of an arm by role. Raises UserError if it has none that can be exported."""
    if model := select_arms([arm], recipe)[arm].asked:
        raise UserError(f"the arm {arm!r} asks {model}, which cannot be exported; choose an arm of trained models")
    players = load_players(run, arm, seed, trust)
    models = {name: getattr(player, "lm", None) for name, player in zip((POLICY, REFLECTOR), players, strict=True)}
    if models[POLICY] is None:
        raise UserError(f"the arm {arm!r} plays without a model; there is nothing to export")
    return models


def merged(lm: LanguageModel) -> LanguageModel:
    """Return the player with its adapter merged into a copy of the backbone's weights; unchanged if it has no adapter.

    Raises:
        UserError: the backbone is quantised, or the merged model computes other logits (an adapter on a head that
            shares its weights with the embeddings).
    """
    if lm.adapter is None:
        return lm
    if getattr(lm.core.config, "quantization_config", None) is not None:
        raise UserError(f"an adapter cannot be added to quantised weights; export it without {option('merge')}")
    lm.activate()
    merged_model = copy.deepcopy(lm.model).merge_and_unload(adapter_names=[lm.adapter]).eval()
    ids_1T = torch.arange(8, device=lm.device)[None]
    with torch.inference_mode():
        expected, actual = (
            model(input_ids=ids_1T, use_cache=False).logits.float() for model in (lm.model, merged_model)
        )
    limit = MERGED if lm.dtype == torch.float32 else HALF
    if not float(((actual - expected).abs() / (1 + expected.abs())).max()) <= limit:
        raise UserError(f"an adapter of this kind cannot be added to the weights; export it without {option('merge')}")
    return replace(lm, model=merged_model, adapter=None, base="", counters=Counters())


def _travelling(recipe: Recipe, arm: str, seed: int, merged: bool = False) -> Recipe:
    """Return the recipe of an exported agent: settings of play, without settings of teaching and training."""
    plain = Recipe()
    env = {"name": recipe.env["name"]}
    model = replace(recipe.model, source=plain.model.source, policy="", reflector="")
    if merged:
        model = replace(model, lora_rank=0, quantisation="none")
    sections = dict(recipe.sections)
    for name, section in recipe.sections.items():
        if getattr(section, "not_exported", False):
            sections[name] = plain.sections[name]
    return replace(recipe, arms=(arm,), seeds=(seed,), env=env, model=model, teach=plain.teach, sections=sections)


def _results(run: Path) -> dict[str, Any]:
    """Return the content of `results.json`; {} if the run was not evaluated yet."""
    with suppress(OSError, ValueError, TypeError):
        return dict(read_json(run / "results.json"))
    return {}


def _card(recipe: Recipe, run: Path, arm: str, seed: int, results: Mapping[str, Any]) -> Card:
    select_arms([arm], recipe)
    if arm not in recipe.arms:
        raise UserError(
            f"{run} has no arm {arm!r}{suggestion(arm, [name for name in recipe.arms if name in all_arms()])}"
        )
    if seed not in recipe.seeds:
        raise UserError(f"{run} has no seed {seed}; it has {', '.join(map(str, recipe.seeds))}")
    figures = list[dict[str, Any]]()
    for row in results.get("rows", ()):
        if (row["arm"], row["seed"]) == (arm, seed):
            figures.append({key: value for key, value in row.items() if value is not None})
    play, calibration = recipe.play, calibration_of(recipe, RunFolder(run), arm, seed)
    a, b, c = calibration.beta
    return Card(
        recipe.name,
        arm,
        seed,
        results.get("commit", ""),
        str(recipe.env["name"]),
        PlaySettings(
            scoring=play.scoring,
            reflection_tokens=play.reflection_tokens,
            shuffle_labels=play.shuffle_labels,
            context=recipe.model.context,
            calibration=calibration.temperature,
            beta_a=a,
            beta_b=b,
            beta_c=c,
            reflection=play.reflection,
        ),
        make(recipe.env).card_settings(),
        tuple(figures),
    )
