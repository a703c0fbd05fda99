"""The privileged expert against an exhaustive search over every state of small houses."""

from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.wings.alfworld.game import Game, GameError, Goal, Receptacle, Thing
from reflectrl.wings.alfworld.house import House
from reflectrl.wings.alfworld.planner import best_command, plan

ABLE = frozenset({"pickupable", "cleanable", "heatable", "coolable"})
ALL = frozenset({"mug", "pen", "desklamp"})
IDLE = {"look", "inventory", "help", "examine receptacle", "examine thing"}


def make_game(goal: Goal, receptacles: list[Receptacle], things: list[tuple[Thing, int]], start: int = 0) -> Game:
    """A game with each thing in the receptacle of that number; the last location has nothing."""
    places = 2 + max(receptacle.location for receptacle in receptacles)
    return Game(
        id="a/b",
        type="any",
        goal=goal,
        things=tuple(thing for thing, _ in things),
        receptacles=tuple(receptacles),
        start=start,
        places=tuple(f"loc {number}" for number in range(places)),
        inside=tuple((number, receptacle) for number, (_, receptacle) in enumerate(things)),
    )


def holder(kind: str, location: int, door: str = "", holds: frozenset[str] = ALL, number: int = 1) -> Receptacle:
    return Receptacle(f"{kind} {number}", kind, location, bool(door), door == "open", holds)


def mug(number: int, *states: str) -> Thing:
    return Thing(f"mug {number}", "mug", ABLE, frozenset(states))


PEN = Thing("pen 1", "pen", frozenset({"pickupable"}))
LAMP = Thing("desklamp 1", "desklamp", frozenset({"toggleable"}))
ROOM = [
    holder("drawer", 0, "shut"),
    holder("drawer", 0, "open", number=2),
    holder("shelf", 1, holds=frozenset({"mug"})),
    holder("desk", 2),
]
KITCHEN = [
    holder("microwave", 0, "shut", frozenset({"mug"})),
    holder("fridge", 1, "shut", frozenset({"mug"})),
    holder("sinkbasin", 1),
    holder("shelf", 2),
]
GAMES = {
    "simple": make_game(Goal("mug", "drawer"), ROOM, [(mug(1), 2), (mug(2), 3), (PEN, 3)]),
    "light": make_game(Goal("pen", lamp="desklamp"), ROOM, [(PEN, 0), (mug(1), 3), (LAMP, 3)]),
    "light, lamp in hand's reach": make_game(
        Goal("pen", lamp="desklamp"), ROOM, [(PEN, 2), (replace(LAMP, abilities=LAMP.abilities | ABLE), 0)], start=3
    ),
    "clean": make_game(Goal("mug", "shelf", "clean"), KITCHEN, [(mug(1), 3), (PEN, 2)]),
    "hot": make_game(Goal("mug", "fridge", "hot"), KITCHEN, [(mug(1, "cool"), 1), (PEN, 2)]),
    "hot, into the oven itself": make_game(Goal("mug", "microwave", "hot"), KITCHEN, [(mug(1), 3)], start=3),
    "cool": make_game(Goal("mug", "shelf", "cool"), KITCHEN, [(mug(1, "cool"), 0), (PEN, 2)]),
    "cool, two of them": make_game(Goal("mug", "microwave", "cool"), KITCHEN[:2], [(mug(1), 1), (mug(2), 0)]),
    "hot, lying twice, where it does not fit": replace(
        make_game(
            Goal("mug", "microwave", "hot"),
            [holder("microwave", 0, "", frozenset({"desklamp"}), 1), holder("fridge", 0, "", ALL, 2)],
            [(mug(1), 0), (mug(2), 0)],
        ),
        inside=((0, 0), (0, 1), (1, 0)),
    ),
    "two": make_game(Goal("mug", "drawer", count=2), ROOM, [(mug(1), 2), (mug(2), 1), (PEN, 3)], start=3),
    "two of three": make_game(Goal("mug", "drawer", count=2), ROOM[:3], [(mug(1), 0), (mug(2), 1), (mug(3), 2)]),
}


def key_of(house: House) -> tuple[object, ...]:
    """The state without what only words depend on."""
    location, held, contents, opened, _, _, states = house.get_state()
    return (location, held, contents, opened, frozenset(), frozenset(), states)


