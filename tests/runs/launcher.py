"""Starts the command line on several ranks, as torchrun does."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from benchmarks.forks import Fork, Forks

LIMIT = 240
"""Seconds after which what waits in vain is ended, and its test fails."""


class Launcher:
    """Starts commands on ranks that begin at once.

    Args:
        folder: where they run, and where `out0`, `err0` and so on hold what each rank says.
    """

    def __init__(self, folder: Path, forks: Forks) -> None:
        self.folder = folder
        self.forks = forks
        self.ranks: list[Fork] = []

    def begin(self, ranks: int, *words: str) -> list[int]:
        """Start a command; returns the numbers of the processes."""
        self.ranks = []
        for rank, env in enumerate(envs_of(ranks)):
            with (self.folder / f"out{rank}").open("wb") as out, (self.folder / f"err{rank}").open("wb") as err:
                streams = {"stdout": out.fileno(), "stderr": err.fileno()}
                program = ["-m", "reflectrl", *words]
                self.ranks.append(self.forks.start(program, self.folder, os.environ | env, **streams))
        return [rank.pid for rank in self.ranks]

    def end(self) -> tuple[list[int], list[list[str]]]:
        """Wait for the ranks: their exit codes, and the lines that each has said on stderr."""
        codes = [rank.wait(LIMIT) for rank in self.ranks]
        return codes, [(self.folder / f"err{rank}").read_text().splitlines() for rank in range(len(codes))]


def envs_of(ranks: int) -> list[dict[str, str]]:
    """The environment variables of each rank."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
