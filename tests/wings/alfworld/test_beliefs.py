"""Beliefs and the searching expert: they know what the text said, and nothing else."""

from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.wings.alfworld.beliefs import Beliefs, likely_places
from reflectrl.wings.alfworld.game import TYPES, Goal
from reflectrl.wings.alfworld.house import House
from reflectrl.wings.alfworld.reading import compile_game
from reflectrl.wings.alfworld.search import advise
from tests.wings.alfworld.houses import kitchen


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(TYPES), st.lists(st.integers(0, 10**6), max_size=40), st.sampled_from(["current", "paper"]))
def test_beliefs_agree_with_the_house_after_any_walk(task_type: str, choices: list[int], dialect: str) -> None:
    game = compile_game(*kitchen(task_type))
    house = House(game, dialect)  # type: ignore[arg-type]
    beliefs = Beliefs.begin(house.introduction(game.description))
    for choice in choices:
        command = house.admissible()[choice % len(house.admissible())]
        beliefs.add(command, house.do(command))
        names = [receptacle.name for receptacle in game.receptacles]
        assert set(beliefs.places) == set(names)
        assert beliefs.held == ("" if house.held is None else game.things[house.held].name)
        for place, things in beliefs.seen.items():
            assert things == {game.things[thing].name for thing in house.contents[names.index(place)]}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(TYPES), st.lists(st.integers(0, 10**6), max_size=12))
def test_the_expert_wins_from_wherever_a_walk_leads(task_type: str, choices: list[int]) -> None:
    game = compile_game(*kitchen(task_type))
    house = House(game)
    beliefs = Beliefs.begin(house.introduction(game.description))
    for choice in choices:
        command = house.admissible()[choice % len(house.admissible())]
        beliefs.add(command, house.do(command))
    for _ in range(40):
        if house.is_won():
            return
        advice = advise(beliefs, game.goal, house.commands())
        beliefs.add(advice.command, house.do(advice.command))
    raise AssertionError(f"not won: {beliefs}")


def test_what_was_not_seen_does_not_change_the_advice() -> None:
    """The same beliefs give the same advice, wherever the things really are."""
    beliefs = Beliefs.begin("Looking quickly around you, you see a cabinet 2, a cabinet 1, and a fridge 1.")
    beliefs.add("go to fridge 1", "You arrive at fridge 1. The fridge 1 is closed.")
    legal = ["open fridge 1", "go to cabinet 1", "go to cabinet 2"]
    assert advise(beliefs, Goal("lettuce", "cabinet"), legal).command == "open fridge 1"
    beliefs.add("open fridge 1", "You open the fridge 1. The fridge 1 is open. In it, you see nothing.")
    advice = advise(beliefs, Goal("lettuce", "cabinet"), ["close fridge 1", "go to cabinet 1", "go to cabinet 2"])
    assert advice.command == "go to cabinet 1" and "lettuce" in advice.because


def test_it_never_looks_twice() -> None:
    beliefs = Beliefs.begin("Looking quickly around you, you see a shelf 2, and a shelf 1.")
    beliefs.add("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see a pen 1.")
    assert advise(beliefs, Goal("book", "shelf"), ["go to shelf 1", "go to shelf 2"]).command == "go to shelf 2"


def test_where_things_are_likely_to_be_is_known_for_many_kinds() -> None:
    table = likely_places()
    assert len(table) > 40 and table["lettuce"][0] in ("diningtable", "fridge", "countertop")
