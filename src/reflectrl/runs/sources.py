"""Checks of a run's models before it makes anything."""

from __future__ import annotations

from reflectrl.core.config import Recipe
from reflectrl.core.envs import make
from reflectrl.core.plugins import installed
from reflectrl.core.prompts.chat import system_prompt
from reflectrl.models.checking import require_usable


def check_models(recipe: Recipe) -> None:
    """Refuse a model that cannot be a player, and models that the checks of installed packages refuse.

    Such a check is a module, announced in the entry points "reflectrl.checks", with two functions of a recipe:
    `require` raises UserError if the run could not succeed, and `note` returns a line for a dry run, or "".

    Raises:
        UserError: describes the problem and a way to solve it.
    """
    for source in recipe.model.sources:
        if source != "scratch":
            rules, labelled = make(recipe.env).instructions, recipe.play.scoring == "enumeration"
            require_usable(source, recipe.model, labelled, system_prompt(rules, "policy", labelled=labelled))
    for check in installed("checks"):
        check.require(recipe)
