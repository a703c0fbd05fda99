"""Time `locate`: a cold index, a warm start, further questions, one changed file, the size of the index, and memory.

    python -m benchmarks.locate_speed DIR --copies 1

DIR is a repository. With --copies, it is copied into as many folders, to reach 30,000 or 100,000 files. Processor
seconds include those of the processes that parse files. On a busy machine, only processor seconds can be compared.

Questions and changes are asked of two indexes in turn: one that walks through the repository before each answer, and
one that asks the kernel which folders changed. Then a client asks the MCP server (extra `mcp`, Linux).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from reflectrl.wings.autoexplore.locate import store
from reflectrl.wings.autoexplore.locate.engine import Engine

QUESTIONS = (
    "where are retries of database connections configured?",
    "which class parses the command line?",
    "how is a cache entry evicted?",
    "what happens when a template is missing?",
    "where are passwords hashed?",
)
ROUNDS = 7
"""Number of times that each question is asked, and a file is changed."""


class Clock:
    """Wall and processor seconds since the start."""

    def __init__(self) -> None:
        self._wall, self._processor = time.perf_counter(), _processor()

    def __str__(self) -> str:
        return f"{time.perf_counter() - self._wall:.3f} s, {_processor() - self._processor:.3f} processor seconds"


def _processor() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def main(words: Sequence[str] | None = None) -> None:
    """Measure in a temporary folder, and print a line per figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("repository", type=Path)
    parser.add_argument("--copies", type=int, default=1)
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[store.VARIABLE] = f"{folder}/cache"
        root = Path(folder) / "repository"
        for i in range(args.copies):
            shutil.copytree(args.repository, root / f"copy{i}", symlinks=True)
        measure(root, Path(folder) / "cache")
        if sys.platform == "linux" and find_spec("mcp") is not None:
            measure_server(root)


def measure(root: Path, cache: Path) -> None:
    """Print the figures of a repository."""
    clock = Clock()
    engine = Engine(root)
    files = engine.index.corpus.paths
    text = sum((root / path).stat().st_size for path in files)
    print(f"cold: {len(files):,} files, {text / 1e6:.1f} MB, {clock}")
    size = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
    print(f"index: {size / 1e6:.2f} MB, {100 * size / text:.1f} % of the text")
    clock = Clock()
    engine = Engine(root)
    print(f"warm start without imports: {clock}")
    engines = {"walked": engine, "watched": Engine(root, watched=True)}
    looks = {name: list[float]() for name in engines}
    first_answers = {name: list[float]() for name in engines}
    answers = {name: list[float]() for name in engines}
    for round_ in range(ROUNDS):
        for question in QUESTIONS:
            for name, engine in engines.items():
                looks[name].append(_seconds(engine.index.refresh))
                search = _seconds(lambda engine=engine, question=question: engine.search(question, 5))
                (answers if round_ else first_answers)[name].append(looks[name][-1] + search)
    changed = root / files[len(files) // 2]
    updates = {name: list[float]() for name in engines}
    answered = {name: list[float]() for name in engines}
    for _ in range(ROUNDS):
        for name, engine in engines.items():
            changed.write_bytes(changed.read_bytes() + b"\n# one more line\n")
            updates[name].append(_seconds(engine.index.refresh))
            assert engine.index.indexed > 0
            search = _seconds(lambda engine=engine: engine.search(QUESTIONS[0], 5))
            answered[name].append(updates[name][-1] + search)
            for other in engines.values():
                other.index.refresh()
    for name in engines:
        print(
            f"{name}, median processor milliseconds: look for changes {_median(looks[name])}, a new question "
            f"{_median(first_answers[name])}, a repeated one {_median(answers[name])}, one changed file "
            f"{_median(updates[name])}, with an answer {_median(answered[name])}"
        )
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def measure_server(root: Path) -> None:
    """Print the time of a question to the MCP server, from request to answer, and the server's processor time."""
    words = [sys.executable, "-m", "reflectrl", "mcp", "--search", "--repo", str(root)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:

        def send(message: dict[str, Any]) -> None:
            assert server.stdin is not None
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            server.stdin.flush()

        def ask(number: int, method: str, parameters: dict[str, Any]) -> None:
            assert server.stdout is not None
            send({"id": number, "method": method, "params": parameters})
            assert json.loads(server.stdout.readline())["id"] == number

        client = {"name": "benchmark", "version": "0"}
        ask(0, "initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        send({"method": "notifications/initialized"})
        walls, processors, numbers = list[float](), list[float](), count(1)
        for round_ in range(ROUNDS):
            for question in QUESTIONS:
                wall, processor = time.perf_counter(), _processor_of(server.pid)
                ask(next(numbers), "tools/call", {"name": "locate", "arguments": {"question": question}})
                walls.append(time.perf_counter() - wall)
                processors.append(_processor_of(server.pid) - processor)
            if not round_:
                print(f"MCP, a new question: {_median(walls)} ms, {_median(processors)} processor milliseconds")
                walls, processors = [], []
        print(f"MCP, a repeated question: {_median(walls)} ms, {_median(processors)} processor milliseconds")
        assert server.stdin is not None
        server.stdin.close()


def _seconds(action: Callable[[], object]) -> float:
    """Return the processor seconds that an action takes."""
    start = time.process_time()
    action()
    return time.process_time() - start


def _processor_of(process: int) -> float:
    """Return the processor seconds of another process."""
    return time.clock_gettime(~process << 3 | 2)  # the number of its clock, as clock_getcpuclockid(3) would say


def _median(seconds: Sequence[float]) -> str:
    return f"{1000 * statistics.median(seconds):.1f}"


if __name__ == "__main__":
    main()
