"""FrozenLake: gymnasium's transitions, honest splits, an optimal expert, an analyst that says what the text shows."""

import re
from collections import defaultdict
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.core.plugins import names, resolve
from reflectrl.core.types import Task, UserError
from reflectrl.tools.workbench.check import check_text_env
from reflectrl.wings.frozenlake.env import FrozenLakeEnv
from reflectrl.wings.frozenlake.world import ACTIONS, STANDARD, Lake, restarted

SPLITS = ("train", "validation", "test")


def gym_table(rows, slippery):
    lake = gym.make("FrozenLake-v1", desc=list(rows), map_name=None, is_slippery=slippery).unwrapped
    assert tuple(ACTIONS) == ("left", "down", "right", "up")  # gymnasium's actions 0..3
    return lake.P


def summed(pairs):
    table = defaultdict(float)
    for probability, cell in pairs:
        table[cell] += probability
    return {cell: pytest.approx(p) for cell, p in table.items()}


@pytest.mark.parametrize("slippery", [False, True])
@pytest.mark.parametrize("name", STANDARD)
def test_transition_probabilities_equal_gymnasiums(name, slippery):
    lake, width = Lake(STANDARD[name], slippery), len(STANDARD[name])
    table = gym_table(STANDARD[name], slippery)
    for row, column in lake.ice:
        for index, action in enumerate(ACTIONS):
            ours = lake.outcomes((row, column), action)
            theirs = [(p, divmod(state, width)) for p, state, _, _ in table[row * width + column][index]]
            assert summed((1 / len(ours), cell) for cell in ours) == summed(theirs)


@pytest.mark.parametrize("name", STANDARD)
def test_every_step_ends_where_and_as_gymnasiums_does(name):
    env, width = FrozenLakeEnv(name), len(STANDARD[name])
    table = gym_table(STANDARD[name], slippery=False)
    for row, column in Lake(STANDARD[name]).ice:
        task = Task("t", "frozenlake", {"map": list(restarted(STANDARD[name], (row, column)))})
        for index in range(4):
            env.reset(options={"task": task})
            text, reward, terminated, truncated, info = env.step(index)
            [(_, state, pay, over)] = table[row * width + column][index]
            assert (terminated, truncated, env.success) == (over, False, pay == 1)
            assert reward == (1.0 if pay else -1.0 if over else -0.01)
            assert info["events"] == (["goal"] if pay else ["hole"] if over else [])
            letters = text.split("Last")[0].split()
            assert letters.index("A") == state


def test_slippery_steps_reach_each_of_the_three_sides_equally_often():
    env, ends = FrozenLakeEnv(slippery=True), defaultdict(int)
    task = Task("t", "frozenlake", {"map": ["FFFF", "FSFF", "FFFF", "FFFG"]})
    for seed in range(900):
        env.reset(seed=seed, options={"task": task})
        ends[env.step(ACTIONS.index("right"))[0].split().index("A")] += 1
    assert set(ends) == {1, 6, 9}  # up, right, down of cell 5
    assert all(240 < count < 360 for count in ends.values())  # 300 expected, 4 standard deviations


def test_the_state_text_has_one_spaced_letter_per_cell_and_the_last_action():
    env = FrozenLakeEnv()
    env.reset(options={"task": Task("t", "frozenlake", {"map": list(STANDARD["4x4"])})})
    assert env.observe().history == ""
    assert env.observe().state == " A F F F\n F H F H\n F F F H\n H F F G\nLast: none\n"
    text, *_ = env.step(ACTIONS.index("down"))
    assert text == " S F F F\n A H F H\n F F F H\n H F F G\nLast: down from row 0 column 0\n"


def test_the_view_around_puts_the_agent_in_the_middle_and_shows_the_whole_lake():
    env = FrozenLakeEnv("random", size=2, holes=0, train=1, validation=1, test=1, view="around")
    env.reset(options={"task": Task("t", "frozenlake", {"map": ["SF", "FG"]})})
    assert env.observe().state == " W W W\n W A F\n W F G\nLast: none\n"
    assert env.step(ACTIONS.index("right"))[0] == " W W W\n S A W\n F G W\nLast: right from row 0 column 0\n"


def test_history_keeps_rules_and_past_maps():
    env = FrozenLakeEnv(rules=True, history=True, slippery=True)
    env.reset(seed=1, options={"task": Task("t", "frozenlake", {"map": list(STANDARD["4x4"])})})
    rules, first = env.observe().history, env.observe().state.split("Last")[0]
    assert "slippery" in rules and "slippery" not in _rules_of(FrozenLakeEnv(rules=True))
    env.step(0)
    assert env.observe().history == f"{rules}{first}> left\n"


