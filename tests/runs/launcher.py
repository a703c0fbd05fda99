"""Starts the command line on several ranks, as torchrun does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

LIMIT = 240
"""Seconds after which what waits in vain is ended, and its test fails."""

SERVER = """
import json, os, signal, sys, traceback
import reflectrl.runs.runner  # what is slow to import is imported once
from pathlib import Path
from reflectrl.cli import main

for line in sys.stdin:
    asked, children = json.loads(line), []
    for rank, env in enumerate(asked["envs"]):
        child = os.fork()
        if child == 0:
            signal.alarm(asked["limit"])
            os.environ.update(env)
            for stream, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(f"{name}{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
            code = 1
            try:
                code = main(asked["words"])
            except SystemExit as error:
                code = error.code
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
        children.append(child)
    print(json.dumps(children), flush=True)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)
"""


class Launcher:
    """Starts commands in forks of one process, which begin at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        root = str(Path(__file__).parents[2])
        paths = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), root)))
        env = os.environ | {"PYTHONPATH": paths, "TORCH_CPP_LOG_LEVEL": "ERROR"}  # as the command line sets it
        self.server = subprocess.Popen([sys.executable, "-c", SERVER], cwd=folder, env=env, **pipes)

    def begin(self, ranks: int, *words: str) -> list[int]:
        """Start a command; returns the numbers of the processes."""
        assert self.server.stdin is not None and self.server.stdout is not None
        asked = {"words": words, "envs": envs_of(ranks), "limit": LIMIT}
        self.server.stdin.write(json.dumps(asked) + "\n")
        self.server.stdin.flush()
        started: list[int] = json.loads(self.server.stdout.readline())
        return started

    def end(self) -> tuple[list[int], list[list[str]]]:
        """Wait for the ranks: their exit codes, and the lines that each has said on stderr."""
        assert self.server.stdout is not None
        codes: list[int] = json.loads(self.server.stdout.readline())
        return codes, [(self.folder / f"err{rank}").read_text().splitlines() for rank in range(len(codes))]


def envs_of(ranks: int) -> list[dict[str, str]]:
    """The environment variables of each rank."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
