"""BabyAI in words: what the agent sees, remembers and is told, and the bot as its teacher."""

import importlib.util
import pickle
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.core.envs.base import SPLITS
from reflectrl.core.episodes import as_foreign, read_episodes
from reflectrl.core.teach import RecordEpisodes
from reflectrl.core.teach.recorded import replayed, tasks_of
from reflectrl.core.types import UserError
from reflectrl.tools.workbench.check import check_text_env
from reflectrl.wings.babyai.env import BabyAIEnv
from reflectrl.wings.babyai.view import ACTIONS, SIDES, Wanted, steps, wanted

if importlib.util.find_spec("minigrid") is None:
    pytest.skip("the extra babyai", allow_module_level=True)

from minigrid.manual_control import ManualControl  # it needs the extra, which is looked for above

LINE = re.compile(r"You (?:see|remember) an? (?:(\w+) )*\w+ (here|\d+ steps? \w+(?: and \d+ steps? \w+)?)[,.]")


def play(env, task, player):
    """The frames of an episode: text before each action, and the action."""
    env.reset(options={"task": task})
    frames = []
    while not env.done:
        frames.append((env.render(), player()))
        env.step(frames[-1][1])
    return frames


def expert(env):
    return lambda: env.teacher.expert_action(env)


@pytest.mark.parametrize("level", ["GoToLocal", "PickupLoc"])
def test_every_promise_is_kept(level):
    for guide in (False, True):
        sizes = {"train": 30, "validation": 5, "test": 5}
        assert check_text_env(lambda: BabyAIEnv(level, 16, guide=guide, **sizes)) == ["expert", "analyst"]  # noqa: B023


@pytest.mark.parametrize("level", ["GoToLocal", "PickupLoc", "PutNextLocalS5N3", "UnlockLocal", "GoToSeqS5R2"])
def test_the_bot_wins(level):
    env = BabyAIEnv(level)
    for task in env.tasks("test")[:5]:
        play(env, task, expert(env))
        assert env.success


@pytest.mark.parametrize("level", ["KeyInBox", "PutNextS5N2Carrying"])
def test_the_page_names_levels_that_the_bot_does_not_win(level):
    page = (Path(__file__).parents[3] / "docs/bridges.md").read_text(encoding="utf-8")
    env = BabyAIEnv(level, horizon=100)
    play(env, env.tasks("test")[0], expert(env))
    assert not env.success and f"`{level.replace('S5N2', '…')}`" in page.partition("It won none in")[2][:200]


def test_chance_seldom_wins():
    env, rng, wins = BabyAIEnv("GoToLocal"), np.random.default_rng(0), 0
    for task in env.tasks("test")[:20]:
        play(env, task, lambda: int(rng.integers(6)))
        wins += env.success
    assert 0 < wins < 12


def test_the_bot_goes_on_after_any_actions_and_after_an_opened_box():
    """Random play first, which opens boxes and carries things about: whoever teaches is asked there too."""
    env, rng = BabyAIEnv("PickupLoc"), np.random.default_rng(1)
    rescued = 0
    for task in env.tasks("train")[:10]:
        env.reset(options={"task": task})
        for _ in range(12):
            if not env.done:
                env.step(int(rng.integers(6)))
        while not env.done:
            env.step(env.teacher.expert_action(env))
        rescued += env.success
    assert rescued >= 7


def test_the_goal_and_the_objects_in_view_are_told_in_steps():
    env = BabyAIEnv("GoToLocal")
    for task in env.tasks("train")[:20]:
        for text, _ in play(env, task, expert(env)):
            goal, *lines = text.splitlines()
            assert goal.startswith("Goal: go to ") and lines[-1].startswith("Last: ")
            assert text.isascii() and all(LINE.match(line) for line in lines[:-1]), text


