"""`play`: what is shown, what a person may type, and how a mistake is refused."""

import io
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from tests.command_line import refused


@pytest.fixture
def at_the_terminal(lamp: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    """`at_the_terminal(typed, *words)`: what `play` shows while a person types."""

    def play(typed: str, *words: str) -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        assert main(["play", *words]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return str(out)

    return play


class TestPlay:
    def test_the_expert_can_be_watched(self, capsys: Any) -> None:
        assert main(["play", "corridor", "--player", "expert", "--task", "1"]) == 0
        shown = capsys.readouterr().out
        assert "expert: " in shown and "100.0%" in shown and "\nwon after" in shown

    def test_the_same_seed_plays_the_same_episode(self, capsys: Any) -> None:
        words = ["play", "corridor", "--player", "random", "--slippery", "true"]
        shown = []
        for seed in ("1", "1", "2"):
            assert main([*words, "--seed", seed]) == 0
            shown.append(capsys.readouterr().out)
        assert shown[0] == shown[1] != shown[2]

    @pytest.mark.parametrize("fault", ["__init__", "reset", "step"])
    def test_an_environment_that_raises_is_named_with_its_exception(self, lamp: Path, capsys: Any, fault: str) -> None:
        line = refused(capsys, "play", "my_lamp:Lamp", "--player", "random", "--fault", fault)
        assert "Lamp" in line and f"RuntimeError: broken in {fault}" in line

    def test_an_environment_without_an_expert_says_so(self, lamp: Path, capsys: Any) -> None:
        assert refused(capsys, "play", "my_lamp:Lamp", "--player", "expert") == "reflectrl: Lamp has no expert\n"

    @pytest.mark.parametrize("typed", ["2\n", "on\n", "o\n", "O\n", "7\nx\n\n2\n"])
    def test_a_person_chooses_by_number_or_beginning(self, at_the_terminal: Any, typed: str) -> None:
        assert "won after 1 steps, return +1.00" in at_the_terminal(typed, "my_lamp:Lamp")

    @pytest.mark.parametrize("typed", ["q\n", "", "1\nq\n"])
    def test_a_person_may_stop(self, at_the_terminal: Any, typed: str) -> None:
        assert at_the_terminal(typed, "my_lamp:Lamp").endswith("stopped\n")

    def test_a_person_may_hand_over_to_the_expert(self, at_the_terminal: Any) -> None:
        shown = at_the_terminal("h\n", "corridor")
        assert "expert: " in shown and "won after" in shown

    def test_where_nobody_can_take_over_it_says_so(self, at_the_terminal: Any) -> None:
        assert "nobody to hand over to" in at_the_terminal("h\non\n", "my_lamp:Lamp")

    def test_advice_is_shown_to_who_takes_over(self, at_the_terminal: Any) -> None:
        shown = at_the_terminal("q\n", "corridor", "--player", "expert", "--take-over")
        assert "100.0%" in shown and "expert: " not in shown

    def test_text_of_an_environment_cannot_steer_the_terminal(self, at_the_terminal: Any) -> None:
        shown = at_the_terminal("q\n", "my_lamp:Lamp")
        assert "The lamp is off." in shown and "\x1b" not in shown


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        ([], ["run", "play", "--help"]),
        (["play", "coridor"], ["'coridor'", "'corridor'"]),
        (["play", "corridor", "--task", "one"], ["--task", "one"]),
        (["play", "corridor", "--task", "40"], ["40", "0 to 39"]),
        (["play", "corridor", "--split", "tran"], ["'tran'", "'train'"]),
        (["play", "corridor", "--player", "exprt"], ["'exprt'", "'expert'"]),
        (["play", "corridor", "--player", "absent:sft"], ["'absent:sft'"]),
        (["play", "corridor", "--plyer", "expert"], ["'plyer'", "--player"]),
    ],
)
def test_one_line_names_what_is_wrong_and_what_would_be_right(
    capsys: Any, words: list[str], fragments: list[str]
) -> None:
    line = refused(capsys, *words)
    assert all(fragment in line for fragment in fragments), line


def test_help_goes_to_stdout(capsys: Any) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["play", "-h"])
    out, err = capsys.readouterr()
    assert (stop.value.code, err) == (0, "")
    assert out.startswith("usage: reflectrl")


def test_watching_opens_no_socket(command: Any, witnessed: dict[str, str]) -> None:
    done = command("play", "corridor", "--player", "expert", env=witnessed)
    assert done.returncode == 0, done.stderr
    assert not Path(witnessed["SOCKET_LOG"]).exists()


def test_ctrl_c_is_one_line(plugin: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "reflectrl", "play", "my_lamp:Lamp"],
        cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        while ">" not in (shown := process.stdout.read(1)) and shown:
            pass
        time.sleep(0.5)  # a signal between the prompt and the read is noticed only with the next key
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "reflectrl: interrupted; run the same command again to continue\n"
        assert process.wait(20) == 130
