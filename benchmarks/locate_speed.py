"""Time `locate`: a cold index, a warm start, further questions, one changed file, the size of the index, and memory.

    python -m benchmarks.locate_speed DIR --copies 1

DIR is a repository. With --copies, it is copied into as many folders, to reach 30,000 or 100,000 files. Processor
seconds include those of the processes that parse files. On a busy machine, only processor seconds can be compared.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from reflectrl.wings.autoexplore.locate import store
from reflectrl.wings.autoexplore.locate.engine import Engine

QUESTIONS = (
    "where are retries of database connections configured?",
    "which class parses the command line?",
    "how is a cache entry evicted?",
    "what happens when a template is missing?",
    "where are passwords hashed?",
)
ROUNDS = 4


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
    for round_ in range(ROUNDS):
        clock = Clock()
        for question in QUESTIONS:
            engine.index.refresh()
            engine.search(question, 5)
        print(f"{len(QUESTIONS)} questions, round {round_ + 1}: {clock}")
    changed = root / files[len(files) // 2]
    changed.write_bytes(changed.read_bytes() + b"\n# one more line\n")
    clock = Clock()
    engine.index.refresh()
    print(f"one changed file: {clock}, {engine.index.indexed} parsed")
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
