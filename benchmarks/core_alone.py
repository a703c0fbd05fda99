"""Run the core's tests on a copy of the package without the rooms that a run does not need (`lines.REMOVABLE`).

    python -m benchmarks.core_alone

Further arguments go to pytest, such as `-x` or `tests/core`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.lines import REMOVABLE

ROOT = Path(__file__).parents[1]
LEFT_OUT = {ROOT / top / room for top in ("src/reflectrl", "tests") for room in REMOVABLE} | {ROOT / "tests/benchmarks"}
PROGRAMS = ("__init__", "chromium", "families", "forks", "measure")
"""Benchmark modules that tests of the core import."""
COPIED = ("src", "tests", "docs", "pyproject.toml", *(f"benchmarks/{name}.py" for name in PROGRAMS))


def copy_core(folder: Path) -> None:
    """Copy the package and its tests without the rooms that a run does not need."""

    def ignored(path: str, names: list[str]) -> list[str]:
        return [name for name in names if name == "__pycache__" or Path(path, name) in LEFT_OUT]

    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def main(words: list[str]) -> int:
    """Run pytest in the copy and return its exit code."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        copy_core(folder)
        env = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder / "src"), str(folder)])}
        return subprocess.run([sys.executable, "-m", "pytest", *words], cwd=folder, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