def test_what_is_told_is_where_it_is():
    """The places in the text lead to the objects of the world, seen or remembered."""
    env = BabyAIEnv("PickupLoc")
    for task in env.tasks("train")[:10]:
        env.reset(options={"task": task})
        while not env.done:
            at, forward = np.array(env.world.agent_pos), env.world.dir_vec
            right = env.world.right_vec
            for thing in env.view.things():
                cell = env.world.grid.get(*(at + thing.place[0] * forward + thing.place[1] * right))
                assert (cell.color, cell.type) == (thing.colour, thing.kind)
            env.step(env.teacher.expert_action(env))


def test_what_one_turns_away_from_is_remembered_and_without_memory_it_is_not():
    for memory in (True, False):
        env, found = BabyAIEnv("GoToLocal", memory=memory), 0
        for task in env.tasks("train")[:10]:
            env.reset(options={"task": task})
            seen = {thing.name for thing in env.view.things()}
            env.step(0)
            env.step(0)
            found += sum(f"You remember {name} " in env.render() for name in seen)
        assert bool(found) == memory


@pytest.mark.parametrize("level", ["GoToLocal", "PickupLoc"])
def test_the_guide_tells_the_place_that_the_analyst_names_and_what_stands_beside_the_agent(level):
    """The bot wins under it as well; what it says is free can be stepped onto, and what it names cannot."""
    env, found, stopped = BabyAIEnv(level, guide=True), 0, 0
    for task in env.tasks("train")[:20]:
        env.reset(options={"task": task})
        while not env.done:
            lines = dict(line.rstrip(".").split(": ", 1) for line in env.render().splitlines() if ": " in line)
            assert list(lines) == ["Goal", "Wanted", "Ahead", "Left", "Right", "Last"]
            assert re.match(r"[^:]+: (.+?)\. ", env.teacher.analyse(env))[1] == lines["Wanted"]
            found += lines["Wanted"] != "not seen yet"
            for name, way in (
                ("Ahead", env.world.dir_vec),
                ("Left", -env.world.right_vec),
                ("Right", env.world.right_vec),
            ):
                cell = env.world.grid.get(*(env.world.agent_pos + way))
                assert lines[name] == (
                    "free" if cell is None else "a wall" if cell.type == "wall" else f"a {cell.color} {cell.type}"
                )
                stopped += cell is not None
            env.step(env.teacher.expert_action(env))
        assert env.success
    assert found > 20 and stopped > 20


def test_sides_are_those_of_the_start_however_one_turns():
    env = BabyAIEnv("PickupLoc")
    task = next(task for task in env.tasks("train") if env.reset(options={"task": task})[0].find("behind you") > 0)
    env.reset(options={"task": task})
    before = {thing.name: thing.sides for thing in env.view.things()}
    for action in (0, 0, 2, 1):
        env.step(action)
    after = {thing.name: thing.sides for thing in env.view.things()}
    assert before and all(after[name] == sides for name, sides in before.items())
    assert ", at first " in env.render()


def test_the_analysis_speaks_of_what_the_text_shows_and_names_the_next_action():
    env = BabyAIEnv("GoToLocal")
    told = 0
    for task in env.tasks("train")[:20]:
        env.reset(options={"task": task})
        while not env.done:
            said, text = env.teacher.analyse(env), env.render()
            where = re.match(r"[^:]+: (.+?)\. ", said)[1]
            assert where == "not seen yet" or f" {where}." in text
            told += where != "not seen yet"
            assert said.endswith(f"Next: {ACTIONS[env.teacher.expert_action(env)]}.") and "\n" not in said
            env.step(env.teacher.expert_action(env))
    assert told > 20


def test_tasks_are_seeds_in_splits_of_their_own_and_the_same_in_a_copy():
    env = BabyAIEnv("GoToLocal", train=50, validation=20, test=20)
    starts = {split: {env.reset(options={"task": task})[0] for task in env.tasks(split)} for split in SPLITS}
    assert not starts["train"] & starts["test"] and not starts["train"] & starts["validation"]
    env.reset(options={"task": env.tasks("test")[0]})
    env.step(env.teacher.expert_action(env))
    other = pickle.loads(pickle.dumps(env))  # noqa: S301
    assert other.observe() == env.observe()
    assert other.teacher.expert_action(other) == env.teacher.expert_action(env)


