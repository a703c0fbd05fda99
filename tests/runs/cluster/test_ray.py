"""The engine "ray" on a real cluster of this machine: the same bytes, nothing lost to a killed worker, two nodes."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from reflectrl import runs as pipeline
from reflectrl.core.config import load_recipe

pytest.importorskip("ray")

RECIPE = """
name = "tiny"
threads = 1
arms = ["random", "sft", "reflect-rl"]
env = {name = "corridor", train = 6, validation = 3, test = 5}
model = {layers = 1, width = 16, heads = 2, mixed_precision = "off"}
play.reflection_tokens = 8
teach = {negatives = 1, tasks = 5}
sft = {steps = 30, batch_size = 8, eval_every = 2, eval_rows = 8}
rl = {updates = 3, episodes = 4, eval_every = 1, eval_episodes = 2, replay_episodes = 2}
eval = {sampling = ["greedy", "sampled"], batch = 3}
"""
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ray") / "tiny.toml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def local(recipe: Path) -> Path:
    """The same run by local processes."""
    pipeline.run(load_recipe(recipe), recipe.parent / "local")
    return recipe.parent / "local"


def node(*words: str) -> subprocess.Popen[str]:
    """Start a node of one core that stays until it is terminated."""
    program = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--block"]
    more = ["--num-cpus", "1", "--object-store-memory", "100000000"]
    process = subprocess.Popen([*program, *words, *more], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    assert any("Ray runtime started" in line for line in lines)
    return process


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Two nodes, started separately on this machine; gives the address of the first."""
    own = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as server:
        for name, value in own.items():
            patch.setenv(name, value)
        port = server.getsockname()[1]
        server.close()
        where = "import ray; print(ray.util.get_node_ip_address())"
        address = subprocess.check_output([sys.executable, "-c", where], text=True).strip() + f":{port}"
        for words in (["--head", "--port", str(port), "--include-dashboard", "false"], ["--address", address]):
            process = stack.enter_context(node(*words))
            stack.callback(process.terminate)
        yield address


def said(folder: Path) -> dict[str, str]:
    """Episodes, metrics and results, byte for byte but for the commit."""
    found = [*sorted((folder / "episodes").iterdir()), folder / "metrics.jsonl", folder / "results.json"]
    return {path.name: re.sub(r'"commit": ".*?"', "", path.read_text(encoding="utf-8")) for path in found}


def same_weights(one: Path, other: Path) -> bool:
    files = [path.relative_to(one) for path in sorted(one.glob("checkpoints/**/*.safetensors"))]
    return bool(files) and all((one / name).read_bytes() == (other / name).read_bytes() for name in files)


def test_two_nodes_give_the_bytes_of_local_processes_though_a_worker_is_killed(
    cluster: str, recipe: Path, local: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    words = [sys.executable, "-m", "reflectrl", "run", str(recipe), "--folder", str(folder), "--engine", "ray"]
    env = os.environ | {"RAY_ADDRESS": cluster}
    with subprocess.Popen(words, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        killed = kill_worker_that_writes(folder / "checkpoints" / "seed0" / "reflector.learner")
        _, error = running.communicate(timeout=300)
    assert running.returncode == 0 and "Traceback" not in error, error
    assert killed and said(folder) == said(local) and same_weights(local, folder)


def kill_worker_that_writes(state: Path) -> int:
    """SIGKILL the process whose task trains, as soon as its state is there; the number of processes killed."""
    end = time.monotonic() + 240
    while not state.exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    found = subprocess.run(["pgrep", "-f", "^ray::_make_on_ray"], text=True, capture_output=True).stdout.split()
    for process in found:
        os.kill(int(process), signal.SIGKILL)
    return len(found)


def test_environments_may_live_on_the_cluster(cluster: str, recipe: Path, local: Path, tmp_path: Path) -> None:
    shutil.copytree(local, tmp_path / "run")
    for path in (tmp_path / "run" / "episodes").glob("eval-*"):
        path.unlink()
    command = [sys.executable, "-m", "reflectrl", "run", str(recipe), "--folder", str(tmp_path / "run")]
    options = ["--engine", "ray", "--env-workers", "2", "--arms", "random"]
    env = os.environ | {"RAY_ADDRESS": cluster}
    done = subprocess.run([*command, *options], env=env, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert {name: text for name, text in said(tmp_path / "run").items() if "eval-random" in name} == {
        name: text for name, text in said(local).items() if "eval-random" in name
    }


LOST = """
import os, signal
from functools import partial
from corridor import CorridorEnv
from reflectrl.core.envs.pool import EnvPool
from reflectrl.core.players.simple import UNLEARNED
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import UserError

class Deadly(CorridorEnv):
    def begin(self, task):
        os.kill(os.getpid(), signal.SIGKILL)

tasks = CorridorEnv().tasks("test")
with EnvPool(CorridorEnv, 2, "ray") as pool:
    print(len(list(rollout([Job(task, i) for i, task in enumerate(tasks)], pool, UNLEARNED["random"]()))))
try:
    with EnvPool(Deadly, 1, "ray") as pool:
        list(rollout([Job(tasks[0], 0)], pool, UNLEARNED["random"]()))
except UserError as error:
    print(error)
"""


def test_a_killed_worker_of_environments_is_reported_with_its_task(cluster: str, tmp_path: Path) -> None:
    (tmp_path / "lost.py").write_text(LOST, encoding="utf-8")
    env = os.environ | {"RAY_ADDRESS": cluster}
    done = subprocess.run(
        [sys.executable, "lost.py"], env=env, cwd=tmp_path, text=True, capture_output=True, timeout=300
    )
    count, line = [line for line in done.stdout.splitlines() if "(raylet)" not in line]  # what Ray says of the worker
    assert int(count) > 0 and "its Ray worker ended on task" in line, done.stderr


def test_an_unknown_engine_is_refused_with_those_there_are(command: Command, recipe: Path) -> None:
    done = command("run", str(recipe), "--engine", "rai")
    assert done.returncode == 2 and "unknown engine 'rai'" in done.stderr and "'ray'" in done.stderr


def test_no_cluster_at_an_address_is_said_in_a_line(command: Command, recipe: Path) -> None:
    done = command("run", str(recipe), "--engine", "ray", env={"RAY_ADDRESS": "127.0.0.1:1"})
    assert done.returncode == 2 and done.stderr.startswith("reflectrl: engine = 'ray': no cluster at 127.0.0.1:1")
    assert done.stderr.count("\n") == 1
