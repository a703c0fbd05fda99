"""Nothing that is shown steers a terminal, or is read as markup: a hostile environment played, and single texts."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.cli import main
from reflectrl.core.terminal import console, printable, printable_line
from reflectrl.runs.progress import ProgressBars
from tests.hostile import NASTY, SHOWN, WORLD, commands

CODER = "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{PERSONAL COMPUTER}"
"""One sign of three characters, of which the second is invisible, and needed."""
RECIPE = """
name = "[red]tiny"
arms = ["random"]
env.name = "world:World"
eval.splits = ["test"]
"""

BUG = """
from reflectrl.cli import main, verbs

def fail(*_):
    raise RuntimeError(chr(27) + "]0;x")

verbs.List.__call__ = fail
main(["list"])
"""

AtTerminal = Callable[..., tuple[int, bytes]]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder, which is the current one, with a hostile environment and a recipe that names it."""
    (tmp_path / "world.py").write_text(WORLD, encoding="utf-8")
    (tmp_path / "tiny.toml").write_text(RECIPE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("world", None)


@pytest.fixture
def at_terminal(tmp_path: Path) -> AtTerminal:
    """`at_terminal("play", ...)`: the exit code, and every byte that reaches the terminal on which a command runs."""

    def run(*words: str) -> tuple[int, bytes]:
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            [sys.executable, "-m", "reflectrl", *words],
            cwd=tmp_path,
            env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "300"},
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        ) as process:
            os.close(theirs)
            output = b"".join(iter(lambda: _read(ours), b""))
            os.close(ours)
        return process.returncode, output

    return run


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


class TestPrintable:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("plain é 字 \N{GRINNING FACE}", "plain é 字 \N{GRINNING FACE}"),
            ("a\tb\nc", "a\tb\nc"),
            ("\x1b[31m\x00\r\x7f", "\\x1b[31m\\x00\\r\\x7f"),
            ("\x9b\x85", "\\x9b\\x85"),
            ("\u202e\u2066\u200f", "\\u202e\\u2066\\u200f"),
            ("\ud800", "\\ud800"),
            ("\U000e0041", "\\U000e0041"),
            (
                "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{PERSONAL COMPUTER}",
                "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{PERSONAL COMPUTER}",
            ),
        ],
    )
    def test_what_a_terminal_obeys_or_hides_is_written_out(self, text: str, shown: str) -> None:
        assert printable(text) == shown

    def test_one_line_stays_one_line(self) -> None:
        assert printable_line("a\n\tb\x1b") == "a\\n\\tb\\x1b"

    @given(st.text(st.characters(exclude_categories=())))
    def test_any_text_can_be_encoded_and_is_made_printable_once(self, text: str) -> None:
        made = printable(text)
        made.encode("utf-8")
        assert printable(made) == made
        assert not {c for c in made if (c < " " and c not in "\t\n") or "\x7f" <= c < "\xa0"}


class TestHostileEnvironment:
    def test_what_run_shows_cannot_steer_the_terminal(self, world: Path, at_terminal: AtTerminal) -> None:
        code, output = at_terminal("run", "tiny.toml", "--trust", "--no-check", "--folder", "x[/y]")
        assert code == 0, output.decode()
        assert not commands(output) and b"\x1b[" in output  # rich's own: it is a terminal
        assert output.count(SHOWN.encode()) >= 4  # task, state, action, event
        assert b"x[/y]/report.html" in output and b"[red]tiny, test tasks" in output

    def test_what_an_environment_raises_is_shown_as_one_harmless_line(self, world: Path, capsys: Any) -> None:
        assert main(["run", "tiny.toml", "--trust", "--no-check", "--env.fault", "yes"]) == 2
        err = capsys.readouterr().err
        assert "broken " + SHOWN in err and not commands(err.encode()) and err.count("\n") == 1


class TestOtherOutput:
    def test_words_of_the_command_line_are_shown_harmlessly(self, capsys: Any) -> None:
        assert main(["run", f"{NASTY}.toml".replace("/", "")]) == 2
        assert main([f"--{NASTY}"]) == 2
        assert not commands(capsys.readouterr().err.encode())

    def test_a_bug_in_a_process_of_its_own_is_shown_harmlessly(self) -> None:
        done = subprocess.run([sys.executable, "-c", BUG], capture_output=True, check=False)
        assert done.returncode == 1 and b"RuntimeError: \\x1b]0;x" in done.stderr and b"\x1b" not in done.stderr

    def test_bars_and_what_is_printed_beside_them(self, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "300")
        with ProgressBars(console(120)) as bars:
            bars.update(f"part {NASTY}", 1, 2, f"note {NASTY}")
            print(f"left out: {NASTY}")
        out = capsys.readouterr().out
        assert "\x1b[" in out and not commands(out.encode())
        assert all(f"{what} {SHOWN}" in out for what in ("part", "note", "left out:"))

    def test_a_narrow_terminal_cuts_notes_only_and_says_so(self, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "80")
        with ProgressBars(console(120)) as bars:
            bars.update("imitate own-wins (seed 0)", 1200, 3000, "won 3%, return -0.13, entropy 1.36")
            bars.update("wins own (seed 0)", 200, 200, "chance wins 0%; 200 wins found in 192,929 steps")
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out).splitlines()
        shown = [line for line in lines if "seed 0" in line][-2:]
        assert all("(seed 0)" in line and len(line.rstrip()) <= 80 for line in shown)
        assert "1200/3000" in shown[0] and "entropy" in shown[0]
        assert "200/200" in shown[1] and shown[1].rstrip().endswith("…")

    def test_lines_where_there_are_no_bars(self, capsys: Any) -> None:
        with ProgressBars(console(120)) as bars:
            bars.update(f"part {NASTY}", 2, 2, f"note {NASTY}")
        assert f"part {SHOWN}: 2/2 note {SHOWN}" in capsys.readouterr().out


def test_text_that_no_file_can_hold_is_refused_by_its_key(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "tiny.toml").touch()
    assert main(["run", str(tmp_path / "tiny.toml"), "--name", "\udcff", "--dry-run"]) == 2
    assert "'name'" in capsys.readouterr().err


def test_a_recipe_is_written_so_that_it_can_be_shown(tmp_path: Path, capsys: Any) -> None:
    from reflectrl.core.config import read_recipe

    path = tmp_path / "tiny.toml"
    path.write_text("", encoding="utf-8")
    assert main(["run", str(path), "--env.text", NASTY, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert not commands(out.encode())
    path.write_text(out, encoding="utf-8")
    assert read_recipe(path).env["text"] == NASTY
