"""The examples keep the promises, run as scripts, and are what their pages say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from reflectrl.core.envs.base import SPLITS
from reflectrl.core.plugins import resolve
from reflectrl.tools.workbench.check import check_text_env

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "src" / "reflectrl" / "examples"


@pytest.fixture
def examples(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.mark.parametrize(
    "name",
    ["add_up:AddUp", "blackjack:BlackjackEnv", "guess_number:GuessEnv", "frozen_maps:FrozenMaps", "say_back:SayBack"],
)
def test_the_examples_load_as_plug_ins_and_pass_the_checker(examples, name):
    made = resolve("envs", f"reflectrl.examples.{name}")
    check_text_env(made)
    env = made()
    assert env.tasks("train") and env.tasks("test")


def test_the_examples_can_be_named_in_any_folder(command):
    done = command("check-env", "reflectrl.examples.add_up:AddUp")
    assert done.returncode == 0 and "every promise is kept" in done.stdout, done.stderr


@pytest.mark.parametrize(("script", "end"), [("blackjack.py", "lost"), ("guess_number.py", "won")])
def test_the_examples_run_as_scripts(script, end):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-W", "error", str(EXAMPLES / script)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip().endswith(end)


def test_the_smallest_environment_has_at_most_30_lines():
    assert len((EXAMPLES / "add_up.py").read_text(encoding="utf-8").splitlines()) <= 30


def test_no_two_tasks_share_a_map_and_each_can_be_crossed(examples):
    env = resolve("envs", "reflectrl.examples.frozen_maps:FrozenMaps")()
    tasks = [task for split in SPLITS for task in env.tasks(split)]
    maps = {tuple(generate_random_map(4, seed=task.payload["seed"])) for task in tasks}
    assert len(maps) == len(tasks) == 1250
    for task in env.tasks("test")[:20]:
        text, _ = env.reset(options={"task": task})
        rows = generate_random_map(4, seed=task.payload["seed"])
        assert text.splitlines()[3:] == [*view_from_the_start(rows), "Last: none"]
        assert env.wrapped.desc.astype(str).tolist() == [list(row) for row in rows]


def view_from_the_start(rows):
    return [" W W" + "".join(f" {cell}" for cell in row) for row in ("A" + rows[0][1:3], rows[1][:3], rows[2][:3])]


def test_blackjack_is_won_exactly_when_the_game_pays(examples):
    env = resolve("envs", "reflectrl.examples.blackjack:BlackjackEnv")()
    results = set()
    for task in env.tasks("train")[:40]:
        env.reset(options={"task": task})
        _, reward, terminated, _, _ = env.step(0)
        assert terminated and env.success == (reward > 0)
        results.add(env.success)
    assert results == {True, False}


def test_the_guessing_expert_halves_the_range(examples):
    env = resolve("envs", "reflectrl.examples.guess_number:GuessEnv")()
    for task in env.tasks("test"):
        env.reset(options={"task": task})
        steps = 0
        while not env.done:
            env.step(env.teacher.expert_action(env))
            steps += 1
        assert env.success and steps <= 4
