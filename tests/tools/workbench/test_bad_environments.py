"""Environments in which nothing can be learned, or that break while in use: one line each, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.core.config import Recipe
from reflectrl.core.envs import make
from reflectrl.core.episodes import read_episodes
from reflectrl.core.types import UserError
from reflectrl.runs.evaluation import digest_of_tasks, require_same_tasks

MODULE = '''
import itertools
import os
from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, require_known
from reflectrl.core.types import Task

STEPS = itertools.count(1)


class Lights(TextEnv):
    """Press the switch that is named. `fault` says what is wrong."""

    def __init__(self, fault: str = "", horizon: int = 4) -> None:
        super().__init__(horizon)
        self.fault = fault

    def tasks(self, split, stage=None):
        require_known("lights", "split", split, SPLITS)
        require_known("lights", "stage", stage or "full", self.stages)
        rooms = [f"{split}{n}" for n in range(8)]
        if self.fault == "unstable tasks":
            rooms = list(set(rooms))[:6]
        if self.fault == "tasks of this process":  # a fork has its parent's order of sets, but an id of its own
            rooms = [*rooms[:6], f"{split}{os.getpid()}0"]
        return [Task(f"lights-{room}", "lights", {"room": room}, split) for room in rooms]

    def begin(self, task):
        self.goal = "ab"[int(task.payload["room"][-1]) % 2]

    def apply(self, action):
        if self.fault == "raises late" and next(STEPS) >= 1000 and not os.path.exists("mended"):
            raise RuntimeError("the thousandth step")
        if self.fault == "raises in long episodes" and self.elapsed == 999:
            raise RuntimeError("the thousandth step")
        won = action == self.goal
        if self.fault == "unmarked":
            return Outcome(float(won), won)
        if self.fault == "long":
            return Outcome(-0.01 * (action == "a"))
        if self.fault in ("no reward", "raises in long episodes"):
            return Outcome(0.0)
        return Outcome(float(won), won, won, ("pressed",) if won else ())

    def state(self):
        return f"Press {self.goal}.\\n"

    def legal_actions(self):
        return {"no action": [], "one action": ["a"]}.get(self.fault, ["a", "b"])
'''
RECIPE = """
name = "lights"
arms = ["random", "rl-only"]
env.name = "lights:Lights"
model = {layers = 1, width = 16, heads = 2, mixed_precision = "off"}
rl = {updates = 40, episodes = 16, eval_every = 5, eval_episodes = 4}
"""
FAULTS = {
    "no action": "legal actions are not empty before the end",
    "one action": "there was never more than one legal action, so there is nothing to choose",
    "no reward": "episodes of random play earned 0, so no action looks better",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module and a recipe."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lights.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "lights.toml").write_text(RECIPE, encoding="utf-8")
    return tmp_path


@pytest.fixture
def said(here: Path, command: Callable[..., Any]) -> Callable[..., str]:
    """`said("check-env", ...)`: the one line with which it is refused."""

    def run(*words: str) -> str:
        done = command(*words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        return str(done.stderr)

    return run


RUN = ("run", "lights.toml", "--env.name", "lights:Lights")


@pytest.mark.parametrize("fault", FAULTS)
def test_check_env_refuses_it(said: Callable[..., str], fault: str) -> None:
    line = said("check-env", "lights:Lights", "--fault", fault)
    assert FAULTS[fault] in line and "'lights:Lights'" in line


def test_milestones_that_there_are_not_are_refused_before_anything_is_made(
    here: Path, said: Callable[..., str]
) -> None:
    line = said(*RUN, "--rl.milestone-coef", "0.5")
    assert "rl.milestone_coef is 0.5, but Lights has no `milestones`" in line
    assert not (here / "runs/lights/episodes").exists()


@pytest.mark.parametrize("fault", FAULTS)
def test_run_refuses_it(said: Callable[..., str], fault: str) -> None:
    assert FAULTS[fault] in said(*RUN, "--env.fault", fault)


def test_reward_that_chance_never_finds_may_be_looked_for(here: Path, command: Callable[..., Any]) -> None:
    words = (*RUN, "--env.fault", "no reward", "--rl.count_coef", "0.1", "--rl.updates", "2")
    done = command(*words)
    assert done.returncode == 0, done.stderr


def test_check_env_notices_an_episode_that_breaks_at_its_thousandth_step(said: Callable[..., str]) -> None:
    line = said("check-env", "lights:Lights", "--fault", "raises in long episodes", "--horizon", "1100")
    assert "RuntimeError: the thousandth step" in line


def test_tasks_that_differ_between_processes(here: Path, said: Callable[..., str], command: Any) -> None:
    line = said("check-env", "lights:Lights", "--fault", "unstable tasks")
    assert "tasks are the same in every process" in line
    words = (*RUN, "--env.fault", "tasks of this process", "--arms", "random")
    assert command(*words).returncode == 0
    assert "its tasks are not those with which the run began" in said(*words)


def test_a_process_of_a_run_refuses_other_tasks() -> None:
    recipe = Recipe(env={"name": "frozenlake"})
    require_same_tasks(recipe, digest_of_tasks(make(recipe.env)))
    with pytest.raises(UserError, match="environment 'frozenlake': its tasks are not those"):
        require_same_tasks(recipe, digest_of_tasks(make({"name": "taxi"})))


def test_what_was_finished_before_it_broke_is_kept(here: Path, said: Callable[..., str], command: Any) -> None:
    words = (*RUN, "--env.fault", "raises late")
    assert "the thousandth step" in said(*words)
    played = here / "runs/lights/episodes/random-seed0.jsonl"
    before = played.read_bytes()
    assert len(list(read_episodes(played))) >= 60
    (here / "mended").touch()
    done = command(*words)
    assert done.returncode == 0, done.stderr
    assert played.read_bytes() == before and (here / "runs/lights/report.html").is_file()


class TestWhatCheckEnvSays:
    def check(self, capsys: Any, monkeypatch: Any, here: Path, *words: str) -> str:
        monkeypatch.syspath_prepend(here)
        assert main(["check-env", "lights:Lights", *words]) == 0
        return str(capsys.readouterr().out)

    @pytest.fixture(autouse=True)
    def _forget(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "lights", raising=False)

    def test_the_figures_of_random_play(self, capsys: Any, monkeypatch: Any, here: Path) -> None:
        said = self.check(capsys, monkeypatch, here)
        assert "among 2 actions, labelled 1 to 2" in said and "tokens of a tokenizer made from this text" in said
        assert "returns 0 to 1" in said and "of 4 steps, out of time" in said
        assert "success: an outcome says success=True; events: pressed in " in said and "note" not in said
        assert "trainable by reward: yes, returns differ: --arms rl-only" in said
        assert "teachable: no; name a teacher" in said

    def test_success_that_is_only_in_the_reward_is_pointed_out(self, capsys: Any, monkeypatch: Any, here: Path) -> None:
        said = self.check(capsys, monkeypatch, here, "--fault", "unmarked")
        assert "episodes ended with a reward above 0 without success" in said and "say success=True" in said
        assert "nobody won by chance" in said

    def test_rewards_without_success_can_be_learned_from(self, capsys: Any, monkeypatch: Any, here: Path) -> None:
        said = self.check(capsys, monkeypatch, here, "--fault", "long")
        assert "won 0 (0%); some reward above 0 0 (0%)" in said and "out of time 64 (100%)" in said
        assert "trainable by reward: yes" in said and "nobody won by chance" in said

    def test_the_rule_of_the_adapter(self, capsys: Any) -> None:
        words = ["reflectrl.core.envs.adapter:GymTextEnv", "--id", "FrozenLake-v1", "--actions", '["l", "d", "r", "u"]']
        assert main(["check-env", *words]) == 0
        assert "success: the episode ends with a reward above 0" in capsys.readouterr().out

    def test_a_file_here_stands_in_for_no_library(self, here: Path, command: Any) -> None:
        (here / "numpy.py").write_text("open('ran', 'w')\n", encoding="utf-8")
        program = "import sys; from reflectrl.cli import main; main(['check-env', 'corridor'])"
        words = ["-P", "-c", f"{program}; print('torch' in sys.modules)"]
        done = subprocess.run([sys.executable, *words], cwd=here, text=True, capture_output=True, check=False)
        assert "every promise is kept" in done.stdout and not (here / "ran").exists(), done.stderr
        assert done.stdout.splitlines()[-1] == "False"  # so that it answers in a second or two
