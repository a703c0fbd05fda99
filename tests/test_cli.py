"""The command line: what it answers, and the one line and exit code with which it refuses."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import reflectrl
from reflectrl.cli import main
from reflectrl.core.config import Recipe, from_dict
from reflectrl.core.config.reference import FIRST, TRADES, keys, reference
from tests.command_line import refused


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small recipe, alone in the current folder's recipes/."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recipes" / "tiny.toml"
    path.parent.mkdir()
    path.write_text("# A tiny recipe.\n[rl]\nupdates = 3\n", encoding="utf-8")
    return path


class TestDryRun:
    def test_prints_the_resolved_recipe_as_toml_and_writes_nothing(self, recipe: Path, capsys: Any) -> None:
        assert main(["run", "tiny", "--dry-run", "--rl.lr", "1e-4", "--rl.normalise", "false"]) == 0
        resolved = from_dict(Recipe, tomllib.loads(capsys.readouterr().out), where="stdout")
        assert (resolved.name, resolved.rl.updates, resolved.rl.lr) == ("tiny", 3, 1e-4)
        assert resolved.rl.normalise is False
        assert [path.name for path in recipe.parents[1].iterdir()] == ["recipes"]

    @pytest.mark.parametrize("verb", ["run", "teach", "sft", "rl", "eval", "report"])
    def test_every_stage_takes_the_same_words(self, recipe: Path, capsys: Any, verb: str) -> None:
        assert main([verb, "--rl.gate", "0.5", "tiny", "--folder", "x", "--env.gap=-1", "--dry-run"]) == 0
        resolved = tomllib.loads(capsys.readouterr().out)
        assert (resolved["rl"]["gate"], resolved["env"]["gap"]) == (0.5, -1)

    def test_a_path_is_a_recipe_too(self, recipe: Path, capsys: Any) -> None:
        assert main(["run", str(recipe), "--dry-run"]) == 0
        assert 'name = "tiny"' in capsys.readouterr().out

    def test_it_needs_neither_torch_nor_the_environments(self, recipe: Path) -> None:
        code = (
            "import sys; from reflectrl.cli import main; main(['run', 'tiny', '--dry-run']);"
            "main(['list', 'envs']); main(['list', 'recipes']); main(['list', 'keys']);"
            "heavy = {'torch', 'transformers', 'numpy', 'gymnasium', 'matplotlib', 'scipy'} & set(sys.modules);"
            "sys.exit(' '.join(sorted(heavy)) or 0)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


class TestRefusals:
    @pytest.mark.parametrize(
        ("words", "fragments"),
        [
            ([], ["run", "list", "--help"]),
            (["rnu"], ["'rnu'", "'run'"]),
            (["--versoin"], ["'--versoin'", "'--version'"]),
            (["run"], ["RECIPE"]),
            (["run", "tinny"], ["'tinny'", "'tiny'"]),
            (["run", ""], ["unknown recipe ''"]),
            (["run", "absent/x.toml"], ["absent/x.toml", "No such file"]),
            (["run", "recipes"], ["unknown recipe 'recipes'"]),
            (["run", "tiny", "more"], ["more"]),
            (["run", "tiny", "--dry-rn"], ["'--dry-rn'", "'--dry-run'"]),
            (["run", "tiny", "--dryrun", "--rl.lr", "1"], ["'--dryrun'", "'--dry-run'"]),
            (["run", "tiny", "--foldr", "x"], ["'--foldr'", "'--folder'"]),
            (["run", "tiny", "--folder"], ["--folder"]),
            (["run", "tiny", "--zzz", "1"], ["'--zzz'", "reflectrl list keys"]),
            (["run", "tiny", "--lr", "1"], ["'--lr'", "--rl.lr", "--sft.lr"]),
            (["run", "tiny", "--rl.lrr", "1"], ["'rl.lrr'", "'lr'"]),
            (["run", "tiny", "--rl.lr"], ["--rl.lr needs a value"]),
            (["run", "tiny", "--rl.lr", "fast"], ["the command line", "'rl.lr'", "a number", "'fast'"]),
            (["run", "tiny", "--rl.temperature", "-1"], ["'rl.temperature'", "above 0"]),
            (["run", "tiny", "--rl.algorithm", "pop"], ["'rl.algorithm'", "ppo"]),
            (["run", "tiny", "--arms", "wrong", "--dry-run"], ["unknown arm 'wrong'"]),
            (["run", "tiny", "--engine", "steam", "--dry-run"], ["unknown engine 'steam'", "local"]),
            (["run", "tiny", "--env.name", "corridr", "--dry-run"], ["'corridr'", "did you mean 'corridor'"]),
            (["run", "tiny", "--env.name", "corridor", "--env.lenght", "5", "--dry-run"], ["'lenght'", "'length'"]),
            (["run", "tiny", "--env.name", "corridor", "--env.length", "long", "--dry-run"], ["a whole number"]),
            (["list", "env"], ["env", "envs"]),
            (["list", "--all"], ["'--all'"]),
        ],
    )
    def test_one_line_names_what_is_wrong_and_what_would_be_right(
        self, recipe: Path, capsys: Any, words: list[str], fragments: list[str]
    ) -> None:
        line = refused(capsys, *words)
        assert all(fragment in line for fragment in fragments), line

    @pytest.mark.parametrize("words", [["--rl.lrr", "1"], ["--rl.lr", "fast"], ["--rl.algorithm", "pop"]])
    def test_what_was_typed_is_not_blamed_on_the_file(self, recipe: Path, capsys: Any, words: list[str]) -> None:
        line = refused(capsys, "run", "tiny", *words, "--dry-run")
        assert line.startswith("reflectrl: the command line: ") and "tiny.toml" not in line

    def test_what_is_wrong_in_the_file_is_blamed_on_it(self, recipe: Path, capsys: Any) -> None:
        recipe.write_text("[rl]\nupdates = 'many'\n", encoding="utf-8")
        assert "tiny.toml: 'rl.updates'" in refused(capsys, "run", "tiny", "--rl.lr", "1", "--dry-run")

    def test_a_dry_run_prints_nothing_before_its_error(self, recipe: Path, capsys: Any) -> None:
        assert main(["run", "tiny", "--arms", "wrong", "--dry-run"]) == 2
        assert capsys.readouterr().out == ""

    def test_a_dry_run_looks_at_no_code_that_is_not_trusted(self, recipe: Path, plugin: Path, capsys: Any) -> None:
        recipe.write_text("env.name = 'my_lamp:Lamp'\nenv.colour = 'red'\n", encoding="utf-8")
        traced = "import pathlib\npathlib.Path('ran').touch()\n"
        plugin.write_text(traced + plugin.read_text(encoding="utf-8"), encoding="utf-8")
        assert main(["run", "tiny", "--dry-run"]) == 0
        assert "Not checked: " in capsys.readouterr().out and not Path("ran").exists()
        assert "takes no 'colour'" in refused(capsys, "run", "tiny", "--trust", "--dry-run")

    def test_a_run_folder_in_place_of_a_recipe_is_told_how_to_go_on(self, recipe: Path, capsys: Any) -> None:
        for name in ("recipe.toml", "state.json"):
            Path("made").mkdir(exist_ok=True)
            (Path("made") / name).write_text("", encoding="utf-8")
        assert "made/recipe.toml, and --folder made" in refused(capsys, "report", "made")

    def test_a_file_that_is_no_toml(self, recipe: Path, capsys: Any) -> None:
        recipe.write_text("updates = = 3", encoding="utf-8")
        assert "tiny.toml" in refused(capsys, "run", "tiny")

    def test_a_run_folder_that_cannot_be_written(self, recipe: Path, capsys: Any) -> None:
        Path("taken").write_text("a file", encoding="utf-8")
        assert "run folder taken" in refused(capsys, "run", "tiny", "--folder", "taken")
        assert "run folder taken/below" in refused(capsys, "run", "tiny", "--folder", "taken/below")

    def test_what_the_pipeline_refuses_leaves_no_folder(self, recipe: Path, command: Any) -> None:
        done = command("run", "tiny", "--arms=random,sfft")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "'sfft'" in done.stderr and "'sft'" in done.stderr
        assert not Path("runs/tiny").exists()

    def test_a_mistake_in_a_process_of_its_own(self, recipe: Path, command: Any) -> None:
        done = command("run", "tiny", "--rl.lr", "fast")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert "Traceback" not in done.stderr


class TestList:
    def test_envs(self, capsys: Any) -> None:
        assert main(["list", "envs"]) == 0
        assert {"corridor"} <= set(capsys.readouterr().out.split())

    def test_recipes_with_their_first_comment(self, recipe: Path, capsys: Any) -> None:
        assert main(["list", "recipes"]) == 0
        assert "A tiny recipe." in next(line for line in capsys.readouterr().out.splitlines() if "tiny" in line)

    def test_keys(self, capsys: Any) -> None:
        assert main(["list", "keys"]) == 0
        shown = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
        assert sorted(shown) == sorted(key.dotted for key in keys()) and len(set(shown)) == len(shown)
        assert shown[: len(TRADES)] == list(TRADES)

    def test_help_of_a_run_and_the_reference_have_the_same_order(self, capsys: Any) -> None:
        assert main(["list", "keys"]) == 0
        listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
        with pytest.raises(SystemExit):
            main(["run", "--help"])
        _, _, shown = capsys.readouterr().out.partition(FIRST)
        dotted = set(listed)
        assert [word for word in re.findall(r"[a-z][\w.]*", shown) if word in dotted and "." in word] == [
            key for key in listed if "." in key
        ]
        page = reference()
        assert page.index(FIRST) < page.index("## At the top")
        places = [page.index(f"| `{key}` |") for key in TRADES]
        assert places == sorted(places) and places[-1] < page.index("## At the top")


def test_version(capsys: Any) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"reflectrl {reflectrl.__version__}\n"


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["list", "-h"]])
def test_help_goes_to_stdout(words: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    out, err = capsys.readouterr()
    assert (stop.value.code, err) == (0, "")
    assert out.startswith("usage: reflectrl")


def test_a_reader_that_leaves_early_hears_nothing_more(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "reflectrl", "list", "keys"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(20) == 141


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, recipe: Path) -> None:
    """A recipe's file vanishes between looking and reading only by a bug or a race: nothing is hidden."""
    monkeypatch.setattr("reflectrl.cli.run.to_toml", lambda recipe: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["run", "tiny", "--dry-run"])
