"""`init --gym ID`: a project that plays a gymnasium environment in words, and can be taught by a searching bot."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
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
        ("MountainCar-v0", 3, "value 1 is 0"),
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


WALKS = """
import gymnasium as gym
from gymnasium.envs.registration import register


class Walk(gym.Env):
    '''A walk on a line from its middle: a loss at the left end, a goal at the right end, a limit of time.'''

    action_space, observation_space = gym.spaces.Discrete(2), gym.spaces.Discrete(100)

    def __init__(self, render_mode=None, length=7, step=0.0, loss=0.0, goal=1.0, limit=0, late="", key=""):
        self.length, self.paid, self.limit, self.late, self.key = length, (loss, step, goal), limit, late, key

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.steps = 3, 0
        return self.at, {}

    def step(self, action):
        self.at, self.steps = self.at + (1 if action else -1), self.steps + 1
        end = -1 if self.at == 0 else int(self.at == self.length - 1)
        late = not end and self.steps == self.limit
        info = {self.key: end > 0} if self.key else {"TimeLimit.truncated": late} if self.late == "old" else {}
        terminated = bool(end) or (late and self.late != "new")
        return self.at, self.paid[end + 1], terminated, late and self.late == "new", info


register("Walk-v0", entry_point=Walk, kwargs={})
"""


def begun_walk(**world: Any) -> Any:
    """Begin a project in a world like `Walk`, and return its environment."""
    gym.registry.pop("Walk-v0", None)
    Path("mine_walks.py").write_text(WALKS.replace("kwargs={}", f"kwargs={world!r}"), encoding="utf-8")
    return begun("mine_walks:Walk-v0")


LONG = 60
"""A length at which random play never sees the goal."""


@pytest.mark.parametrize(
    ("world", "loss", "goal"),
    [
        ({"loss": -1.0}, False, True),
        ({"loss": -1.0, "length": LONG}, False, True),
        ({"step": -0.1, "loss": -1.0}, False, True),
        ({"step": -0.1, "loss": -1.0, "goal": -0.1, "length": LONG}, False, True),
        ({"step": -1.0, "loss": -5.0, "goal": 0.0, "length": LONG}, False, True),
        ({"step": -0.01, "loss": -0.01, "goal": 1.0}, False, True),
        ({"step": -1.0, "loss": -2.0, "goal": -0.5}, False, True),
        ({"step": 1.0, "loss": 1.0, "goal": 10.0}, False, True),
        ({"step": 1.0, "loss": -100.0, "goal": 1.0, "length": LONG}, False, False),
        ({"step": 0.1, "loss": 0.1, "goal": 0.1, "length": LONG}, False, False),
        ({"step": -1.0, "loss": -1.0, "goal": -1.0, "key": "is_success"}, False, True),
        ({"loss": 1.0, "key": "success"}, False, True),
    ],
    ids=str,
)
def test_an_end_that_pays_less_than_other_steps_is_a_loss(
    here: Path, capsys: Any, world: dict[str, Any], loss: bool, goal: bool
) -> None:
    env = begun_walk(**world)
    said = capsys.readouterr().out
    assert "of random play, steps paid" in said and f"success means that {env.success_rule.split(' (')[0]}" in said
    for action, won in ((0, loss), (1, goal)):
        start(env)
        while not env.done:
            info = env.step(action)[4]
        assert info["success"] == won, (world, action)


@pytest.mark.parametrize(("late", "truncated"), [("new", True), ("old", True), ("never", False)])
def test_an_end_by_a_limit_of_time_is_no_win_where_every_step_costs(here: Path, late: str, truncated: bool) -> None:
    """Also where the limit is reported in the way of the older interface, or as any other end."""
    world = {"step": -1.0, "loss": -1.0, "goal": 0.0, "length": LONG, "limit": 2, "late": late}
    env = begun_walk(**world)
    start(env)
    env.step(0)
    _, _, terminated, cut, info = env.step(1)
    assert (terminated, cut, info["success"]) == (not truncated, truncated, False)


def test_where_lasting_wins_the_limit_of_the_world_wins_as_well(here: Path) -> None:
    world = {"step": 1.0, "loss": 0.0, "length": LONG, "limit": 12, "late": "new"}
    env = begun_walk(**world)
    start(env)
    while not env.done:
        _, _, terminated, truncated, info = env.step(1)
    assert (env.elapsed, terminated, truncated, info["success"]) == (12, True, False, True)


def test_a_world_that_prints_its_drawing_is_put_into_words(here: Path) -> None:
    source = WALKS.replace(
        "action_space, obs", 'metadata = {"render_modes": ["ansi"], "render_fps": 1}\n    action_space, obs'
    )
    source = source.replace("    def reset", "    def render(self):\n        print(self.at)\n\n    def reset")
    gym.registry.pop("Walk-v0", None)
    Path("mine_walks.py").write_text(source, encoding="utf-8")
    assert start(begun("mine_walks:Walk-v0"))[0].startswith("Observation: 3.")


def test_the_actions_of_a_grid_with_moving_obstacles_have_their_names_and_collisions_lose(here: Path) -> None:
    env = begun("MiniGrid-Dynamic-Obstacles-5x5-v0")
    _, info = start(env)
    assert info["actions"] == ["turn left", "turn right", "go forward"]
    lost = 0
    for task in env.tasks("train")[:20]:
        env.reset(seed=0, options={"task": task})
        while not env.done:
            _, reward, _, _, info = env.step(int(env.np_random.integers(3)))
        lost += reward < 0
        assert not (reward < 0 and info["success"])
    assert lost > 10


def test_done_stays_legal_where_it_wins(here: Path) -> None:
    assert "done" in start(begun("MiniGrid-GoToDoor-5x5-v0"))[1]["actions"]


def test_wins_that_are_penalised_are_pointed_out_by_check_env_and_by_a_run(here: Path, capsys: Any) -> None:
    """As in projects of earlier versions, whose class says that any end is won."""
    begun("MiniGrid-Dynamic-Obstacles-5x5-v0")
    source = Path("mine/__init__.py")
    source.write_text(source.read_text(encoding="utf-8").replace("return reward > 0", "return True"), encoding="utf-8")
    for name in [name for name in sys.modules if name.startswith("mine")]:
        del sys.modules[name]
    capsys.readouterr()
    assert main(["check-env", "mine", "--horizon", "20"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "won episodes ended with a reward below 0; if that is losing" in said
    assert main(["run", "mine", "--arms", "random", "--no-check", "--eval.episodes", "30"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "note: some episodes count as won although their last step was penalised" in said
    rows = json.loads(Path("runs/mine/results.json").read_text(encoding="utf-8"))["rows"]
    assert all(0.5 < row["penalised"] <= row["success"] for row in rows)
    assert "may be losses" in Path("runs/mine/report.html").read_text(encoding="utf-8")


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
