"""`run` checks an environment of the user's own before it trains in it for the first time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from tests.tools.workbench.test_init import TINY, here, project  # noqa: F401  (fixtures)


@pytest.fixture
def forgetful(project: Path) -> Iterator[Path]:  # noqa: F811
    """A project whose actions depend on luck that no seed decides."""
    path = project / "__init__.py"
    code = path.read_text(encoding="utf-8").replace("from itertools", "import random\nfrom itertools")
    head = "    def apply(self, action):\n"
    assert head in code
    code = code.replace(head, f"{head}        if random.random() < 0.5:\n            return Outcome(random.random())\n")
    path.write_text(code, encoding="utf-8")
    yield project


def test_a_broken_promise_is_named_before_anything_is_made(forgetful: Path, capsys: Any) -> None:
    assert main(["run", "parcels", "--arms", "random", *TINY]) == 2
    said = capsys.readouterr().err
    assert "breaks a promise: the same seed" in said and "--no-check" in said
    assert not Path("runs/parcels").exists()


def test_a_run_without_the_check_trains_as_it_is(forgetful: Path, capsys: Any) -> None:
    assert main(["run", "parcels", "--no-check", "--arms", "random", *TINY]) == 0
    assert "every promise is kept" not in capsys.readouterr().out


def test_a_sound_environment_is_checked_once(project: Path, capsys: Any) -> None:  # noqa: F811
    for checked in (True, False):
        assert main(["run", "parcels", "--arms", "random", *TINY]) == 0
        assert ("every promise is kept" in capsys.readouterr().out) is checked
