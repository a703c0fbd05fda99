"""What `play` shows of a hostile environment steers no terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

from reflectrl.cli import main
from tests.hostile import SHOWN, commands
from tests.test_terminal import AtTerminal, _read


def test_what_play_shows_cannot_steer_the_terminal(world: Path, at_terminal: AtTerminal) -> None:
    code, output = at_terminal("play", "world:World", "--player", "random")
    assert code == 0, output.decode()
    assert not commands(output) and b"\x1b" not in output
    assert output.count(SHOWN.encode()) >= 5  # state, actions, choice, events, ending


def test_what_an_environment_raises_is_shown_as_one_harmless_line(world: Path, capsys: Any) -> None:
    assert main(["play", "world:World", "--player", "random", "--fault", "yes"]) == 2
    err = capsys.readouterr().err
    assert "broken " + SHOWN in err and not commands(err.encode()) and err.count("\n") == 1


def test_a_terminal_that_knows_ascii_only_gets_escapes(world: Path, command: Any) -> None:
    done = command("play", "world:World", "--player", "random", env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert SHOWN + " \\xe9" in done.stdout


def test_a_person_can_play_it(world: Path) -> None:
    """The prompt and the typed line go through a terminal whose output is guarded."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "reflectrl", "play", "world:World"], stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        os.write(ours, b"2\noff\n")
        output = b"".join(iter(lambda: _read(ours), b""))
        os.close(ours)
    assert process.returncode == 0 and not commands(output)
    assert output.count(b"> ") == 2 and b"won after 2 steps" in output


def test_an_address_that_nobody_reads_is_no_player(capsys: Any) -> None:
    assert main(["play", "corridor", "--player", "ftp://127.0.0.1/v1"]) == 2
    assert "no installed package has players at ftp:// addresses" in capsys.readouterr().err
