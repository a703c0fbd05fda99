"""Real processes, killed and interrupted at many moments: the same command goes on to the same results."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from reflectrl import runs as pipeline

Said = Callable[[Path], dict[str, str]]

SERVER = """
import json, os, sys
import reflectrl.runs.runner  # what is slow to import is imported once
from reflectrl.cli import main

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1), os.dup2(log, 2)
        code = main(json.loads(line))
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

MOMENTS = [
    ("episodes/teach-seed0-train.jsonl", signal.SIGKILL),
    ("checkpoints/seed0/base.writing", signal.SIGINT),
    ("checkpoints/seed0/reflector.learner", signal.SIGINT),
    ("checkpoints/seed0/reflector.learner.writing", signal.SIGKILL),
    ("checkpoints/seed0/reflector", signal.SIGKILL),
    ("checkpoints/seed0/policy.writing", signal.SIGKILL),
    ("metrics/seed0-rl-reflect-rl.jsonl", signal.SIGKILL),
    ("checkpoints/seed0/rl-reflect-rl.learner", signal.SIGINT),
    ("checkpoints/seed0/rl-reflect-rl.learner.old", signal.SIGKILL),
    ("episodes/eval-sft-seed0-train-full-greedy.jsonl", signal.SIGKILL),
    ("episodes/eval-reflect-rl-seed0-test-full-sampled.jsonl", signal.SIGINT),
    ("results.json", signal.SIGKILL),
]
"""A file or folder of the run, and what happens to the process as soon as it is there."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that runs each command that it is sent in a fork of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def wait_for(condition: Callable[[], bool], alive: Callable[[], bool] = lambda: True, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition() and alive() and time.monotonic() < end:
        time.sleep(0.0005)


def run_until(server: Any, words: list[str], there: Path | None, how: signal.Signals) -> int:
    """Run a command, and stop it as soon as a file is there; returns its exit code."""
    server.stdin.write(json.dumps(words) + "\n")
    server.stdin.flush()
    child = int(server.stdout.readline())
    if there is not None:
        # A process that has ended stays a zombie only until the server has seen it, so its log says no more then.
        wait_for(there.exists, alive=lambda: Path(f"/proc/{child}").exists())
        if Path(f"/proc/{child}").exists():
            os.kill(child, how)
    return int(server.stdout.readline())


def test_killed_at_any_moment_it_ends_with_the_same_bytes(
    server: Any, tmp_path: Path, recipe_file: Path, finished: Path, said: Said
) -> None:
    words = ["eval", str(recipe_file), "--folder", str(tmp_path / "run")]
    codes = []
    for name, how in MOMENTS:
        there = tmp_path / "run" / name
        if not there.exists():
            codes.append(run_until(server, words, there, how))
            assert codes[-1] in (0, -signal.SIGKILL, 130), (tmp_path / "log").read_text()
    assert codes.count(-signal.SIGKILL) >= 4 and codes.count(130) >= 2, codes
    assert run_until(server, words, None, signal.SIGKILL) == 0
    assert said(tmp_path / "run") == said(finished)
    heard = (tmp_path / "log").read_text()
    assert "Traceback" not in heard and heard.count("reflectrl: interrupted; the same command goes on") == codes.count(
        130
    )
    left = {path.name for path in (tmp_path / "run/checkpoints/seed0").iterdir()}
    assert left == {"base", "reflector", "policy", "rl-reflect-rl"}


@pytest.mark.parametrize("moment", ["reflector.learner", "rl-reflect-rl.learner"])
def test_a_copy_of_a_working_run_with_checkpoints_first_goes_on_elsewhere(
    server: Any, tmp_path: Path, recipe_file: Path, finished: Path, said: Said, moment: str
) -> None:
    words, here, there = ["eval", str(recipe_file), "--folder"], tmp_path / "here", tmp_path / "there"
    server.stdin.write(json.dumps([*words, str(here)]) + "\n")
    server.stdin.flush()
    child = int(server.stdout.readline())
    wait_for((here / "checkpoints" / "seed0" / moment).exists, seconds=300)
    for part in ("checkpoints", "."):
        with suppress(shutil.Error):  # files that were replaced meanwhile; all others are copied
            shutil.copytree(here / part, there / part, dirs_exist_ok=True)
    os.kill(child, signal.SIGKILL)
    server.stdout.readline()
    assert run_until(server, [*words, str(there)], None, signal.SIGKILL) == 0, (tmp_path / "log").read_text()
    assert said(there) == said(finished)


@pytest.fixture
def start(tmp_path: Path, recipe_file: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `reflectrl eval` with two processes in a process group of its own, as a terminal does."""
    started: list[subprocess.Popen[str]] = []

    def command(*words: str) -> subprocess.Popen[str]:
        whole = [sys.executable, "-m", "reflectrl", "eval", str(recipe_file), "--processes", "2", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        whole += ["--folder", "run"]
        started.append(subprocess.Popen(whole, cwd=tmp_path, start_new_session=True, text=True, **pipes))  # type: ignore[call-overload]
        return started[-1]

    yield command
    for process in started:
        if not group_is_empty(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=20)


def group_is_empty(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_two_processes(start: Any, tmp_path: Path, finished: Path, like: Any, said: Said) -> None:
    """Ctrl-C reaches the whole group, a kill only the parent; what two processes made is what one would have."""
    checkpoints = tmp_path / "run/checkpoints/seed0"
    interrupted = start()
    wait_for(lambda: any(checkpoints.glob("*.learner")))
    os.killpg(interrupted.pid, signal.SIGINT)
    _, err = interrupted.communicate(timeout=60)
    assert (interrupted.returncode, err) == (130, "reflectrl: interrupted; the same command goes on\n")

    killed = start()
    wait_for((tmp_path / "run/episodes/eval-sft-seed0-test-full-sampled.jsonl").exists)
    killed.kill()
    out, err = killed.communicate(timeout=60)
    wait_for(lambda: group_is_empty(killed.pid), seconds=20)
    assert group_is_empty(killed.pid), "children outlived their parent"
    assert "rl reflect-rl (seed 0): 3/3 validation" in out and "\x1b" not in out + err
    assert all(line.split(":")[0].endswith("(seed 0)") for line in out.splitlines()), out  # nobody else speaks
    assert "Traceback" not in err  # Python itself may count the semaphores that a kill leaves

    pipeline.run(like(), tmp_path / "run", "eval")
    assert said(tmp_path / "run") == said(finished)
