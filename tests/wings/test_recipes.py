"""The recipes that wings bring."""

from pathlib import Path

import reflectrl
from reflectrl.cli.projects import recipes
from reflectrl.config import load_recipe, read_recipe


def test_recipes_of_ours_name_no_foreign_code() -> None:
    shipped = [path for path in recipes().values() if Path(reflectrl.__file__).parent in path.resolve().parents]
    assert shipped and all(load_recipe(path) == read_recipe(path) for path in shipped)
