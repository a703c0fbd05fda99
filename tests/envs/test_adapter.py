"""Any discrete gymnasium environment as text; the examples."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import gymnasium as gym
import pytest
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from reflectrl.envs.adapter import GymTextEnv, plain
from reflectrl.envs.base import SPLITS
from reflectrl.envs.check import check_text_env
from reflectrl.plugins import resolve
from reflectrl.types import UserError

ROOT = Path(__file__).parents[2]
TAXI = ("south", "north", "east", "west", "pickup", "dropoff")
LAKE = ("left", "down", "right", "up")


@pytest.fixture
def examples(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.mark.parametrize(
    "make",
    [
        partial(GymTextEnv, "Taxi-v4", TAXI, train=20, validation=5, test=5),
        partial(GymTextEnv, "FrozenLake-v1", LAKE, 30, history=True, settings={"desc": ["SFF", "FHF", "FFG"]}),
    ],
)
@pytest.mark.filterwarnings("ignore:all tasks begin with the same text")
def test_an_adapted_environment_keeps_the_promises(make):
    check_text_env(make)


def test_equal_starts_in_every_split_are_pointed_out():
    with pytest.warns(UserWarning, match="begin with the same text"):
        check_text_env(partial(GymTextEnv, "CliffWalking-v1", ("up", "right", "down", "left"), 30))


def test_it_plays_what_gymnasium_plays():
    env = GymTextEnv("FrozenLake-v1", LAKE)
    raw = gym.make("FrozenLake-v1", render_mode="ansi")
    for task in env.tasks("test")[:20]:
        env.reset(options={"task": task})
        raw.reset(seed=task.payload["seed"])
        while not env.done:
            index = int(env.np_random.integers(4))
            _, reward, terminated, _, info = env.step(index)
            _, their_reward, their_end, _, _ = raw.step(index)
            assert (reward, terminated, env.success) == (their_reward, their_end, their_reward > 0)
            assert env.state() == f"{plain(raw.render()).rstrip()}\nLast: {LAKE[index]}\n"
            assert info["events"] == (["won"] if their_reward > 0 else [])


def test_highlights_become_brackets():
    assert plain("\x1b[41mS\x1b[0mFF\n\x1b[1;32mG\x1b[0m") == "[S]FF\n[G]"


def test_the_action_mask_decides_what_is_legal():
    env = GymTextEnv("Taxi-v4", TAXI)
    for task in env.tasks("train")[:30]:
        _, info = env.reset(options={"task": task})
        raw = env.wrapped
        assert info["actions"] == [name for name, legal in zip(TAXI, raw.action_mask(raw.s), strict=True) if legal]


def test_rewards_are_scaled_and_past_texts_kept():
    env = GymTextEnv("Taxi-v4", TAXI, scale=20, rules="Drive.\n", history=True)
    env.reset(options={"task": env.tasks("train")[0]})
    first = env.state().split("Last")[0].rstrip()
    action = env.legal_actions()[0]
    assert env.step(0)[1] == -1 / 20
    assert env.observe().history == f"Drive.\n{first}\n> {action}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Nowhere-v0", ("a",)), "gymnasium cannot make 'Nowhere-v0'"),
        (("Blackjack-v1", ("stick", "hit")), "Blackjack-v1: has no text rendering"),
        (("Taxi-v4", ("a", "b")), "Taxi-v4: has 6 actions, and needs as many different names"),
        (("FrozenLake-v1", ("a", "b", "a", "c")), "needs as many different names"),
    ],
)
def test_what_cannot_be_adapted_is_named_in_one_line(arguments, message):
    with pytest.raises(UserError, match=message) as caught:
        GymTextEnv(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["add_up:AddUp", "blackjack:BlackjackEnv", "guess_number:GuessEnv", "frozen_maps:FrozenMaps"]
)
def test_the_examples_load_as_plug_ins_and_pass_the_checker(examples, name):
    made = resolve("envs", f"examples.{name}")
    check_text_env(made)
    env = made()
    assert env.tasks("train") and env.tasks("test")


@pytest.mark.parametrize(("script", "end"), [("blackjack.py", "lost"), ("guess_number.py", "won")])
def test_the_examples_run_as_scripts(script, end):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / script)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip().endswith(end)


def test_the_smallest_environment_has_at_most_30_lines():
    assert len((ROOT / "examples" / "add_up.py").read_text(encoding="utf-8").splitlines()) <= 30


def test_no_two_tasks_share_a_map_and_each_can_be_crossed(examples):
    env = resolve("envs", "examples.frozen_maps:FrozenMaps")()
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
    env = resolve("envs", "examples.blackjack:BlackjackEnv")()
    results = set()
    for task in env.tasks("train")[:40]:
        env.reset(options={"task": task})
        _, reward, terminated, _, _ = env.step(0)
        assert terminated and env.success == (reward > 0)
        results.add(env.success)
    assert results == {True, False}


def test_the_guessing_expert_halves_the_range(examples):
    env = resolve("envs", "examples.guess_number:GuessEnv")()
    for task in env.tasks("test"):
        env.reset(options={"task": task})
        steps = 0
        while not env.done:
            env.step(env.teacher.expert_action(env))
            steps += 1
        assert env.success and steps <= 4
