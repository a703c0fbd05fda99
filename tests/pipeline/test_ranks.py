"""A run on several ranks: together they do what one does, and whoever fails, one line is said and nobody waits on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from reflectrl import pipeline

Said = Callable[[Path], dict[str, str]]
Launch = Callable[..., list[subprocess.Popen[str]]]
LIMIT = 90

TEAM = """
import json, sys, torch, torch.distributed as dist
from dataclasses import dataclass
from reflectrl import distributed
from reflectrl.distributed import Team, launched, together

@dataclass
class Job:
    seed: int

rank, size = launched()
dist.init_process_group("gloo")
team = Team(rank, size)
one, two, three = (torch.nn.Parameter(torch.zeros(3)) for _ in range(3))
one.grad = torch.tensor([1.0, 2.0, 3.0]) * (rank + 1)
if rank == 1:
    two.grad = torch.ones(3)
metrics = {"loss": 0.25} if rank == 0 else {"loss": 0.5, "kl": 1.0}
with together(team):
    noted = team.reduce([one, two, three], metrics)
    here = []
    played = list(team.play([Job(5), Job(3), Job(4)], lambda jobs: here.extend(jobs) or jobs[::-1]))
    pieces = distributed.mine(list(range(5)))
    total = distributed.total(rank + 1.0)
    made = distributed.first(lambda: (rank, distributed.team is None))
distributed.BUCKET = 4
sizes = [len(bucket) for bucket in distributed.buckets([torch.zeros(n) for n in (3, 1, 9, 2)])]
print(json.dumps([one.grad.tolist(), two.grad.tolist(), three.grad is None, noted, [job.seed for job in played],
                  [job.seed for job in here], pieces, total, made, sizes]))
dist.destroy_process_group()
"""

BAD = """
import os
from corridor import CorridorEnv

class Bad(CorridorEnv):
    def begin(self, task):
        super().begin(task)
        if os.environ.get("RANK") == "1" and task.split == "validation":
            raise OSError("the door is stuck")
"""


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """`launch(ranks, "-m", "reflectrl", ...)`: Python on several ranks, as torchrun starts it."""
    started: list[subprocess.Popen[str]] = []

    def begin(ranks: int, *words: str) -> list[subprocess.Popen[str]]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        for rank in range(ranks):
            about = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1"}
            env = os.environ | {name: str(value) for name, value in (about | {"MASTER_PORT": port}).items()}
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            command = [sys.executable, *words]
            started.append(subprocess.Popen(command, env=env, cwd=tmp_path, stdin=subprocess.DEVNULL, **pipes))
        return started[-ranks:]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def ended(processes: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each."""
    said = [process.communicate(timeout=LIMIT) for process in processes]
    return [(process.returncode, *both) for process, both in zip(processes, said, strict=True)]


def wait_for(path: Path) -> None:
    end = time.monotonic() + LIMIT
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.002)
    assert path.exists()


def test_what_ranks_bring_is_added_up_and_gathered_in_order(launch: Launch) -> None:
    (code, first, error), (_, second, _) = ended(launch(2, "-c", TEAM))
    assert code == 0, error
    one, two = json.loads(first), json.loads(second)
    shared = [[3.0, 6.0, 9.0], [1.0, 1.0, 1.0], True, {"loss": 0.75, "kl": 1.0}, [5, 3, 4]]
    assert one == [*shared, [5, 4], [0, 1], 3.0, [0, True], [2, 1, 1]]
    assert two == [*shared, [3], [2, 3, 4], 3.0, [0, True], [2, 1, 1]]


@pytest.mark.parametrize(
    ("rank", "there", "how", "codes", "line"),
    [
        (1, "policy.learner", signal.SIGKILL, [2, -9], "another process of this run ended"),
        (0, "rl-reflect-rl.learner", signal.SIGKILL, [-9, 2], "another process of this run ended"),
        (1, "reflector.learner", signal.SIGSTOP, [2, -9], "another process of this run did not answer in time"),
    ],
)
def test_a_rank_that_dies_or_freezes_ends_the_run_with_one_line_and_any_number_goes_on(
    launch: Launch, tmp_path: Path, recipe_file: Path, finished: Path, said: Said,
    rank: int, there: str, how: signal.Signals, codes: list[int], line: str, like: Any,
) -> None:  # fmt: skip
    processes = launch(2, "-m", "reflectrl", "run", str(recipe_file), "--folder", "run", "--rank-timeout", "4")
    wait_for(tmp_path / "run" / "checkpoints" / "seed0" / there)
    processes[rank].send_signal(how)
    if how == signal.SIGSTOP:
        assert processes[0].wait(LIMIT) == codes[0]
        processes[rank].kill()
    found = ended(processes)
    assert [code for code, _, _ in found] == codes
    errors = "".join(error for _, _, error in found).splitlines()
    assert len(errors) == 1 and errors[0].startswith(f"reflectrl: {line}") and "the same command goes on" in errors[0]
    folder = tmp_path / "run"
    pipeline.run(like("rank_timeout=4"), folder)  # on one process, from what two have left
    rows, known = (json.loads((one / "results.json").read_text())["rows"] for one in (folder, finished))
    assert [row["episodes"] for row in rows] == [row["episodes"] for row in known]
    untouched = [name for name in said(finished) if "teach" in name or "random" in name]
    assert untouched and all(said(folder)[name] == said(finished)[name] for name in untouched)
    assert not [*folder.rglob("*.learner"), *folder.rglob("*.writing")]


def test_what_goes_wrong_on_one_rank_is_said_once_and_names_it(
    launch: Launch, tmp_path: Path, recipe_file: Path
) -> None:
    (tmp_path / "bad.py").write_text(BAD, encoding="utf-8")
    words = ["rl", str(recipe_file), "--folder", "run", "--env.name", "bad:Bad", "--trust"]
    (code, _, error), (other, _, silent) = ended(launch(2, "-m", "reflectrl", *words))
    assert (code, other, silent) == (2, 2, "")
    assert error.startswith("reflectrl: process 1: ") and "the door is stuck" in error and error.count("\n") == 1


def test_a_mistake_is_said_by_the_first_rank_alone(launch: Launch, recipe_file: Path) -> None:
    (code, _, error), (other, _, silent) = ended(
        launch(2, "-m", "reflectrl", "run", str(recipe_file), "--rl.lr", "fast")
    )
    assert (code, other, silent) == (2, 2, "")
    assert error.count("\n") == 1 and "rl.lr" in error


def test_ranks_and_processes_side_by_side_exclude_each_other(launch: Launch, recipe_file: Path) -> None:
    found = ended(launch(2, "-m", "reflectrl", "run", str(recipe_file), "--processes", "2"))
    assert [code for code, _, _ in found] == [2, 2]
    assert "set processes = 1" in found[0][2] and found[1][2] == ""
