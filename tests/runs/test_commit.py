"""What results say of the code that made them: reflectrl's own commit, or its version, and never another project's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from reflectrl import __version__
from reflectrl.runs import results

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(root: Path, *words: str) -> str:
    settings = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *settings, "-C", str(root), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def checkout(root: Path, package: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository of a project of that name, with the package in a folder, and with a program to watch its files."""
    module = root / package / "runs" / "results.py"
    module.parent.mkdir(parents=True)
    module.write_text("x = 1\n", encoding="utf-8")
    (root / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n', encoding="utf-8")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "Begin")
    program = root.parent / "program"
    program.write_text(f"#!/bin/sh\ntouch {root.parent}/ran\n", encoding="utf-8")
    program.chmod(0o755)
    git(root, "config", "core.fsmonitor", str(program))
    monkeypatch.setattr(results, "__file__", str(module))  # where the package lies is all that is looked at


@pytest.mark.parametrize("package", ["src/reflectrl", ".venv/lib/reflectrl", "lib/python3/site-packages/reflectrl"])
def test_a_repository_around_the_package_is_not_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    checkout(tmp_path / "project", package, "somebodys", monkeypatch)
    assert results.commit() == f"version {__version__}" and not (tmp_path / "ran").exists()


def test_its_own_checkout_is_told_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "reflectrl"
    checkout(root, "src/reflectrl", "reflectrl", monkeypatch)
    head = git(root, "-c", "core.fsmonitor=false", "rev-parse", "HEAD")[:12]
    (tmp_path / "ran").unlink(missing_ok=True)
    assert results.commit() == head
    (root / "src/reflectrl/more.py").write_text("y = 1\n", encoding="utf-8")
    assert results.commit() == head, "what git does not know is no change of what it knows"
    (root / "src/reflectrl/runs/results.py").write_text("x = 2\n", encoding="utf-8")
    assert results.commit() == f"{head}+" and not (tmp_path / "ran").exists()
