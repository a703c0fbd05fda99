"""Recipes: the settings of a run as dataclasses, read from TOML, overridden by dotted keys, validated by name.

The resolved recipe is written into the run folder. Reading it back gives an equal recipe.
"""

from reflectrl.core.config.files import load_recipe, parse_overrides, read_recipe, to_toml
from reflectrl.core.config.learning import RLConfig, SFTConfig, TeachConfig
from reflectrl.core.config.recipe import EvalConfig, ModelConfig, PlayConfig, Recipe
from reflectrl.core.config.values import FreeSection, Word, checked, convert, from_dict

__all__ = [
    "EvalConfig",
    "FreeSection",
    "ModelConfig",
    "PlayConfig",
    "RLConfig",
    "Recipe",
    "SFTConfig",
    "TeachConfig",
    "Word",
    "checked",
    "convert",
    "from_dict",
    "load_recipe",
    "parse_overrides",
    "read_recipe",
    "to_toml",
]
