"""DangerousTaxi: gymnasium's transitions and rewards, the danger rule, stages, honest splits, expert and analyst."""

from collections import deque
from functools import partial

import gymnasium as gym
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.core.config import TeachConfig
from reflectrl.core.envs import make
from reflectrl.core.plugins import names, resolve
from reflectrl.core.teach import demonstrations, teach
from reflectrl.core.types import Task, UserError
from reflectrl.tools.workbench.check import check_text_env
from reflectrl.wings.taxi.env import TaxiEnv
from reflectrl.wings.taxi.world import ABOARD, ACTIONS, CELLS, SIZE, STANDARD, City, Ride, random_city

SPLITS = ("train", "validation", "test")
GYM = gym.make("Taxi-v4").unwrapped
RIDES = [Ride(*GYM.decode(state)) for state in range(500)]


def started(ride, stage="full", **settings):
    env = TaxiEnv(**settings)
    env.reset(options={"task": Task("t", "taxi", {"ride": list(ride)}, "train", stage)})
    return env


def after(city, ride, action, env=TaxiEnv()):  # noqa: B008
    """The ride that an action leads to; the same ride where it achieves nothing."""
    env.reset(seed=0)
    env.set_state((city, ride, None, None, False, ""))
    env.apply(action)
    return env.ride


def drawn(env):
    """The map that is shown."""
    return env.state().partition("Last")[0]


def play(env, actions):
    for action in actions:
        result = env.step(ACTIONS.index(action))
    return result


# ---- rules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", range(6), ids=ACTIONS)
def test_all_500_states_move_as_in_gymnasium_and_pay_a_twentieth(index):
    env = TaxiEnv(milestone=False)
    for state, ride in enumerate(RIDES):
        [(_, near, pay, over)] = GYM.P[state][index]
        env.reset(options={"task": Task("t", "taxi", {"ride": list(ride)})})
        _, reward, terminated, truncated, info = env.step(index)
        now = env.ride
        assert (GYM.encode(*now), truncated) == (near, False)
        illegal = near == state and not over  # the danger rule is ours; everything else is gymnasium's
        delivered = over and pay == 20
        assert (terminated, env.success) == (illegal or over, delivered)
        assert reward == (-10 / 20 if illegal else pay / 20)
        assert ("illegal" in info["events"], "delivered" in info["events"]) == (illegal, delivered)


def test_the_actions_are_in_gymnasiums_order():
    assert ACTIONS == ("south", "north", "east", "west", "pickup", "dropoff")


def test_gymnasiums_penalised_actions_are_all_illegal_and_so_are_bumps():
    penalised = sum(GYM.P[s][a][0][2] == -10 for s in range(500) for a in range(6))
    bumps = sum(GYM.P[s][a][0][1] == s and GYM.P[s][a][0][2] == -1 for s in range(500) for a in range(4))
    assert sum(after(STANDARD, ride, action) == ride for ride in RIDES for action in ACTIONS) == penalised + bumps


def test_the_first_pickup_costs_no_step_on_request():
    env = TaxiEnv(free_pickup=True)
    env.reset(options={"task": started(Ride(0, 0, 0, 1)).task})
    assert play(env, ["pickup"])[1] == 1.0
    assert env.step(ACTIONS.index("dropoff"))[1] == env.step(ACTIONS.index("pickup"))[1] == -1 / 20


def test_the_first_pickup_pays_the_milestone_once():
    ride = Ride(0, 0, 0, 1)
    env = started(ride)
    assert play(env, ["pickup"])[1] == pytest.approx(19 / 20)
    assert env.step(ACTIONS.index("dropoff"))[1] == -1 / 20  # back at the stop where the passenger waited
    assert env.step(ACTIONS.index("pickup"))[1] == -1 / 20
    assert play(started(ride, milestone=False), ["pickup"])[1] == -1 / 20
    assert play(started(Ride(0, 0, ABOARD, 1), stage="dropoff"), ["dropoff", "pickup"])[1] == -1 / 20


def test_the_pickup_stage_is_won_by_the_pickup_and_the_full_one_is_not():
    for stage, won in (("pickup", True), ("full", False)):
        env = started(Ride(0, 0, 0, 1), stage)
        _, _, terminated, _, info = play(env, ["pickup"])
        assert (terminated, env.success, info["events"]) == (won, won, ["pickup"])


def test_dropoff_tasks_begin_with_the_passenger_aboard_and_are_won_by_the_delivery():
    for maps in ("standard", "random"):
        env = TaxiEnv(maps, train=40, validation=10, test=10)
        for task in env.tasks("train", "dropoff"):
            text, _ = env.reset(options={"task": task})
            assert "X" in text and "P" not in text.split("Last")[0]
            while not env.done:
                env.step(env.teacher.expert_action(env))
            assert env.success


