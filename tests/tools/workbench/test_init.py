"""`init`: a project that works as it is; how its name is understood; what that allows its recipe to run."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.core.config import read_recipe
from reflectrl.core.plugins import resolve
from reflectrl.tools.workbench.check import check_text_env
from reflectrl.tools.workbench.init import class_name

TINY = [
    *("--model.layers", "1", "--model.width", "16", "--model.heads", "2", "--rl.updates", "2", "--rl.episodes", "4"),
    *("--rl.own_wins_steps", "400", "--rl.own_wins_updates", "2"),
    *("--rl.eval_every", "1", "--rl.eval_episodes", "2", "--eval.episodes", "2"),
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in; what was imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")) or name.startswith("parcels"):
            del sys.modules[name]


@pytest.fixture
def project(here: Path) -> Path:
    """A project as `init` makes it."""
    assert main(["init", "parcels"]) == 0
    return here / "parcels"


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line on stderr with which words are refused."""
    capsys.readouterr()
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith("reflectrl: ") and err.count("\n") == 1, err
    return err


class TestInit:
    def test_it_says_what_to_do_next(self, here: Path, capsys: Any) -> None:
        assert main(["init", "parcels"]) == 0
        said = capsys.readouterr().out
        assert all(f"reflectrl {verb} parcels" in said for verb in ("check-env", "run", "play"))
        assert sorted(path.name for path in here.iterdir()) == ["parcels"]

    def test_the_environment_keeps_its_promises_and_is_short(self, project: Path) -> None:
        made = resolve("envs", "parcels:Parcels")
        assert check_text_env(made) == []
        text = (project / "__init__.py").read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 60 and text.count("# EDIT") >= 5
        splits = [{task.id for task in made().tasks(split)} for split in ("train", "validation", "test")]
        assert not splits[2] & (splits[0] | splits[1]) and len(splits[2]) >= 20

    def test_its_own_test_passes(self, project: Path) -> None:
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "parcels"]
        done = subprocess.run(words, cwd=project.parent, text=True, capture_output=True, check=False)
        assert done.returncode == 0 and done.stdout.startswith("... "), done.stdout

    def test_its_own_test_outlives_every_edit(self, project: Path) -> None:
        """Other rooms under another name, other words, a further action, other rewards: all that EDIT invites to."""
        path = project / "__init__.py"
        text = path.read_text(encoding="utf-8")
        for old, new in (
            ("ROOMS", "PLACES"),
            ('"hall", "kitchen"', '"moon", "mars"'),
            ('"take"', '"lift"'),
            ('"drop"', '"put down"'),
            ("You are in the", "Here is the"),
            ("self.parcel", "self.load"),
            ("self.goal", "self.target"),
            ("Outcome(1.0 if", "Outcome(5.0 if"),
            ("Outcome(-0.05)", "Outcome(-0.01)"),
        ):
            assert old in text
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "parcels"]
        done = subprocess.run(words, cwd=project.parent, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout

    def test_names_of_the_template_do_not_remain(self, project: Path) -> None:
        for path in project.iterdir():
            text = path.read_text(encoding="utf-8")
            assert "my_env" not in text and "MyEnv" not in text, path.name

    def test_the_recipe_trains_by_reward_alone(self, project: Path) -> None:
        recipe = read_recipe(project / "recipe.toml")
        assert recipe.arms == ("random", "rl-only") and recipe.env["name"] == "parcels:Parcels"

    @pytest.mark.parametrize(
        ("name", "about"),
        [
            ("my-env", "'my-env' is not a valid package name"),
            ("3d", "is not a valid package name"),
            ("class", "is not a valid package name"),
            ("_hidden", "is not a valid package name"),
            ("../up", "is not a valid package name"),
            ("json", "'json' is the name of an installed module or recipe"),
            ("corridor", "'corridor' is the name of an installed module or recipe"),
            ("task", "would name its class Task"),
            ("text_env", "would name its class TextEnv"),
        ],
    )
    def test_a_name_that_cannot_be_is_refused(self, here: Path, capsys: Any, name: str, about: str) -> None:
        assert about in refused(capsys, "init", name)
        assert not list(here.iterdir())

    def test_nothing_is_overwritten(self, project: Path, capsys: Any) -> None:
        (project / "__init__.py").write_text("mine", encoding="utf-8")
        assert "parcels already exists; nothing was written" in refused(capsys, "init", "parcels")
        assert (project / "__init__.py").read_text(encoding="utf-8") == "mine"
        Path("lone.py").touch()
        assert "lone.py already exists" in refused(capsys, "init", "lone")

    def test_a_folder_that_cannot_be_written(self, here: Path, capsys: Any, monkeypatch: Any) -> None:
        gone = here / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
        assert "later" in refused(capsys, "init", "later")

    @pytest.mark.parametrize(("name", "named"), [("my_env", "MyEnv"), ("x", "X"), ("aBC", "ABC"), ("a__b", "AB")])
    def test_what_the_class_is_called(self, name: str, named: str) -> None:
        assert class_name(name) == named


class TestNamingAProject:
    @pytest.mark.parametrize("word", ["parcels", "parcels/"])
    def test_every_verb_takes_the_folder(self, project: Path, capsys: Any, word: str) -> None:
        assert main(["check-env", word]) == 0
        said = capsys.readouterr().out
        assert "parcels:Parcels: every promise is kept" in said
        assert "actions, by their texts; the longest prompt" in said  # `init` writes a recipe that scores options
        assert main(["play", word, "--player", "random", "--horizon", "3"]) == 0
        assert " after 3 steps" in capsys.readouterr().out
        assert main(["run", word, "--dry-run"]) == 0

    def test_a_misspelt_folder_gets_the_nearest_one(self, project: Path, capsys: Any) -> None:
        assert "unknown environment 'parcel' (did you mean 'parcels'?)" in refused(capsys, "check-env", "parcel")
        assert "unknown recipe 'parcel' (did you mean 'parcels'?)" in refused(capsys, "run", "parcel")

    @pytest.mark.parametrize(("keys", "arm"), [([], "no-reflection"), (["/reflect Fetch it."], "reflect-rl")])
    def test_demonstrations_find_an_arm_that_learns_from_them(
        self, project: Path, capsys: Any, monkeypatch: Any, keys: list[str], arm: str
    ) -> None:
        room, parcel, goal = resolve("envs", "parcels:Parcels")().tasks("train")[0].payload["rooms"]
        typed = [*keys, *([parcel] if parcel != room else []), "take", goal, "drop", "q"]
        monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(typed)))
        assert main(["play", "parcels", "--record", "demos.jsonl"]) == 0
        words = ["run", "parcels", "--teach.by", "log", "--teach.log", "demos.jsonl", "--dry-run"]
        for given, arms, name in (
            ([], ["random", arm], "parcels-shown"),
            (["--arms", "rl-only"], ["rl-only"], "parcels"),
        ):
            capsys.readouterr()
            assert main([*words, *given]) == 0
            shown = capsys.readouterr()
            recipe = tomllib.loads(shown.out)
            assert (recipe["arms"], recipe["name"]) == (arms, name)
            assert "demos.jsonl" in shown.err

    def test_it_runs_without_a_word_of_trust(self, project: Path, command: Callable[..., Any]) -> None:
        done = command("run", "parcels", *TINY)
        assert done.returncode == 0, done.stderr
        assert Path("runs/parcels/report.html").is_file()
        done = command("play", "parcels", "--player", "runs/parcels:rl-only", "--split", "test")
        assert done.returncode == 0 and " steps, return " in done.stdout, done.stderr

    def test_the_same_file_by_its_path_has_to_be_trusted(self, project: Path, capsys: Any) -> None:
        assert "wants to run code: env.name = parcels:Parcels" in refused(capsys, "run", "parcels/recipe.toml")

    @pytest.mark.parametrize(
        ("instead", "about"),
        [
            ('name = "elsewhere:Spy"', "env.name = elsewhere:Spy"),
            ('name = "parcels:Parcels"\nhelper = "elsewhere:Spy"', "env.helper = elsewhere:Spy"),
            ('name = "parcelsx:Spy"', "env.name = parcelsx:Spy"),
        ],
    )
    def test_naming_a_folder_allows_its_own_package_only(
        self, project: Path, capsys: Any, instead: str, about: str
    ) -> None:
        path = project / "recipe.toml"
        text = path.read_text(encoding="utf-8").replace('name = "parcels:Parcels"', instead)
        path.write_text(text, encoding="utf-8")
        Path("elsewhere.py").write_text("open('ran', 'w')\n", encoding="utf-8")
        for verb in ("run", "check-env", "play"):
            assert about in refused(capsys, verb, "parcels")
        assert not Path("ran").exists()

    def test_a_class_of_a_module_within_the_package(self, project: Path, capsys: Any) -> None:
        shutil.move(project / "__init__.py", project / "world.py")
        (project / "__init__.py").touch()
        path = project / "recipe.toml"
        text = path.read_text(encoding="utf-8").replace("parcels:Parcels", "parcels.world:Parcels")
        path.write_text(text, encoding="utf-8")
        assert main(["check-env", "parcels"]) == 0

    def test_what_is_announced_goes_before_a_folder_of_that_name(self, project: Path, capsys: Any) -> None:
        project.rename("corridor")
        assert main(["check-env", "corridor"]) == 0
        assert capsys.readouterr().out.startswith("corridor: ")

    def test_a_folder_without_a_recipe_is_none(self, here: Path, capsys: Any) -> None:
        (here / "bare").mkdir()
        assert "unknown recipe 'bare'" in refused(capsys, "run", "bare")

    def test_a_context_that_is_too_small_is_said(self, project: Path, capsys: Any) -> None:
        path = project / "recipe.toml"
        recipe = tomllib.loads(path.read_text(encoding="utf-8"))
        text = path.read_text(encoding="utf-8").replace(f"context = {recipe['model']['context']}", "context = 40")
        text = text.replace(
            'scoring = "options"', 'scoring = "enumeration"'
        )  # a prompt that lists all actions is longer
        path.write_text(text, encoding="utf-8")
        assert main(["check-env", "parcels"]) == 0
        assert "model.context is 40, which loses history or is too short: raise it to" in capsys.readouterr().out


def test_the_templates_are_in_the_package() -> None:
    names = {path.name for path in files("reflectrl.tools.workbench").joinpath("templates").iterdir()}
    assert names == {
        "environment.py.txt", "gym_environment.py.txt", "record.py.txt", "test.py.txt", "recipe.toml.txt",
        "README.md.txt",
    }  # fmt: skip
