"""Several runs: a fork takes over what it can, a sweep makes a grid of them, a comparison puts them side by side."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from reflectrl.cli import main
from reflectrl.core.config import load_recipe
from reflectrl.runs.report.data import read_run
from reflectrl.tools.sweeps.compare import differing
from tests.full_disk import full_disk, walked
from tests.runs.conftest import contents


def times(run: Path) -> list[str]:
    """The artifacts that were made in a run folder."""
    lines = map(json.loads, (run / "timings.jsonl").read_text(encoding="utf-8").splitlines())
    return [f"{line['stage']} {line['artifact']}" for line in lines if "artifact" in line]


class TestFork:
    def test_what_the_changed_recipe_leaves_as_it_is_is_taken_over(
        self, finished: Path, recipe_file: Path, tmp_path: Path
    ) -> None:
        before = contents(finished)
        words = ["run", str(recipe_file), "--folder", str(tmp_path / "new"), "--fork", str(finished), "--rl.lr", "1e-3"]
        assert main(words) == 0
        made = times(tmp_path / "new")
        assert "rl reflect-rl" in made and not [name for name in made if name.startswith(("teach", "sft", "base"))]
        assert contents(finished) == before
        taken = contents(tmp_path / "new", ["episodes/teach-*", "metrics/seed0-policy.jsonl"])
        assert taken == contents(finished, ["episodes/teach-*", "metrics/seed0-policy.jsonl"])

    def test_it_ends_as_a_run_that_took_over_nothing(self, finished: Path, recipe_file: Path, tmp_path: Path) -> None:
        for name, more in (("forked", ["--fork", str(finished)]), ("alone", [])):
            assert main(["run", str(recipe_file), "--folder", str(tmp_path / name), "--rl.lr", "1e-3", *more]) == 0
        assert contents(tmp_path / "forked") == contents(tmp_path / "alone")

    def test_a_fitted_temperature_belongs_to_an_evaluation_and_comes_along(
        self, finished: Path, recipe_file: Path, tmp_path: Path
    ) -> None:
        words = ["run", str(recipe_file), "--arms", "sft", "--eval.temperature", "fitted"]
        fitted, again = tmp_path / "fitted", tmp_path / "again"
        assert main([*words, "--fork", str(finished), "--folder", str(fitted)]) == 0
        assert times(fitted) == ["eval sft"], "the models are the same, their reported probabilities are not"
        assert main([*words, "--fork", str(fitted), "--folder", str(again)]) == 0
        kept = ["calibration/*", "episodes/eval-*"]
        assert contents(again, kept) == contents(fitted, kept) and list(again.glob("calibration/sft-seed0.json"))

    def test_a_fork_into_itself_or_of_no_run_is_refused(
        self, finished: Path, recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for folder, source, line in ((finished, finished, "is the run itself"), (tmp_path, tmp_path, "is not a run")):
            assert main(["run", str(recipe_file), "--folder", str(folder), "--fork", str(source)]) == 2
            assert line in capsys.readouterr().err


class TestSweep:
    def test_every_combination_is_run_and_what_they_share_is_made_once(
        self, recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ["sweep", str(recipe_file), "--folder", str(tmp_path / "sweep")]
        words += ["--rl.lr", "1e-4,1e-3", "--arms", "sft,reflect-rl"]
        assert main(words) == 0
        said = capsys.readouterr().out
        first, second = tmp_path / "sweep/rl.lr=1e-4", tmp_path / "sweep/rl.lr=1e-3"
        assert load_recipe(second / "recipe.toml").rl.lr == 1e-3
        assert "sft policy" in times(first) and "sft policy" not in times(second) and "rl reflect-rl" in times(second)
        splits = {row["split"] for row in json.loads((first / "results.json").read_text())["rows"]}
        assert splits == {"validation"}, "settings are chosen by validation tasks"
        page = (tmp_path / "sweep/sweep.html").read_text(encoding="utf-8")
        assert "rl.lr=1e-3 · reflect-rl" in page and "rl.lr=1e-3 · reflect-rl" in said and "<svg" in page
        assert main(words) == 0  # again: nothing is left to be made
        assert times(second).count("rl reflect-rl") == 1

    def test_a_run_that_fails_does_not_take_the_others_with_it(
        self, recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "sweep").mkdir()
        words = ["--arms", "random", "--eval.batch", "3,4"]
        (tmp_path / "sweep/eval.batch=3").write_text("a file is in the way")
        assert main(["sweep", str(recipe_file), "--folder", str(tmp_path / "sweep"), *words]) == 2
        assert "1 of 2 runs failed: eval.batch=3" in capsys.readouterr().err
        assert (tmp_path / "sweep/eval.batch=4/results.json").is_file()

    @pytest.mark.parametrize(
        ("words", "line"),
        [
            (["--rl.lr", "1e-4"], "no setting has several values"),
            (["--seeds", "0,1"], "no setting has several values"),
            (["--rl.lr", "1e-4,fast"], "rl.lr"),
            (["--rl.rate", "1,2"], "unknown key 'rl.rate'"),
        ],
    )
    def test_mistakes_are_told_before_anything_runs(
        self, recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], line: str
    ) -> None:
        assert main(["sweep", str(recipe_file), "--folder", str(tmp_path / "sweep"), *words]) == 2
        assert line in capsys.readouterr().err and not (tmp_path / "sweep").exists()

    def test_a_dry_run_names_the_folders(
        self, recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ["--rl.lr", "1e-4,1e-3", "--rl.entropy-coef", "0,0.1", "--dry-run"]
        assert main(["sweep", str(recipe_file), "--folder", str(tmp_path / "sweep"), *words]) == 0
        assert len(capsys.readouterr().out.split()) == 4 and not (tmp_path / "sweep").exists()


class TestCompare:
    def test_settings_that_differ_results_and_curves_stand_side_by_side(
        self, finished: Path, recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ["--rl.lr", "1e-3", "--env.test", "4", "--arms", "reflect-rl"]
        assert main(["run", str(recipe_file), "--folder", str(tmp_path / "other"), *words]) == 0
        capsys.readouterr()
        page = tmp_path / "page.html"
        assert main(["compare", str(finished), str(tmp_path / "other"), "--out", str(page)]) == 0
        said, text = capsys.readouterr().out, page.read_text(encoding="utf-8")
        for part in ("rl.lr", "run · reflect-rl", "other · reflect-rl", "not the same tasks: env.test"):
            assert part in said and part in text.replace("Careful: ", "careful: ")
        results = said.partition("paired differences")[0]
        assert "│ random " in results and "run · random" not in results  # what learns nothing stands once
        assert text.count("<svg") > 4 and "src=" not in text

    def test_a_key_that_an_older_version_did_not_know_has_its_default(self, finished: Path, tmp_path: Path) -> None:
        old = tmp_path / "old"
        shutil.copytree(finished, old)
        lines = (old / "recipe.toml").read_text(encoding="utf-8").splitlines()
        (old / "recipe.toml").write_text("\n".join(line for line in lines if "rank_timeout" not in line))
        assert differing([read_run(run).recipe for run in (finished, old)]) == {}

    def test_one_run_or_none_is_refused(
        self, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for runs, line in (([finished], "two runs or more"), ([finished, tmp_path], "is not a run folder")):
            assert main(["compare", *map(str, runs)]) == 2
            assert line in capsys.readouterr().err


def test_a_range_of_seeds_can_be_named(recipe_file: Path) -> None:
    assert load_recipe(recipe_file, ["--seeds", "0..3"]).seeds == (0, 1, 2, 3)
    assert load_recipe(recipe_file, ["--seeds", "7,1..2"]).seeds == (7, 1, 2)


def test_a_full_disk_at_the_page_of_a_comparison_is_one_line_and_leaves_nothing(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = walked(["compare", str(finished), str(finished)], tmp_path, capsys)
    assert set(lines) == {"reflectrl: compare.html cannot be written: File too large\n"}


def test_a_full_disk_at_a_fork_is_one_line_and_leaves_no_part(
    finished: Path, recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", str(recipe_file), "--folder", str(tmp_path / "new"), "--fork", str(finished), "--rl.lr", "1e-3"]
    for after in range(1, 8, 2):
        with full_disk(after):
            assert main(words) == 2
        err = capsys.readouterr().err
        assert err.startswith("reflectrl: ") and err.count("\n") == 1 and "Traceback" not in err
        assert not list((tmp_path / "new").rglob("*.part"))
