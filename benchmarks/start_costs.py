"""Processor time of short commands beside another version of the package, in turns, and their ratio.

    python -m benchmarks.start_costs 85e87b3 --repetitions 9
    python -m benchmarks.start_costs ../before

The other version is a folder with a checkout, or a commit of this repository, which is checked out for the time of the
measurement. The time is user and system time of the command's process and its children, which other programs on the
machine stretch far less than the wall's. The versions take turns, and each repetition gives a ratio; the table shows
the median times, the median ratio, and the least and largest ratio. Above 1, this version costs more.

Both versions run in this interpreter. Each gets the entry points of its own `pyproject.toml`, since those that are
installed here belong to one version only. The first repetition is not counted: it compiles modules and fills caches.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

COMMANDS = ("--version", "--help", "run taxi-demo --dry-run", "run --help", "list recipes")
"""Commands that compute nothing, so that their cost is the start."""
HERE = Path(__file__).resolve().parents[1]


@contextmanager
def checkout(version: str) -> Iterator[Path]:
    """Yield a folder with a version of the package: the folder of that name, or a checkout of the commit."""
    if (Path(version) / "pyproject.toml").is_file():
        yield Path(version).resolve()
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "other"
        subprocess.run(["git", "-C", HERE, "worktree", "add", "--detach", "-q", folder, version], check=True)
        try:
            yield folder
        finally:
            subprocess.run(["git", "-C", HERE, "worktree", "remove", "--force", folder], check=True)


def write_metadata(source: Path, folder: Path) -> None:
    """Write a package's name and entry points as an installation would, from its `pyproject.toml`."""
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = folder / f"{project['name']}-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n", encoding="utf-8")
    groups = {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}
    lines = [line for group, points in groups.items() for line in _section(group, points)]
    (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


def _section(group: str, points: Mapping[str, str]) -> list[str]:
    return [f"[{group}]", *(f"{name} = {target}" for name, target in points.items()), ""]


def cpu_seconds(words: Sequence[str], variables: Mapping[str, str], folder: Path) -> float:
    """Run a command of the package, and return the processor time that it and its children took.

    Raises:
        SystemExit: the command failed.
    """
    command = [sys.executable, "-P", "-m", "reflectrl", *words]
    before = os.times()
    done = subprocess.run(command, env=dict(variables), cwd=folder, capture_output=True, text=True, check=False)
    after = os.times()
    if done.returncode:
        raise SystemExit(f"{variables['PYTHONPATH']}: {' '.join(words)} failed: {done.stderr.strip()[-300:]}")
    return after.children_user + after.children_system - before.children_user - before.children_system


def measure(
    versions: Mapping[str, Mapping[str, str]], words: Sequence[str], repetitions: int, folder: Path
) -> dict[str, list[float]]:
    """Return the seconds of a command by version. The versions take turns, and change places each time."""
    seconds: dict[str, list[float]] = {name: [] for name in versions}
    for repetition in range(repetitions + 1):
        for name in sorted(versions, reverse=repetition % 2 == 1):
            cost = cpu_seconds(words, versions[name], folder)
            if repetition:
                seconds[name].append(cost)
    return seconds


@dataclass(frozen=True)
class Options:
    """Compare the processor time of short commands in this version and another."""

    other: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="VERSION")]
    """Folder of a checkout, or a commit of this repository."""
    repetitions: int = 7
    """Number of counted repetitions."""
    commands: tuple[str, ...] = COMMANDS
    """Commands, without the program's name."""


def main(options: Options) -> None:
    """Measure, and print a row per command."""
    with checkout(options.other) as other, tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        versions = {}
        for name, source in (("here", HERE), ("other", other)):
            write_metadata(source, folder / name)
            path = os.pathsep.join(map(str, (source / "src", folder / name)))
            versions[name] = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        print(f"{'command':28} {'here, s':>8} {'other, s':>9} {'ratio':>6}  least to largest")
        for command in options.commands:
            seconds = measure(versions, command.split(), options.repetitions, folder)
            ratios = [here / there for here, there in zip(seconds["here"], seconds["other"], strict=True)]
            here, there = (statistics.median(seconds[name]) for name in ("here", "other"))
            extent = f"{min(ratios):.2f} to {max(ratios):.2f}"
            print(f"{command:28} {here:8.2f} {there:9.2f} {statistics.median(ratios):6.2f}  {extent}", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Options))
