"""`import-episodes`: everything is read, checked and appended, or nothing is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.core.episodes import read_episodes
from tests.tools.playing.test_foreign import expert_episode


class TestImport:
    @pytest.fixture
    def theirs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Three episodes of another program; the folder is the current one."""
        path = tmp_path / "theirs.jsonl"
        rows = [expert_episode(0, user="me"), expert_episode(1), expert_episode(2)]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        return path

    def test_episodes_are_appended_once(self, theirs: Path, capsys: Any) -> None:
        words = ["import-episodes", str(theirs), "--env", "corridor", "--out", "d.jsonl"]
        assert main(words) == 0
        said = capsys.readouterr().out
        assert "3 of 3 episodes are new (3 won" in said and "not read: user" in said
        assert main(words) == 0
        assert "0 of 3 episodes are new" in capsys.readouterr().out
        assert len(list(read_episodes(Path("d.jsonl")))) == 3

    def test_one_wrong_line_and_nothing_is_written(self, theirs: Path, capsys: Any) -> None:
        theirs.write_text(theirs.read_text(encoding="utf-8") + '{"task": "x"', encoding="utf-8")
        assert main(["import-episodes", str(theirs), "--env", "corridor", "--out", "d.jsonl"]) == 2
        assert f"{theirs}:4: half-written line: not JSON" in capsys.readouterr().err
        assert not Path("d.jsonl").exists()

    @pytest.mark.parametrize(
        ("words", "problem"),
        [
            (["missing.jsonl", "--out", "d.jsonl"], "missing.jsonl: No such file"),
            (["empty.jsonl", "--out", "d.jsonl"], "empty.jsonl holds no episodes"),
            (["theirs.jsonl", "--out", "d.jsonl"], "theirs.jsonl:1: 'task' names no environment"),
            (["theirs.jsonl", "--out", "d.jsonl", "--length", "9"], "unknown option '--length'"),
            (["theirs.jsonl", "--out", "d.jsonl", "--env", "corridor", "--length", "9"], "theirs.jsonl:1: step 1"),
            (["theirs.jsonl", "--out", "notes.txt", "--env", "corridor"], "notes.txt:1: not an episode of a log"),
        ],
    )
    def test_mistakes_are_one_line(self, theirs: Path, capsys: Any, words: list[str], problem: str) -> None:
        Path("empty.jsonl").touch()
        Path("notes.txt").write_text("notes", encoding="utf-8")
        assert main(["import-episodes", *words]) == 2
        err = capsys.readouterr().err
        assert problem in err and err.count("\n") == 1
        assert Path("notes.txt").read_text(encoding="utf-8") == "notes" and not Path("d.jsonl").exists()