def distances(game: Game) -> tuple[dict[tuple, int], set[tuple]]:
    """Commands to a win from every state from which there is a way, and every state that can be reached."""
    house = House(game)
    start = key_of(house)
    before: dict[tuple, list[tuple]] = {start: []}
    waiting, won = deque([start]), []
    while waiting:
        state = waiting.popleft()
        house.set_state(state)
        if house.is_won():
            won.append(state)
        for text in [text for text, meaning in house.commands().items() if meaning[0] not in IDLE]:
            house.set_state(state)
            house.do(text)
            after = key_of(house)
            if after not in before:
                before[after] = []
                waiting.append(after)
            before[after].append(state)
    far = dict.fromkeys(won, 0)
    ahead = deque(won)
    while ahead:
        state = ahead.popleft()
        for earlier in before[state]:
            if earlier not in far:
                far[earlier] = far[state] + 1
                ahead.append(earlier)
    return far, set(before)


def assert_shortest(game: Game, every: int = 1):
    """Plans from every so-many-th reachable state are as short as can be, and win when played."""
    far, states = distances(game)
    house = House(game)
    for state in sorted(states, key=repr)[::every]:
        house.set_state(state)
        if state not in far:
            with pytest.raises(GameError, match="cannot be won"):
                plan(house)
            continue
        commands = plan(house)
        assert house.get_state() == state
        assert len(commands) == far[state], (state, commands)
        for command in commands:
            assert command in house.commands()
            house.do(command)
        assert house.is_won()


@pytest.mark.parametrize("name", GAMES)
def test_plans_are_shortest_from_every_reachable_state(name: str):
    assert_shortest(GAMES[name])


@st.composite
def games(draw: st.DrawFn) -> Game:
    """Small houses with any task, door, sharing of places and fit."""
    state, count, lamp = draw(
        st.sampled_from([("", 1, ""), ("", 2, ""), ("hot", 1, ""), ("cool", 2, ""), ("", 1, "lamp")])
    )
    kinds = draw(st.lists(st.sampled_from(["drawer", "shelf", "microwave", "fridge"]), min_size=2, max_size=4))
    doors, fits = st.sampled_from(["", "shut", "open"]), st.frozensets(st.sampled_from(sorted(ALL)), min_size=1)
    receptacles = [
        holder(kind, draw(st.integers(0, 2)), draw(doors), draw(fits) if draw(st.booleans()) else ALL, number)
        for number, kind in enumerate(kinds, 1)
    ]
    things = [mug(n, *draw(st.sampled_from([[], ["hot"], ["cool"]]))) for n in range(1, draw(st.integers(1, 2)) + 1)]
    things += [PEN] * draw(st.integers(0, 1)) + [LAMP] * bool(lamp)
    put = [(thing, draw(st.integers(0, len(kinds) - 1))) for thing in things]
    goal = Goal("mug", lamp="desklamp") if lamp else Goal("mug", draw(st.sampled_from(kinds)), state, count=count)
    game = make_game(goal, receptacles, put)
    twice = st.tuples(st.integers(0, len(things) - 1), st.integers(0, len(kinds) - 1))  # as official files have it
    inside = {*game.inside, *draw(st.lists(twice, max_size=2))}
    return replace(game, start=draw(st.integers(0, len(game.places) - 1)), inside=tuple(sorted(inside)))


@settings(max_examples=60, deadline=None)
@given(games())
def test_plans_are_shortest_in_any_small_house(game: Game):
    assert_shortest(game, every=1 + len(game.receptacles) ** 2)


def test_what_lies_at_the_goal_and_elsewhere_too_may_be_put_down_anywhere():
    places = [holder("drawer", 0, number=1), holder("fridge", 1, number=2)]
    game = make_game(Goal("mug", "drawer", "cool", count=2), places, [(mug(1), 0), (mug(2), 0)])
    game = replace(game, inside=((0, 0), (0, 1), (1, 0), (1, 1)))
    assert len(plan(House(game))) == 6  # go, take, cool, put down in the fridge, take, cool
    assert_shortest(game)


def test_places_beyond_the_first_alike_ones_are_still_found():
    shelves = [holder("shelf", place, number=place + 1) for place in range(9)]
    game = make_game(Goal("mug", "shelf", count=2), shelves, [(mug(1), 7), (mug(2), 8), (PEN, 3)], start=3)
    house = House(game)
    assert plan(house) == ["go to shelf 8", "take mug 1 from shelf 8", "go to shelf 9", "move mug 1 to shelf 9"]
    house.do("take pen 1 from shelf 4")
    assert len(plan(house)) == 5


def test_plans_speak_the_dialect_of_the_house():
    assert plan(House(GAMES["simple"], "current"))[-1] == "move mug 1 to drawer 2"
    assert plan(House(GAMES["simple"], "paper"))[-1] == "put mug 1 in/on drawer 2"


def test_the_best_command_is_the_first_of_the_plan():
    house = House(GAMES["two"])
    while plan(house):
        assert best_command(house) == plan(house)[0]
        house.do(best_command(house))
    with pytest.raises(GameError, match="is won"):
        best_command(house)
