"""From a name to an object, and what is said when there is none."""

import pytest
from corridor import CorridorEnv

from reflectrl.core.plugins import names, resolve, suggestion
from reflectrl.core.types import UserError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_announced_names_and_module_paths_resolve_to_the_same_class():
    assert resolve("envs", "corridor") is resolve("envs", "corridor:CorridorEnv") is CorridorEnv


def test_an_announced_environment_can_be_loaded():
    assert "corridor" in names("envs")
    assert resolve("envs", "corridor")().tasks("train")


def test_an_unknown_name_is_answered_with_the_nearest_one():
    with pytest.raises(UserError, match=r"unknown env 'coridor' \(did you mean 'corridor'\?\)"):
        resolve("envs", "coridor")


def test_a_name_that_is_near_to_none_is_answered_with_all():
    with pytest.raises(UserError, match=r"unknown env 'quux' \(known: (.*, )?corridor") as caught:
        resolve("envs", "quux")
    assert all(name in str(caught.value) for name in names("envs"))
    assert suggestion("x", []) == ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise RuntimeError('no licence\\nfor this machine')", "RuntimeError: no licence for this machine"),
        ("import a_module_that_is_not_there", "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
        ("def (:", "SyntaxError"),
        ("Other = int", "plug_in_.* has no 'Mine'"),
        ("class Mime: pass", r"plug_in_.* has no 'Mine' \(did you mean 'Mime'\?\)"),
    ],
)
def test_a_plug_in_that_cannot_be_loaded_is_one_line_with_its_reason(folder, text, reason):
    module = f"plug_in_{abs(hash(text))}"
    (folder / f"{module}.py").write_text(text)
    with pytest.raises(UserError, match=f"env plug-in '{module}:Mine' cannot be loaded: {reason}") as caught:
        resolve("envs", f"{module}:Mine")
    assert "\n" not in str(caught.value)


def test_a_missing_module_is_named():
    with pytest.raises(UserError, match=r"'nowhere.at.all:Mine' cannot be loaded: ModuleNotFoundError"):
        resolve("envs", "nowhere.at.all:Mine")


@pytest.mark.parametrize("target", ["worlds.py:Mine", "./worlds:Mine"])
def test_a_path_is_no_module(target):
    with pytest.raises(UserError, match="a module is named by dots, without .py: package.module:Class"):
        resolve("envs", target)


def test_a_nested_attribute_of_a_module_in_the_folder_is_found(folder):
    (folder / "own_worlds.py").write_text("class Worlds:\n    class Mine:\n        pass\n")
    assert resolve("envs", "own_worlds:Worlds.Mine").__qualname__ == "Worlds.Mine"


def test_an_installed_package_may_announce_an_environment(folder):
    (folder / "announced_world.py").write_text("class Mine:\n    pass\n")
    info = folder / "announced-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: announced\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[reflectrl.envs]\nmine = announced_world:Mine\n")
    assert "mine" in names("envs")
    assert resolve("envs", "mine").__name__ == "Mine"