def _rules_of(env):
    env.reset(seed=0)
    return env.observe().history


@pytest.mark.parametrize(("maps", "starts"), [("4x4", 11), ("8x8", 53)])
def test_the_standard_maps_splits_are_disjoint_starts_and_cover_what_there_is(maps, starts):
    env = FrozenLakeEnv(maps)
    ids = [task.id for split in SPLITS for task in env.tasks(split)]
    assert len(ids) == len(set(ids)) == starts


def test_another_split_seed_deals_the_starts_differently():
    first, second = FrozenLakeEnv("8x8"), FrozenLakeEnv("8x8", split_seed=1)
    assert first.tasks("test") != second.tasks("test")
    assert first.tasks("test") == FrozenLakeEnv("8x8").tasks("test")


@pytest.mark.parametrize("size", [4, 6])
def test_random_maps_are_distinct_across_splits_and_solvable_within_the_horizon(size):
    env = FrozenLakeEnv("random", size=size, train=300, validation=50, test=100)
    maps = [tuple(task.payload["map"]) for split in SPLITS for task in env.tasks(split)]
    assert len(set(maps)) == len(maps) == 450
    for rows in maps:
        assert 0 < bfs_distances(gym_table(rows, False))[0] <= env.horizon


def test_more_training_maps_leave_the_test_maps_as_they_are():
    small, large = FrozenLakeEnv("random", train=10, test=30), FrozenLakeEnv("random", train=100, test=30)
    assert small.tasks("test") == large.tasks("test")
    assert large.tasks("train")[:10] == small.tasks("train")


def bfs_distances(table):
    """Fewest moves to the goal per state, from gymnasium's table alone, by relaxation."""
    distance = {state: float("inf") for state in table}
    for _ in table:
        for state, actions in table.items():
            for [(_, near, pay, over)] in actions.values():
                if pay:
                    distance[state] = 1
                elif not over:
                    distance[state] = min(distance[state], 1 + distance[near])
    return distance


def test_the_expert_takes_the_fewest_possible_moves_from_every_start():
    for maps in STANDARD:
        env, width = FrozenLakeEnv(maps), len(STANDARD[maps])
        shortest = bfs_distances(gym_table(STANDARD[maps], False))
        for task in (task for split in SPLITS for task in env.tasks(split)):
            env.reset(options={"task": task})
            row, column = Lake(tuple(task.payload["map"])).start
            steps = 0
            while not env.done:
                env.step(env.teacher.expert_action(env))
                steps += 1
            assert env.success and steps == shortest[row * width + column]


def chances(table, policy=None):
    """Probability of ever reaching the goal: of a policy, or of the best one (undiscounted value iteration)."""
    worth = np.zeros(len(table))
    for _ in range(5000):
        q = {
            s: [sum(p * (pay if over else worth[near]) for p, near, pay, over in actions[a]) for a in range(4)]
            for s, actions in table.items()
        }
        new = np.array([max(q[s]) if policy is None else q[s][policy(s)] for s in table])
        if np.abs(new - worth).max() < 1e-7:
            break
        worth = new
    return worth


def test_the_slippery_expert_is_as_likely_as_can_be_to_reach_the_goal():
    lake, table = Lake(STANDARD["4x4"], slippery=True), gym_table(STANDARD["4x4"], True)
    on_ice = {row * 4 + column for row, column in lake.ice}

    def policy(state):
        return ACTIONS.index(lake.best_action(divmod(state, 4))) if state in on_ice else 0

    assert chances(table, policy) == pytest.approx(chances(table), abs=1e-4)
    assert chances(table)[0] == pytest.approx(14 / 17, abs=1e-4)  # the known optimum of the 4x4 lake, 0.8235


