"""The recipes that wings bring."""

import inspect
import re
from pathlib import Path

import pytest

import reflectrl
from reflectrl.cli.projects import recipes
from reflectrl.core.config import load_recipe, read_recipe
from reflectrl.core.plugins import resolve

SHIPPED = {name: path for name, path in recipes().items() if Path(reflectrl.__file__).parent in path.resolve().parents}
SETTING = re.compile(r"--([a-z]+\.[a-z-]+) ([^\s.,:;)]+)")


def advised(path: Path) -> list[str]:
    """The settings that the comments of a recipe name, as options: --key, value, --key, value and so on."""
    comments = re.findall(r"#.*", path.read_text(encoding="utf-8"))
    return [word for key, value in SETTING.findall(" ".join(comments)) for word in (f"--{key}", value)]


def test_recipes_of_ours_name_no_foreign_code() -> None:
    assert SHIPPED and all(load_recipe(path) == read_recipe(path) for path in SHIPPED.values())


@pytest.mark.parametrize("name", [name for name, path in SHIPPED.items() if advised(path)])
def test_what_comments_of_a_recipe_advise_can_be_done(name: str) -> None:
    recipe = read_recipe(SHIPPED[name], advised(SHIPPED[name]))
    if recipe.env:
        env = resolve("envs", str(recipe.env["name"]))
        assert recipe.env.keys() - {"name"} <= inspect.signature(env).parameters.keys()
        assert not recipe.rl.milestone_coef or env.milestones or env.subgoals
