"""The processor time of short commands beside another version: here, beside the same one."""

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.start_costs import HERE, Options, main, write_metadata


def test_a_row_holds_both_times_and_their_ratio(capsys: Any) -> None:
    main(Options(str(HERE), 1, ("--version",)))
    heading, row = capsys.readouterr().out.splitlines()
    words = row.split()
    assert heading.split()[0] == "command" and words[0] == "--version"
    here, other, ratio = map(float, words[1:4])
    assert 0 < here < 20 and 0 < other < 20 and 0.02 < ratio < 50  # in turns, on a machine that does other things too


def test_a_command_that_fails_ends_the_measurement(capsys: Any) -> None:
    with pytest.raises(SystemExit, match="list nothing failed: "):
        main(Options(str(HERE), 1, ("list nothing",)))


def test_each_version_gets_the_entry_points_of_its_own_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").mkdir()
    project = '[project]\nname = "reflectrl"\n[project.entry-points."reflectrl.envs"]\nc = "d:E"\n'
    (tmp_path / "source" / "pyproject.toml").write_text(project)
    write_metadata(tmp_path / "source", tmp_path / "info")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "info"), *sys.path])
    points = {point.name: point.value for point in importlib.metadata.entry_points(group="reflectrl.envs")}
    assert points["c"] == "d:E" and "taxi" not in points  # which the installed version announces
