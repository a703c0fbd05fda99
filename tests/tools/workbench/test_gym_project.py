"""`init --gym ID`: a project that plays a gymnasium environment in words, and can be taught by a searching bot."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.plugins import resolve_class


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder that modules are imported from; they are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("mine"):
            del sys.modules[name]


def begun(id: str) -> Any:
    """Begin a project and return its environment."""
    assert main(["init", "mine", "--gym", id]) == 0
    return resolve_class("envs", "mine:Mine", TextEnv)()


def start(env: Any) -> tuple[str, dict[str, Any]]:
    return env.reset(seed=0, options={"task": env.tasks("train")[0]})


@pytest.mark.filterwarnings("ignore:all tasks begin with the same text")  # so it is, in three of these worlds
@pytest.mark.parametrize(
    ("id", "actions", "text"),
    [
        ("MiniGrid-DoorKey-5x5-v0", 6, "Goal: use the key to open the door and then get to the goal."),
        ("MiniGrid-Empty-5x5-v0", 6, "You see a wall"),
        ("CliffWalking-v1", 4, "C  C  C"),
        ("FrozenLake-v1", 4, "[S]FFF"),
        ("Blackjack-v1", 2, "value 0 is "),
        ("CartPole-v1", 2, "value 3 is "),
        ("MountainCar-v0", 3, "value 1 is 0.00"),
        ("Acrobot-v1", 3, "value 5 is "),
    ],
)
def test_the_project_keeps_every_promise_and_says_what_there_is(
    here: Path, capsys: pytest.CaptureFixture[str], id: str, actions: int, text: str
) -> None:
    """Episodes are short: a promise is broken, or kept, within the first steps."""
    env = begun(id)
    said, info = start(env)
    assert len(info["actions"]) == actions and text in said
    source = Path("mine/__init__.py").read_text(encoding="utf-8")
    assert source.count("# EDIT") >= 5 and "my_env" not in source and "MyEnv" not in source
    code = main(["check-env", "mine", "--horizon", "20"])
    printed = capsys.readouterr()
    assert "mine:Mine: every promise is kept" in printed.out
    if id in ("MountainCar-v0", "Acrobot-v1"):
        assert code == 2 and "can be played, but not learned by reward" in printed.err
    else:
        assert code == 0, printed.err


def test_an_end_that_costs_counts_as_won_where_every_end_costs(here: Path) -> None:
    env = begun("CliffWalking-v1")
    start(env)
    for action in ["up", *["right"] * 11, "down"]:
        _, reward, terminated, _, info = env.step(env.legal_actions().index(action))
    assert (reward, terminated, info["success"]) == (-1.0, True, True)


def test_lasting_is_winning_where_every_end_pays(here: Path) -> None:
    env = begun("CartPole-v1")
    env.horizon = 4
    start(env)
    ends = [env.step(i % 2)[2:] for i in range(4)]
    assert [terminated for terminated, _, _ in ends] == [False, False, False, True]
    assert ends[-1][2]["success"] and ends[-1][2]["events"] == ["lasted"]


def test_a_falling_pole_is_no_win(here: Path) -> None:
    env = begun("CartPole-v1")
    start(env)
    while not env.done:
        _, _, terminated, _, info = env.step(0)
    assert terminated and not info["success"]


def test_rewards_on_the_way_are_paid_once(here: Path) -> None:
    env = begun("MiniGrid-DoorKey-5x5-v0")
    start(env)
    from mine.record import search  # type: ignore[import-not-found]

    actions = search(env)
    start(env)
    taken = actions[: actions.index("pick up") + 1]
    rewards = [env.step(env.legal_actions().index(action))[1] for action in [*taken, "drop", "pick up"]]
    assert rewards[len(taken) - 1 :] == [pytest.approx(0.3), 0.0, 0.0]


def test_the_bot_records_episodes_that_can_be_taught(here: Path) -> None:
    begun("MiniGrid-DoorKey-5x5-v0")
    words = [sys.executable, "-m", "mine.record", "--count", "2"]
    done = subprocess.run(words, text=True, capture_output=True, check=True)
    assert done.stdout.count(" steps") == 2
    episodes = [json.loads(line) for line in Path("demos.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [episode["success"] for episode in episodes] == [True, True]
    assert main(["run", "mine", "--teach.by", "log", "--teach.log", "demos.jsonl", "--dry-run"]) == 0


def test_its_own_test_passes(here: Path) -> None:
    begun("FrozenLake-v1")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "mine"]
    done = subprocess.run(words, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("id", "about"),
    [
        ("FrozenLak-v1", "gymnasium knows no 'FrozenLak-v1' (did you mean 'FrozenLake-v1'?)"),
        ("ALE/Pong-v5", "an id of another package is written package:Id"),
        ("nothing_here:Game-v0", "No module named 'nothing_here'"),
        ("Pendulum-v1", "wrap it to be Discrete"),
    ],
)
def test_what_cannot_be_begun_is_one_line(here: Path, capsys: Any, id: str, about: str) -> None:
    assert main(["init", "mine", "--gym", id]) == 2
    said = capsys.readouterr().err
    assert about in said and said.count("\n") == 1
    assert list(here.iterdir()) == []
