"""A tiny trained agent, and servers of it in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.forks import Fork, Forks
from reflectrl import runs as pipeline
from reflectrl.core.config import from_dict
from reflectrl.core.config.recipe import Recipe

RECIPE: dict[str, Any] = {
    "name": "tiny",
    "arms": ["random", "sft"],
    "env": {"name": "corridor", "train": 6, "validation": 3, "test": 5},
    "model": {"layers": 1, "width": 16, "heads": 2, "mixed_precision": "off", "context": 128},
    "play": {"reflection_tokens": 8},
    "teach": {"negatives": 1, "tasks": 5},
    "sft": {"steps": 5, "batch_size": 8, "eval_every": 5, "eval_rows": 8},
    "eval": {"sampling": ["greedy"], "splits": ["test"]},
}


class Served(NamedTuple):
    """A server that runs."""

    process: Fork
    url: str

    def end(self, number: int = signal.SIGINT) -> tuple[int, str, str]:
        """Send a signal; returns exit code, stdout and stderr."""
        self.process.send_signal(number)
        out, error = self.process.communicate(timeout=120)
        return self.process.returncode, out, error


Serve = Callable[..., Served]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose pair is trained."""
    folder = tmp_path_factory.mktemp("serve") / "run"
    pipeline.run(from_dict(Recipe, RECIPE, "tiny"), folder, "sft")
    return folder


@pytest.fixture(scope="session")
def serve(trained: Path, forks: Forks) -> Iterator[Serve]:
    """`serve("--token-env", "TOKEN", TOKEN="...")`: a server of the trained agent at a free port."""
    started: list[Served] = []

    def start(*options: str, **env: str) -> Served:
        words = ["-m", "reflectrl", "serve", str(trained), "--port", "0", *options]
        pipe = subprocess.PIPE
        process = forks.start(words, env=os.environ | env, stdout=pipe, stderr=pipe)
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line.startswith("serving tiny:sft at http://"), line + process.stderr.read()
        started.append(Served(process, line.split()[3].removesuffix("/v1")))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


@pytest.fixture(scope="session")
def server(serve: Serve) -> Served:
    """One that all tests may ask."""
    return serve("--body-kib", "64", "--concurrent", "60")