def test_a_wrong_stop_is_no_end_and_its_event_is_named():
    env = started(Ride(0, 4, ABOARD, 0), "dropoff")
    _, reward, terminated, _, info = play(env, ["dropoff"])
    assert (reward, terminated, info["events"]) == (-1 / 20, False, ["wrong stop"])


def test_the_horizon_truncates_without_success():
    env = started(Ride(0, 0, 1, 2))
    for step in range(20):
        _, _, terminated, truncated, _ = env.step(ACTIONS.index("south" if step % 2 == 0 else "north"))
        assert not terminated and truncated == (step == 19)
    assert env.done and not env.success
    assert (TaxiEnv().horizon, TaxiEnv("random").horizon, TaxiEnv(horizon=7).horizon) == (20, 30, 7)


# ---- text --------------------------------------------------------------------------------------------------------


def test_the_map_is_drawn_with_gymnasiums_walls():
    theirs = [line.decode() for line in (b"".join(row) for row in GYM.desc)]
    plain = [line.translate(str.maketrans("RGYB", "    ")) for line in theirs]
    env = started(Ride(2, 2, 0, 3))
    lines = drawn(env).splitlines()
    assert [line.translate(str.maketrans("TPD", "   ")) for line in lines] == plain
    assert lines[1][1] == "P" and lines[3][5] == "T" and lines[5][7] == "D"
    assert env.observe().state == drawn(env) + "Last: none\n"


def test_the_taxi_letter_tells_whether_it_is_empty_beside_the_passenger_or_occupied():
    assert "O" in drawn(started(Ride(0, 0, 0, 1))) and "X" in drawn(started(Ride(0, 0, ABOARD, 1)))
    assert "T" in drawn(started(Ride(0, 1, 0, 1)))


def test_rules_and_history_stand_before_the_state():
    env = started(Ride(2, 2, 0, 3), rules=True, history=True)
    rules, first = env.observe().history, drawn(env)
    assert "ends the ride" in rules and rules.endswith("\n")
    play(env, ["west"])
    assert env.observe().history == f"{rules}{first}> west\n"
    assert env.observe().state.endswith("Last: west\n")


# ---- tasks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", TaxiEnv.stages)
@pytest.mark.parametrize("maps", ["standard", "random"])
def test_splits_are_disjoint_and_each_start_is_listed_once(maps, stage):
    env = TaxiEnv(maps)
    ids = [task.id for split in SPLITS for task in env.tasks(split, stage)]
    starts = [str(task.payload) for split in SPLITS for task in env.tasks(split, stage)]
    assert len(set(ids)) == len(ids) == len(set(starts))
    if maps == "standard":
        assert len(ids) == (100 if stage == "dropoff" else 300)


def test_a_start_of_the_pickup_stage_is_in_the_split_of_the_same_full_start():
    env = TaxiEnv()
    for split in SPLITS:
        assert [t.payload for t in env.tasks(split, "pickup")] == [t.payload for t in env.tasks(split, "full")]


def test_no_random_map_is_in_two_splits():
    env = TaxiEnv("random")
    cities = [{random_city(task.payload["map_seed"]) for task in env.tasks(split)} for split in SPLITS]
    assert sum(map(len, cities)) == len(set().union(*cities)) == 2600


