"""A run on several ranks: together they do what one does, and whoever fails, one line is said and nobody waits on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.forks import Forks
from reflectrl import runs as pipeline
from tests.runs.launcher import LIMIT, Launcher, envs_of

Said = Callable[[Path], dict[str, str]]

TEAM = """
import json, sys, torch, torch.distributed as dist
from dataclasses import dataclass
from reflectrl.core import distributed
from reflectrl.core.distributed import Team, launched, together

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
    pieces = team.part(list(range(5)))
    total = team.total(rank + 1.0)
    made = distributed.first(lambda: (rank, distributed.current() is distributed.ALONE))
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


def wait_for(path: Path) -> None:
    end = time.monotonic() + LIMIT
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.002)
    assert path.exists()


def test_what_ranks_bring_is_added_up_and_gathered_in_order(forks: Forks) -> None:
    pipe = subprocess.PIPE
    started = [forks.start(["-c", TEAM], env=os.environ | env, stdout=pipe) for env in envs_of(2)]
    one, two = (json.loads(process.communicate(timeout=LIMIT)[0]) for process in started)
    shared = [[3.0, 6.0, 9.0], [1.0, 1.0, 1.0], True, {"loss": 0.75, "kl": 1.0}, [5, 3, 4]]
    assert one == [*shared, [5, 4], [0, 1], 3.0, [0, True], [2, 1, 1]]
    assert two == [*shared, [3], [2, 3, 4], 3.0, [0, True], [2, 1, 1]]


@pytest.mark.parametrize(
    ("rank", "there", "how", "codes", "line"),
    [
        (1, "policy.learner", signal.SIGKILL, [2, -9], "another process of this run ended"),
        (0, "rl-reflect-rl.learner", signal.SIGKILL, [-9, 2], "another process of this run ended"),
        (1, "reflector.learner", signal.SIGSTOP, [2, -9], "another process of this run did not answer in time"),
        (0, "policy.learner", signal.SIGTERM, [143, 0], "ended by SIGTERM"),
    ],
)
def test_a_rank_that_dies_or_freezes_ends_the_run_with_one_line_and_any_number_goes_on(
    launcher: Launcher, tmp_path: Path, recipe_file: Path, finished: Path, said: Said, like: Any,
    rank: int, there: str, how: signal.Signals, codes: list[int], line: str,
) -> None:  # fmt: skip
    folder = tmp_path / "run"
    patience = ["--rank-timeout", "8"] if how == signal.SIGSTOP else []
    processes = launcher.begin(2, "run", str(recipe_file), "--folder", str(folder), *patience)
    wait_for(folder / "checkpoints" / "seed0" / there)
    os.kill(processes[rank], how)
    if how == signal.SIGSTOP:
        wait_for_a_line(tmp_path / "err0")
        os.kill(processes[rank], signal.SIGKILL)
    found, errors = launcher.end()
    assert found == codes or (how == signal.SIGTERM and found[0] == 143)
    told = [line for lines in errors for line in lines]
    assert told[0].startswith(f"reflectrl: {line}"), told
    # A first rank that is told to end says so, and those that it leaves in the middle of a sum say what they see.
    assert len(told) == 1 or (how == signal.SIGTERM and len(told) == 2), told
    assert told[0].endswith("run the same command again to continue")
    pipeline.run(like(), folder)  # on one process, from what two have left
    rows, known = (json.loads((one / "results.json").read_text())["rows"] for one in (folder, finished))
    assert [row["episodes"] for row in rows] == [row["episodes"] for row in known]
    untouched = [name for name in said(finished) if "teach" in name or "random" in name]
    assert untouched and all(said(folder)[name] == said(finished)[name] for name in untouched)
    assert not [*folder.rglob("*.learner"), *folder.rglob("*.writing")]


def wait_for_a_line(path: Path) -> None:
    end = time.monotonic() + LIMIT
    while not path.read_text().endswith("\n") and time.monotonic() < end:
        time.sleep(0.01)


def test_what_goes_wrong_is_said_once(launcher: Launcher, tmp_path: Path, recipe_file: Path) -> None:
    (tmp_path / "bad.py").write_text(BAD, encoding="utf-8")
    recipe = str(recipe_file)
    cases = {
        ("rl", recipe, "--folder", "run", "--env.name", "bad:Bad", "--trust"): "reflectrl: .*the door is stuck",
        ("run", recipe, "--rl.lr", "fast"): ".*rl.lr",
        ("run", recipe, "--processes", "2"): ".*set processes = 1",
    }
    for words, line in cases.items():
        launcher.begin(2, *words)
        codes, (said, others) = launcher.end()
        told = [*said, *others]  # by the first rank, or by another one where the first is slow to hear of it
        assert codes == [2, 2] and len(told) == 1 and re.match(line, told[0]), told