def test_reward_is_sparse_or_the_packages_and_the_horizon_is_the_levels_or_ours():
    for reward, horizon in (("sparse", 0), ("timed", 0), ("sparse", 3)):
        env = BabyAIEnv("GoToLocal", reward=reward, horizon=horizon)
        first = BabyAIEnv("GoToLocal")
        task = max(first.tasks("train")[:5], key=lambda task: len(play(first, task, expert(first))))
        env.reset(options={"task": task})
        paid = []
        while not env.done:
            paid.append(env.step(env.teacher.expert_action(env))[1])
        if horizon:
            assert len(paid) == 3 and env.done and not env.success and sum(paid) == 0
        else:
            assert env.horizon == 64 and paid[:-1] == [0] * (len(paid) - 1)
            assert paid[-1] == pytest.approx(1.0 if reward == "sparse" else 1 - 0.9 * len(paid) / 64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"level": "GoToLocl"}, "did you mean 'GoToLocal'"),
        ({"reward": "dense"}, "sparse or timed"),
        ({"horizon": -1}, "at least"),
        ({"test": 0}, "at least 1"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(arguments, message):
    with pytest.raises(UserError, match=message) as caught:
        BabyAIEnv(**arguments)
    assert "\n" not in str(caught.value)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(UserError, match=r"pip install '\.\[babyai\]'"):
        BabyAIEnv()


def test_the_command_line_finds_the_environment_and_its_bot(command):
    done = command("play", "babyai", "--player", "expert", "--env.level", "PickupLoc")
    assert done.returncode == 0 and "Goal: pick up" in done.stdout and done.stderr == ""


def test_keys_pressed_in_minigrids_own_window_are_recorded(tmp_path):
    text = BabyAIEnv("GoToLocal")
    env = RecordEpisodes(gym.make("BabyAI-GoToLocal-v0"), tmp_path / "goto.jsonl", text)
    hand, names = ManualControl(env), ("left", "right", "up", "pageup", "pagedown", "space")
    hand.reset()
    while env.recorder.count < 2:  # after each win the window begins anew
        hand.key_handler(SimpleNamespace(key=names[text.teacher.expert_action(text)]))
    env.close()
    episodes = list(read_episodes(tmp_path / "goto.jsonl"))
    assert [episode.task for episode in episodes] == text.tasks("train")[:2]
    assert all(episode.success and episode.total_reward == 1 for episode in episodes)
    replays = [replayed(BabyAIEnv("GoToLocal"), as_foreign(episode), tasks_of(text)) for episode in episodes]
    assert [replay.steps for replay in replays] == [episode.steps for episode in episodes]


colours, kinds = (
    st.sampled_from(["", "red", "green", "blue", "purple", "yellow", "grey"]),
    st.sampled_from(["ball", "box", "key", "door", "object"]),
)


@given(st.lists(st.builds(Wanted, colours, kinds, st.sampled_from(["", *SIDES])), min_size=1, max_size=4))
def test_missions_are_read_as_they_are_written(described):
    mission = " and ".join(f"go to {'the' if i % 2 else 'a'} {one.name}" for i, one in enumerate(described))
    assert wanted(mission) == described


@given(st.integers(-9, 9), st.integers(-9, 9))
def test_places_can_be_read_back(ahead, aside):
    signs = {"forward": (1, 0), "back": (-1, 0), "left": (0, -1), "right": (0, 1)}
    read = np.zeros(2, int)
    for count, way in re.findall(r"(\d+) steps? (\w+)", steps((ahead, aside))):
        read += int(count) * np.array(signs[way])
    assert tuple(read) == (ahead, aside)