@pytest.mark.parametrize("maps", ["standard", "random"])
def test_every_task_can_be_solved_within_the_horizon(maps):
    env = TaxiEnv(maps)
    for split in SPLITS:
        for task in env.tasks(split):
            env.reset(options={"task": task})
            assert env.city.actions_left(env.ride) <= env.horizon


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"maps": "randon"}, "taxi: unknown maps 'randon'.*'random'"),
        ({"train": 300}, "split sizes"),
        ({"maps": "random", "wall_probability": 1.0}, "wall_probability"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(UserError, match=message):
        TaxiEnv(**arguments)


def test_unknown_splits_and_stages_are_answered_with_the_nearest_one():
    with pytest.raises(UserError, match=r"unknown split 'tset'.*'test'"):
        TaxiEnv().tasks("tset")
    with pytest.raises(UserError, match=r"unknown stage 'drop'.*'dropoff'"):
        TaxiEnv().tasks("train", "drop")


# ---- expert and analyst --------------------------------------------------------------------------------------------


def fewest_actions(ride, ahead):
    """Breadth-first search over whole rides: the actions until the delivery, found without the expert's distances."""
    queue, depth = deque([ride]), {ride: 0}
    while queue:
        now = queue.popleft()
        for action in ACTIONS:
            near, delivered = ahead(now, action)
            if delivered:
                return depth[now] + 1
            if near not in depth:
                depth[near] = depth[now] + 1
                queue.append(near)
    raise AssertionError(f"no way to deliver from {ride}")


def gym_ahead(ride, action):
    [(_, near, _, over)] = GYM.P[GYM.encode(*ride)][ACTIONS.index(action)]
    return Ride(*GYM.decode(near)), over


def test_the_expert_delivers_in_the_fewest_actions_from_every_state():
    env = TaxiEnv()
    for ride in RIDES:
        if ride.passenger == ride.destination:
            continue
        env.reset(options={"task": Task("t", "taxi", {"ride": list(ride)})})
        steps = 0
        while not env.done:
            env.step(env.teacher.expert_action(env))
            steps += 1
        assert env.success and steps == fewest_actions(ride, gym_ahead) == STANDARD.actions_left(ride)


@given(seed=st.integers(0, 2**32), walls=st.floats(0, 0.8), start=st.tuples(st.sampled_from(CELLS), st.integers(0, 4)))
@settings(max_examples=40, deadline=None)
def test_random_maps_are_connected_and_their_expert_is_optimal(seed, walls, start):
    city = random_city(seed, walls)
    assert len(set(city.landmarks)) == 4
    assert all(len(city.distances[stop]) == SIZE * SIZE for stop in city.landmarks)
    cell, passenger = start
    ride = Ride(*cell, passenger, 0 if passenger else 1)

    def ahead(ride, action):
        near = after(city, ride, action)
        return near, action == "dropoff" and near != ride and near.passenger == near.destination

    steps, now = 0, ride
    while True:
        now, delivered = ahead(now, city.best_action(now))
        steps += 1
        if delivered:
            break
    assert steps == fewest_actions(ride, ahead) == city.actions_left(ride)


def analyses(env, rides):
    """Every (text, analysis) that one action from these rides leads to, and at the rides themselves."""
    for ride in rides:
        for action in (None, *ACTIONS):
            env.reset(options={"task": Task("t", "taxi", {"ride": list(ride)})})
            if action is not None:
                env.step(ACTIONS.index(action))
            if not env.done:
                yield env.state(), env.teacher.analyse(env), ACTIONS[env.teacher.expert_action(env)]


@pytest.mark.parametrize("text", ["map", "words", "reworded"])
def test_the_analysis_is_a_function_of_the_text_so_it_tells_nothing_hidden(text):
    known = {}
    env = TaxiEnv(text=text)
    for text, analysis, best in analyses(env, [ride for ride in RIDES if ride.passenger != ride.destination]):
        assert known.setdefault(text, analysis) == analysis
        assert analysis.endswith(f"Next {best}.") and "\n" not in analysis
        assert "expert" not in analysis and "optimal" not in analysis
    assert len(known) > 1500


def test_the_analyst_says_what_the_last_action_did():
    start = Ride(2, 2, 0, 3)  # the passenger waits in the north-west
    env = started(start)
    assert "Last" not in env.teacher.analyse(env)
    assert env.teacher.analyse(env).startswith("Taxi row 2 column 2, passenger row 0 column 0.")
    play(env, ["west"])
    assert "Last move west helped." in env.teacher.analyse(env)
    play(env, ["east"])
    assert "Last move east was a mistake, turn back. Next west." in env.teacher.analyse(env)
    env = started(Ride(0, 0, 0, 3))
    play(env, ["pickup"])
    assert "Last move pickup took the passenger aboard." in env.teacher.analyse(
        env
    ) and "destination" in env.teacher.analyse(env)
    play(env, ["dropoff"])
    assert "wrong stop" in env.teacher.analyse(env) and env.teacher.analyse(env).endswith("Next pickup.")


def test_the_route_counts_the_steps_left_and_names_the_borders_that_the_map_has():
    city = City(frozenset({(0, 1), (1, 1)}), STANDARD.landmarks)
    env = TaxiEnv()
    env.reset(seed=0)
    # The passenger waits in the north-east at column 4; the taxi stands at column 1, west of a wall in rows 0 and 1.
    env.set_state((city, Ride(0, 1, 1, 2), None, None, False, ""))
    assert (
        "Go east: column 4 steps 0 1 2 3 4, border o o o o o, column 3 steps 1 2 3 4 5, border o o o o o,"
        " column 2 steps 2 3 4 5 6, border x x o o o, column 1 steps 7 6 5 6 7. Next south."
    ) in env.teacher.analyse(env)
    env.set_state((city, Ride(3, 4, 1, 2), None, None, False, ""))
    assert "Same column." in env.teacher.analyse(env)


# ---- the promises of an environment --------------------------------------------------------------------------------


@pytest.mark.parametrize("maps", ["standard", "random"])
@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("rules", [False, True])
@pytest.mark.parametrize("milestone", [False, True])
def test_it_keeps_the_promises_of_an_environment(maps, history, rules, milestone):
    settings = {"rules": rules, "history": history, "milestone": milestone}
    check_text_env(partial(TaxiEnv, maps, 50, 20, 30, **settings), episodes=2)


@given(seed=st.integers(0, 2**32), actions=st.lists(st.integers(0, 5), min_size=1, max_size=25))
@settings(max_examples=60, deadline=None)
def test_restoring_undoes_any_actions(seed, actions):
    env = TaxiEnv(history=True)
    env.reset(seed=seed)
    start, before = env.save(), env.observe()
    first = []
    for action in actions:
        if not env.done:
            first.append(env.step(action))
    env.restore(start)
    assert env.observe() == before and not env.done
    assert [env.step(action) for action in actions[: len(first)]] == first


def test_the_reflection_explains_the_error():
    env = make({"name": "taxi", "train": 60, "validation": 3, "test": 3})
    planned = demonstrations(env.tasks("train"), TeachConfig(noise=(), negatives=2), 0)
    said = [teach(env, demonstration).steps[-1].reflection or "" for demonstration in planned]
    assert all("was a mistake" in words or "at the wrong stop" in words for words in said)


def test_it_is_found_by_its_name():
    assert "taxi" in names("envs")
    assert resolve("envs", "taxi") is resolve("envs", "reflectrl.wings.taxi.env:TaxiEnv") is TaxiEnv


# ---- in words ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["words", "reworded"])
def test_words_tell_every_ride_apart(text):
    assert len({drawn(started(ride, text=text)) for ride in RIDES}) == len(RIDES)


def test_words_tell_of_the_taxi_the_passenger_and_the_walls():
    env = started(Ride(3, 1, 0, 3), text="words")
    assert env.state() == (
        "Walls on the east side of: row 0 column 1; row 1 column 1; row 3 column 0; row 3 column 2; row 4 column 0;"
        " row 4 column 2.\nTaxi: row 3 column 1. Passenger: row 0 column 0. Destination: row 4 column 3.\nLast: none\n"
    )
    assert "Passenger: aboard." in started(Ride(0, 0, ABOARD, 3), text="words").state()


def test_other_words_tell_the_same_and_the_analyst_says_the_same():
    env = started(Ride(3, 1, 0, 3), text="reworded")
    assert env.state() == (
        "The cab is in column 1 of row 3; the customer waits in column 0 of row 0 and wants to get to column 3 of row"
        " 4. Nobody can go east from: column 1 of row 0, column 1 of row 1, column 0 of row 3, column 2 of row 3,"
        " column 0 of row 4, column 2 of row 4.\nLast: none\n"
    )
    assert "the customer sits in it and" in started(Ride(0, 0, ABOARD, 3), text="reworded").state()
    assert env.teacher.analyse(env) == (plain := started(Ride(3, 1, 0, 3), text="words")).teacher.analyse(plain)


def test_in_words_the_analyst_tells_the_way_to_a_driver():
    env = started(Ride(3, 1, 0, 3), text="words")
    assert env.teacher.analyse(env) == (
        "Taxi row 3 column 1, passenger row 0 column 0. Wall west. Way: north 1, west 1, north 2. Next north."
    )
    play(env, ["east"])
    assert env.teacher.analyse(env).endswith("Last move east was a mistake, turn back. Next west.")
    corner, clear = started(Ride(0, 1, 0, 3), text="words"), started(Ride(2, 1, 0, 3), text="words")
    assert " Wall north and east. Way: west 1. " in corner.teacher.analyse(corner)
    assert " No wall. Way: " in clear.teacher.analyse(clear)
    there = started(Ride(0, 0, 0, 3), text="words")
    assert there.teacher.analyse(there) == "Taxi row 0 column 0, passenger row 0 column 0. Next pickup."


@given(ride=st.sampled_from([ride for ride in RIDES if ride.passenger != ride.destination]))
@settings(max_examples=60, deadline=None)
def test_the_way_in_words_leads_to_the_target(ride):
    env = started(ride, text="words")
    city, cell, target = env.city, ride.cell, env.city.target(ride)
    _, _, way = env.teacher.analyse(env).partition("Way: ")
    legs = [leg.split() for leg in way.partition(".")[0].split(", ") if leg]
    for move in [move for move, count in legs for _ in range(int(count))]:
        cell = city.moves[cell][move]
    assert cell == target and sum(int(count) for _, count in legs) == city.distances[target][ride.cell]


def test_the_rules_fit_the_text():
    assert "Walls are |." in TaxiEnv().instructions and "|" not in TaxiEnv(text="words").instructions


@pytest.mark.parametrize("text", ["words", "reworded"])
@pytest.mark.parametrize("maps", ["standard", "random"])
def test_in_words_it_keeps_every_promise(maps, text):
    check_text_env(lambda: TaxiEnv(maps=maps, text=text, train=10, validation=5, test=5, rules=True, history=True))


def test_another_text_is_refused():
    with pytest.raises(UserError, match="text"):
        TaxiEnv(text="prose")
