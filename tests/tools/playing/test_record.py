"""`play --record`: what a person types, what it shows, and what is in the file afterwards."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.core.envs import make
from reflectrl.core.episodes import as_foreign, read_episodes
from reflectrl.core.teach import Recorder, replayed, tasks_of
from reflectrl.core.types import Episode, Task

Typed = Callable[..., str]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Typed:
    """`typed("left", "q")`: what is shown while a person types these lines and records."""

    def play(*lines: str, words: tuple[str, ...] = ()) -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        assert main(["play", "corridor", "--record", "d.jsonl", *words]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return str(out)

    return play


def expert(number: int) -> list[str]:
    """The lines that win a task of the corridor."""
    env, lines = make({"name": "corridor"}), []
    env.reset(options={"task": env.tasks("train")[number]})
    while not env.done:
        action = env.teacher.expert_action(env)
        lines.append(env.legal_actions()[action])
        env.step(action)
    return lines


def recorded() -> list[Episode]:
    return list(read_episodes(Path("d.jsonl")))


def test_task_after_task_until_the_person_quits(typed: Typed) -> None:
    shown = typed(*expert(0), "", *expert(1), "", "q")
    assert shown.count("won after") == 2 and shown.endswith("stopped\nd.jsonl holds 2 episodes\n")
    assert [episode.task.payload["map"] for episode in recorded()] == [0, 1]
    assert all(step.label == "positive" for episode in recorded() for step in episode.steps)


def test_called_again_it_goes_on_with_the_next_task(typed: Typed) -> None:
    typed(*expert(0), "", "q")
    shown = typed(*expert(1), "q")
    assert "d.jsonl: 1 task recorded already; going on with corridor-full-1" in shown
    assert [episode.task.payload["map"] for episode in recorded()] == [0, 1]


def test_every_episode_can_be_played_again_whatever_was_undone(typed: Typed) -> None:
    words = ("--slippery", "true", "--horizon", "30")
    typed("left", "/undo", "h random 3", "/undo 2", "h expert", "", "h 2", "/u", "h", "q", words=words)
    env = make({"name": "corridor", "slippery": True, "horizon": 30})
    episodes = recorded()
    assert len(episodes) == 2
    assert [replayed(env, as_foreign(episode), tasks_of(env)) for episode in episodes] == episodes


def test_a_lost_step_can_be_taken_back(typed: Typed) -> None:
    shown = typed("open", "/undo", *expert(0), "", "q")
    assert "not won. Enter keeps this episode" in shown
    [episode] = recorded()
    assert episode.success and len(episode.steps) == len(expert(0))
    assert episode.provenance["undone"] == [{"step": 0, "action": "open"}]


def test_reflections_comments_and_mistakes(typed: Typed) -> None:
    first, *rest = expert(0)
    back = {"left": "right", "right": "left"}[first]
    typed("/r The key comes next.", first, "/c hm", back, "/mistake", "/r Back again.", first, *rest, "", "q")
    [episode] = recorded()
    assert [step.reflection for step in episode.steps[:4]] == ["The key comes next.", None, "Back again.", None]
    assert [step.label for step in episode.steps[:4]] == ["positive", None, "negative", "positive"]
    assert episode.provenance["comments"] == [{"step": 1, "text": "hm"}]


def test_who_took_over_is_known_and_gives_back(typed: Typed) -> None:
    lines = expert(0)
    typed("h random 1", "/undo", "h expert 2", *lines[2:], "", "q")
    assert [step.choice.player for step in recorded()[0].steps if step.choice] == ["expert"] * 2 + ["human"] * (
        len(lines) - 2
    )


def test_a_dropped_episode_is_not_recorded(typed: Typed) -> None:
    typed("/drop", *expert(1), "/drop", *expert(2), "", "q")
    assert [episode.task.payload["map"] for episode in recorded()] == [2]


def test_quitting_at_the_end_keeps_the_episode_and_in_its_midst_forgets_it(typed: Typed) -> None:
    typed(*expert(0), "q")
    typed("left")
    assert len(recorded()) == 1


def test_so_many_episodes_and_no_more(typed: Typed) -> None:
    assert "d.jsonl holds 1 episode\n" in typed(*expert(0), "", words=("--episodes", "1"))


def test_that_test_tasks_teach_nothing_is_said_before_they_are_played(typed: Typed) -> None:
    assert "nothing will be taught by these" in typed("q", words=("--split", "test"))
    assert "nothing will be taught" not in typed("q")


def test_help_names_every_command_and_helper(typed: Typed) -> None:
    shown = typed("/help", "q")
    assert all(word in shown for word in ("/undo", "/reflect", "/mistake", "/comment", "/drop", "expert", "random"))


def test_a_player_is_recorded_with_its_analysts_words(typed: Typed) -> None:
    typed(words=("--player", "expert", "--episodes", "3"))
    episodes = recorded()
    assert [episode.task.payload["map"] for episode in episodes] == [0, 1, 2]
    assert all(step.reflection for episode in episodes for step in episode.steps)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["corridor", "--record", "notes.txt"], "notes.txt:1: not an episode of a log"),
        (["corridor", "--record", "absent/d.jsonl"], "absent/d.jsonl: No such file"),
        (["corridor", "--record", "d.jsonl", "--train", "1"], "has an episode of each of the 1 tasks already"),
        (["corridor", "--record", "d.jsonl", "--episodes", "0"], "--episodes must be at least 1"),
        (["corridor", "--record", "lamp.jsonl"], "lamp.jsonl holds episodes of 'lamp', not of 'corridor'"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_and_lose_nothing(typed: Typed, capsys: Any, words: list[str], problem: str) -> None:
    Path("notes.txt").write_text("notes", encoding="utf-8")
    with Recorder("lamp.jsonl") as recorder:
        recorder.append(Episode(Task("one", "lamp"), (), True, False, 0))
    typed(*expert(0), "q")
    before = Path("d.jsonl").read_bytes()
    assert main(["play", *words]) == 2
    err = capsys.readouterr().err
    assert problem in err and err.count("\n") == 1
    assert Path("d.jsonl").read_bytes() == before and Path("notes.txt").read_text(encoding="utf-8") == "notes"


def test_one_recorder_at_a_time(tmp_path: Path, capsys: Any) -> None:
    """A person records, and meanwhile a program into the same file: each task is there once."""
    words = [sys.executable, "-m", "reflectrl", "play", "corridor", "--record", "d.jsonl"]
    with subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdin is not None and first.stdout is not None
        assert "type a number" in first.stdout.readline()  # it has opened the log
        assert main(["play", "corridor", "--record", "d.jsonl", "--player", "expert"]) == 2
        err = capsys.readouterr().err
        assert (
            err.startswith("reflectrl: another recorder is at work on d.jsonl; wait until it ends")
            and err.count("\n") == 1
        )
        first.communicate("".join(f"{line}\n" for line in [*expert(0), "", "q"]))
    assert first.returncode == 0
    assert main(["play", "corridor", "--record", "d.jsonl", "--player", "expert"]) == 0
    assert [episode.task.payload["map"] for episode in recorded()] == [0, 1]


def test_ctrl_c_loses_no_finished_episode(tmp_path: Path) -> None:
    """At a real terminal: one episode is over, the next is begun."""
    ours, theirs = pty.openpty()
    words = ["play", "corridor", "--record", "d.jsonl"]
    with subprocess.Popen(
        [sys.executable, "-m", "reflectrl", *words], cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE
    ) as process:
        os.close(theirs)
        os.write(ours, "".join(f"{line}\n" for line in [*expert(0), "", "/help"]).encode())
        shown = b""
        while b"/help: this" not in shown:
            shown += os.read(ours, 65536)
        time.sleep(0.5)  # a signal between the prompt and the read is noticed only with the next key
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        # After prompts.
        assert process.stderr.read().endswith(b"reflectrl: interrupted; run the same command again to continue\n")
        assert process.wait(20) == 130
        os.close(ours)
    assert [episode.success for episode in recorded()] == [True]
