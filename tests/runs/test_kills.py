"""Real processes, killed and interrupted at many moments: the same command goes on to the same results."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from benchmarks.forks import Fork, Forks
from reflectrl import runs as pipeline
from tests.runs.launcher import LIMIT

Said = Callable[[Path], dict[str, str]]

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


def wait_for(condition: Callable[[], bool], alive: Callable[[], bool] = lambda: True, seconds: float = LIMIT) -> None:
    end = time.monotonic() + seconds
    while not condition() and alive() and time.monotonic() < end:
        time.sleep(0.0005)


def run_until(forks: Forks, words: list[str], log: Path, there: Path | None, how: signal.Signals) -> int:
    """Run a command, and stop it as soon as a file is there; returns its exit code."""
    with log.open("ab") as said:
        child = forks.start(["-m", "reflectrl", *words], log.parent, stdout=said.fileno(), stderr=said.fileno())
    if there is not None:
        wait_for(there.exists, alive=lambda: child.poll() is None)
        child.send_signal(how)
    return child.wait(LIMIT)


def test_killed_at_any_moment_it_ends_with_the_same_bytes(
    forks: Forks, tmp_path: Path, recipe_file: Path, finished: Path, said: Said
) -> None:
    words = ["eval", str(recipe_file), "--folder", str(tmp_path / "run")]
    log = tmp_path / "log"
    codes = []
    for name, how in MOMENTS:
        there = tmp_path / "run" / name
        if not there.exists():
            codes.append(run_until(forks, words, log, there, how))
            assert codes[-1] in (0, -signal.SIGKILL, 130), log.read_text()
    assert codes.count(-signal.SIGKILL) >= 4 and codes.count(130) >= 2, codes
    assert run_until(forks, words, log, None, signal.SIGKILL) == 0
    assert said(tmp_path / "run") == said(finished)
    heard = log.read_text()
    line = "reflectrl: interrupted; run the same command again to continue"
    assert "Traceback" not in heard and heard.count(line) == codes.count(130)
    left = {path.name for path in (tmp_path / "run/checkpoints/seed0").iterdir()}
    assert left == {"base", "reflector", "policy", "rl-reflect-rl"}


@pytest.mark.parametrize("moment", ["reflector.learner", "rl-reflect-rl.learner"])
def test_a_copy_of_a_working_run_with_checkpoints_first_goes_on_elsewhere(
    forks: Forks, tmp_path: Path, recipe_file: Path, finished: Path, said: Said, moment: str
) -> None:
    words, here, there = (
        ["-m", "reflectrl", "eval", str(recipe_file), "--folder"],
        tmp_path / "here",
        tmp_path / "there",
    )
    log = tmp_path / "log"
    with log.open("ab") as file:
        process = forks.start([*words, str(here)], stdout=file.fileno(), stderr=file.fileno())
    wait_for((here / "checkpoints" / "seed0" / moment).exists, seconds=300)
    for part in ("checkpoints", "."):
        with suppress(shutil.Error):  # files that were replaced meanwhile; all others are copied
            shutil.copytree(here / part, there / part, dirs_exist_ok=True)
    process.kill()
    process.wait(LIMIT)
    assert run_until(forks, [*words[2:], str(there)], log, None, signal.SIGKILL) == 0, log.read_text()
    assert said(there) == said(finished)


@pytest.fixture
def start(tmp_path: Path, recipe_file: Path, forks: Forks) -> Iterator[Callable[[], Fork]]:
    """Start `reflectrl eval` with two processes in a process group of its own, as a terminal does."""
    started: list[Fork] = []

    def command() -> Fork:
        words = ["-m", "reflectrl", "eval", str(recipe_file), "--processes", "2", "--folder", "run"]
        with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
            streams = {"stdout": out.fileno(), "stderr": err.fileno()}
            started.append(forks.start(words, tmp_path, start_new_session=True, **streams))
        return started[-1]

    yield command
    for process in started:
        if not group_is_empty(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(LIMIT)


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
    code, err = interrupted.wait(LIMIT), (tmp_path / "err").read_text()
    assert (code, err) == (130, "reflectrl: interrupted; run the same command again to continue\n")

    killed = start()
    wait_for((tmp_path / "run/episodes/eval-sft-seed0-test-full-sampled.jsonl").exists)
    killed.kill()
    killed.wait(LIMIT)
    wait_for(lambda: group_is_empty(killed.pid), seconds=20)
    out, err = ((tmp_path / name).read_text() for name in ("out", "err"))
    assert group_is_empty(killed.pid), "children outlived their parent"
    assert "rl reflect-rl (seed 0): 3/3 validation" in out and "\x1b" not in out + err
    assert all(line.split(":")[0].endswith("(seed 0)") for line in out.splitlines()), out  # nobody else speaks
    assert "Traceback" not in err  # Python itself may count the semaphores that a kill leaves

    pipeline.run(like(), tmp_path / "run", "eval")
    assert said(tmp_path / "run") == said(finished)
