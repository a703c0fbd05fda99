"""`check-env` on the command line: what it says, and the one line with which it refuses."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import PLUGIN, refused
from tests.hostile import CODE


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (["check-env", "corridor", "--slipery", "true"], ["'slipery'", "'slippery'"]),
        (["check-env", "corridor", "--slippery", "perhaps"], ["'slippery'", "true or false"]),
        (["check-env", "corridor", "--length", "1.5"], ["'length'", "whole number"]),
        (["check-env", "corridor", "--impossible", "gone"], ["'impossible'", "hidden"]),
        (["check-env", "no_such_module:Env"], ["no_such_module"]),
        (["check-env", "json:JSONDecoder"], ["TextEnv", "JSONDecoder"]),
        (["check-env", "json:__name__"], ["json:__name__"]),
    ],
)
def test_one_line_names_what_is_wrong_and_what_would_be_right(
    capsys: Any, words: list[str], fragments: list[str]
) -> None:
    line = refused(capsys, *words)
    assert all(fragment in line for fragment in fragments), line


class TestPlugins:
    def test_one_in_the_current_folder_is_found(self, plugin: Path, command: Any) -> None:
        done = command("check-env", "my_lamp:Lamp", "--size", "2")
        assert (done.returncode, done.stderr) == (0, "")
        assert "my_lamp:Lamp: every promise is kept" in done.stdout

    @pytest.mark.parametrize("fault", ["__init__", "reset", "step"])
    def test_one_that_raises_is_named_with_its_exception(self, lamp: Path, capsys: Any, fault: str) -> None:
        line = refused(capsys, "check-env", "my_lamp:Lamp", "--fault", fault)
        assert "Lamp" in line and f"RuntimeError: broken in {fault}" in line

    def test_a_broken_promise_is_named(self, lamp: Path, capsys: Any) -> None:
        lamp.write_text(PLUGIN.replace('["wait", "on"]', '["on", "on"]'), encoding="utf-8")
        line = refused(capsys, "check-env", "my_lamp:Lamp")
        assert "'my_lamp:Lamp' breaks a promise" in line and "unique" in line

    def test_a_start_that_differs_between_processes_is_named(self, lamp: Path, capsys: Any, monkeypatch: Any) -> None:
        monkeypatch.chdir(lamp.parent)
        code = PLUGIN.replace(
            "    def state(self)",
            "    def history(self):\n        return f\"{hash('lamp')}\\n\"\n\n    def state(self)",
        )
        lamp.write_text(code, encoding="utf-8")
        line = refused(capsys, "check-env", "my_lamp:Lamp")
        assert "breaks a promise: tasks begin in the same way in every process" in line

    def test_what_is_no_environment_is_not_called(self, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
        (tmp_path / "stranger.py").write_text(CODE, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "stranger", raising=False)
        assert "must be a class derived from TextEnv" in refused(capsys, "check-env", "stranger:called")
        assert not Path("called").exists()


def test_it_opens_no_socket(command: Any, witnessed: dict[str, str]) -> None:
    done = command("check-env", "corridor", env=witnessed)
    assert done.returncode == 0, done.stderr
    assert not Path(witnessed["SOCKET_LOG"]).exists()