@given(seed=st.integers(0, 2**32), moves=st.lists(st.integers(0, 3), max_size=12), slippery=st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_analysis_is_a_function_of_the_text(seed, moves, slippery):
    """A second lake, rebuilt from what the text shows, is analysed alike: nothing hidden can be in the analysis."""
    env = FrozenLakeEnv("8x8", slippery=slippery)
    env.reset(seed=seed)
    for move in moves:
        env.step(move)
        if env.done:
            return
    state, analysis = env.state(), env.teacher.analyse(env)
    twin = rebuilt(state, slippery)
    assert twin.teacher.analyse(twin) == analysis
    assert f"Next {ACTIONS[env.teacher.expert_action(env)]}." in analysis


def rebuilt(state, slippery):
    """An environment in the same situation, made from the words of the state alone."""
    *rows, last = state.strip("\n").split("\n")
    letters = [row.split() for row in rows]
    here = next((r, row.index("A")) for r, row in enumerate(letters) if "A" in row)
    flat = tuple("".join(row).replace("A", "F").replace("S", "F") for row in letters)
    env = FrozenLakeEnv(slippery=slippery)
    words = last.split()
    before = (int(words[4]), int(words[6])) if len(words) > 2 else here
    task = Task("t", "frozenlake", {"map": list(restarted(flat, before))})
    for seed in range(200):
        env.reset(seed=seed, options={"task": task})
        if words[1] == "none":
            return env
        env.step(ACTIONS.index(words[1]))
        if not env.done and env.state().split("Last")[0].split().index("A") == here[0] * len(flat) + here[1]:
            return env
    raise AssertionError(f"no slip leads to {state}")


def said(moves, start=(0, 0)):
    env = FrozenLakeEnv()
    env.reset(options={"task": Task("t", "frozenlake", {"map": list(restarted(STANDARD["4x4"], start))})})
    for move in moves:
        env.step(ACTIONS.index(move))
    return env.teacher.analyse(env)


def test_the_analyst_names_the_route_the_holes_and_what_the_last_action_did():
    assert said([]) == (
        "Agent row 0 column 0, goal row 3 column 3. Holes beside: none. Route down 2 right 1 down 1 right 2. Next down."
    )
    assert "Holes beside: right." in said(["down"]) and "Last move down helped." in said(["down"])
    assert "Last move left met the edge and changed nothing." in said(["left"])
    assert "Last move up was a mistake, turn back. Next down." in said(["down", "up"])


def test_the_analyst_writes_out_the_search_wave_by_wave():
    """On gymnasium's 4x4 map: SFFF, FHFH, FFFH, HFFG."""
    env = FrozenLakeEnv(analysis="waves")
    env.reset(options={"task": Task("t", "frozenlake", {"map": list(STANDARD["4x4"])})})
    assert env.teacher.analyse(env) == "d4, c4, c3 b4, c2 b3, c1 a3, b1 d1 a2, a1. Next down."
    env.step(ACTIONS.index("down"))
    assert env.teacher.analyse(env) == "d4, c4, c3 b4, c2 b3, c1 a3, b1 d1 a2. Next down."


@pytest.mark.parametrize(
    "make",
    [
        FrozenLakeEnv,
        partial(FrozenLakeEnv, "random", train=20, validation=5, test=5, analysis="waves"),
        partial(FrozenLakeEnv, "8x8", rules=True, history=True),
        partial(FrozenLakeEnv, "8x8", slippery=True),
        partial(FrozenLakeEnv, "4x4", slippery=True, history=True),
        partial(FrozenLakeEnv, "random", train=40, validation=10, test=10, size=5, history=True),
        partial(FrozenLakeEnv, "random", train=40, validation=10, test=10, size=4, view="around", slippery=True),
    ],
)
def test_it_keeps_the_promises_of_an_environment(make):
    check_text_env(make)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"maps": "4x5"}, "frozenlake: unknown maps '4x5' (did you mean '4x4'?)"),
        ({"maps": "random", "holes": 1.0}, "holes in [0, 1), not 6 and 1.0"),
        ({"maps": "random", "size": 1}, "size must be in 2..16"),
        ({"slippery": True, "analysis": "waves"}, "'waves' is a search on dry ice"),
        ({"analysis": "wave"}, "unknown analysis 'wave' (did you mean 'waves'?)"),
        ({"view": "arround"}, "unknown view 'arround' (did you mean 'around'?)"),
        ({"train": -1}, "split sizes must be positive"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(UserError, match=re.escape(message)):
        FrozenLakeEnv(**arguments)


def test_asking_for_more_tasks_than_there_are_says_how_many_there_are():
    with pytest.raises(UserError, match="together at most 11"):
        FrozenLakeEnv(train=20).tasks("train")
    with pytest.raises(UserError, match="cannot draw 20 different 2x2 maps for train: found"):
        FrozenLakeEnv("random", size=2, train=20).tasks("train")


def test_it_is_found_by_its_name():
    assert "frozenlake" in names("envs")
    assert resolve("envs", "frozenlake")().tasks("train")
