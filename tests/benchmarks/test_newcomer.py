"""The newcomer's drill: what it edits, what it counts, and what it does not let pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import newcomer
from benchmarks.strangers.bench import play_best
from reflectrl.core.plugins import resolve
from reflectrl.core.types import UserError
from reflectrl.tools.workbench.check import check_text_env
from reflectrl.tools.workbench.init import class_name

TEMPLATE = newcomer.ROOT / "src/reflectrl/tools/workbench/templates/environment.py.txt"
GOOD = newcomer.Drilled("template", 0, 20, {"init": (1.0, 0.5), "run": (100.0, 150.0)}, 0.95, 0.9, 40, 0.02)


@pytest.mark.parametrize("who", newcomer.NEWCOMERS)
def test_each_edit_gives_an_environment_that_keeps_its_promises(
    who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = newcomer.NEWCOMERS[who]
    path = tmp_path / one.project / "__init__.py"
    path.parent.mkdir()
    text = TEMPLATE.read_text(encoding="utf-8").replace("MyEnv", class_name(one.project))
    path.write_text(text.replace("my_env", one.project), encoding="utf-8")
    assert newcomer.rewrite(path, one.edit) >= (20 if who == "template" else 10)
    monkeypatch.syspath_prepend(tmp_path)
    assert check_text_env(resolve("envs", f"{one.project}:{class_name(one.project)}")) == []


@pytest.mark.parametrize("who", newcomer.STRANGERS)
def test_a_stranger_passes_with_nine_tenths_of_what_its_best_player_wins(who: str) -> None:
    assert newcomer.NEWCOMERS[who].least == pytest.approx(0.9 * play_best(who))


def test_a_template_that_is_no_longer_the_same_is_noticed() -> None:
    with pytest.raises(UserError, match="the template no longer has"):
        newcomer.edit_template("something else")


def test_what_passes_and_what_does_not() -> None:
    assert GOOD.passed and newcomer.line(GOOD).endswith("yes")
    assert GOOD._replace(who="pantry", seconds={"run": (601.0, 1.0)}).passed
    for worse in (
        GOOD._replace(won=0.89),
        GOOD._replace(who="frozenlake", won=0.94),
        GOOD._replace(seconds={"run": (601.0, 1.0)}),
        GOOD._replace(who="pantry", seconds={"run": (1201.0, 1.0)}),
        GOOD._replace(seconds={"run": (1.0, 1.0)} | {str(n): (1.0, 1.0) for n in range(10)}),
    ):
        assert not worse.passed and newcomer.line(worse).endswith("NO")


def test_commands_are_timed_and_one_that_fails_is_told(tmp_path: Path) -> None:
    wall, cpu = newcomer.timed([sys.executable, "-c", "sum(range(10**6))"], tmp_path)
    assert wall > 0 and cpu > 0
    with pytest.raises(UserError, match="exit code 3: oh no"):
        newcomer.timed([sys.executable, "-c", "import sys; print('oh no', file=sys.stderr); sys.exit(3)"], tmp_path)


def test_a_virtual_environment_sees_what_is_installed_here(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    newcomer.borrow(tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    done = subprocess.run(
        [python, "-c", "import numpy; print(numpy.__file__)"], text=True, capture_output=True, check=True
    )
    assert done.stdout
