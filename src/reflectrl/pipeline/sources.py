"""The models that a run starts from, looked at before the run makes anything."""

from __future__ import annotations

from reflectrl.config import Recipe
from reflectrl.distributed import launched
from reflectrl.envs.base import TextEnv
from reflectrl.models.checking import require_usable
from reflectrl.models.load import pick_device
from reflectrl.models.memory import free_bytes, require_memory
from reflectrl.plugins import resolve_class
from reflectrl.prompts.chat import system_prompt


def check_models(recipe: Recipe) -> None:
    """Refuse a source that players could not be made of, and a training for which there is too little memory.

    Raises:
        UserError: names the model, or the memory, and what would be right.
    """
    rules = resolve_class("envs", str(recipe.env["name"]), TextEnv).instructions
    for source in recipe.model.sources:
        if source != "scratch":
            labelled = recipe.play.scoring == "enumeration"
            require_usable(source, recipe.model, labelled, system_prompt(rules, "policy"))
    device = pick_device(recipe.model.device)
    pieces = launched()[1] if recipe.model.shard and device.type == "cuda" else 1  # a GPU for each
    require_memory(recipe, free_bytes(device) * pieces)
