"""The status as a guide: who reads it need not remember where things are likely to be, nor guess what was not seen."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.wings.alfworld.beliefs import Beliefs, kind_of, likely_places
from reflectrl.wings.alfworld.game import TYPES, Game, Goal
from reflectrl.wings.alfworld.generate import generate_game
from reflectrl.wings.alfworld.house import House
from reflectrl.wings.alfworld.reading import compile_game
from reflectrl.wings.alfworld.search import advise
from reflectrl.wings.alfworld.status import guiding_status, plain_status

THINGS = sorted(likely_places().keys() - {"desklamp"})
PLACES = sorted({place for places in likely_places().values() for place in places} | {"piano", "washstand"})
ROOMS = st.dictionaries(st.sampled_from(PLACES), st.integers(1, 8), min_size=1)
"""Kind of place → how many there are: rooms as no training game has them, two of the kinds in none of them."""
GAMES = {kind: [compile_game(*generate_game(seed, kind)) for seed in range(4)] for kind in TYPES}
"""Task type → generated games."""


def room(kinds: dict[str, int]) -> Beliefs:
    """Beliefs of someone who has come into a room with so many places of each kind."""
    names = [f"a {kind} {number + 1}" for kind, count in kinds.items() for number in range(count)]
    return Beliefs.begin(f"Looking quickly around you, you see {', '.join(names)}.")


def look_at(beliefs: Beliefs, place: str) -> None:
    beliefs.add(f"go to {place}", f"You arrive at {place}. On the {place}, you see nothing.")


def lines_of(status: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in status.splitlines())


def named_by(status: str, kind: str, use: str) -> str:
    """The command towards a thing of a kind that a status names to a reader who knows nothing else.

    Args:
        use: what is done with the thing where it is within reach: "take" or "use".
    """
    lines = lines_of(status)
    if seen := lines.get(f"Seen {kind}"):
        found = re.match(r"(\w+ \d+) at (\w+ \d+)(?: \((.+?)\))?", seen)
        assert found is not None
        thing, place, reach = found.groups("")
        if reach == "here":
            return f"take {thing} from {place}" if use == "take" else f"use {thing}"
    else:
        reach = next(name for name in lines if name.startswith(f"Left for {kind}"))
        place = " ".join(lines[reach].replace(",", "").split()[:2])
    return f"{'open' if 'shut' in reach else 'examine' if 'here' in reach else 'go to'} {place}"


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([game for games in GAMES.values() for game in games]), st.lists(st.integers(0, 99), max_size=40))
def test_the_status_alone_tells_where_the_expert_looks_and_what_it_takes(game: Game, choices: list[int]) -> None:
    """On walks half by the expert, half at random, in houses with places that share a location, and with doors."""
    house, goal = House(game), game.goal
    beliefs = Beliefs.begin(house.introduction(game.description))
    for choice in choices:
        legal = house.admissible()
        advice = advise(beliefs, goal, set(legal))
        holding = kind_of(beliefs.held) if beliefs.held else ""
        # A lamp beside the player that no text has named yet is known from the list of commands alone.
        unnamed = advice.command.startswith("use ") and not beliefs.where(goal.lamp)
        if beliefs.left() and not unnamed and (not holding or (goal.lamp and holding == goal.kind)):
            kind, use = (goal.lamp, "use") if holding else (goal.kind, "take")
            status = guiding_status(beliefs, game.description, set(legal))
            assert named_by(status, kind, use) == advice.command, status
        command = advice.command if choice % 2 else legal[choice // 2 % len(legal)]
        beliefs.add(command, house.do(command))
        if house.is_won():
            return


@settings(max_examples=100, deadline=None)
@given(ROOMS, st.sampled_from(THINGS), st.integers(0, 40), st.booleans(), st.booleans())
def test_what_the_status_lists_first_is_what_the_expert_names_in_any_room(
    kinds: dict[str, int], thing: str, looks: int, holds: bool, prior: bool
) -> None:
    """For the thing, and for the lamp once that is in the hand; with and without knowing likely places."""
    beliefs, goal, wording = room(kinds), Goal(thing, lamp="desklamp"), f"look at {thing} under the desklamp."
    legal = {f"go to {place}" for place in beliefs.places}
    beliefs.held = f"{thing} 1" if holds else ""
    for _ in range(min(looks, len(beliefs.places) - 1)):
        look_at(beliefs, advise(beliefs, goal, legal, prior).command.removeprefix("go to "))
    first, *_ = lines_of(guiding_status(beliefs, wording, legal, prior))[
        f"Left for {'desklamp' if holds else thing}"
    ].split(", ")
    assert advise(beliefs, goal, legal, prior).because.endswith(f"Left: {first}.")


class TestGuide:
    def test_a_lamp_that_was_not_seen_is_said_to_be_missing(self) -> None:
        """Players took a lamp for granted: nothing in what they read told that none had been seen."""
        beliefs, wording = room({"desk": 1, "shelf": 2}), "look at book under the desklamp."
        beliefs.add("go to desk 1", "You arrive at desk 1. On the desk 1, you see a book 1, and a pen 1.")
        beliefs.add("take book 1 from desk 1", "You pick up the book 1 from the desk 1.")
        assert "\nLeft for desklamp: shelf 1 2\n" in guiding_status(beliefs, wording, set())
        beliefs.add("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see a desklamp 1.")
        beside = guiding_status(beliefs, wording, {"examine shelf 1"})
        assert "\nSeen desklamp: desklamp 1 at shelf 1 (here)\n" in beside
        assert "\nSeen desklamp: desklamp 1 at shelf 1\n" in guiding_status(beliefs, wording, set())

    def test_a_place_that_nobody_can_go_to_since_it_is_here_is_marked(self) -> None:
        """Players wrote "go to" or "examine stoveburner 2" by chance: they read nothing that told which."""
        beliefs, wording = room({"stoveburner": 3}), "put a pan in cabinet."
        look_at(beliefs, "stoveburner 1")
        beside = {"examine stoveburner 1", "examine stoveburner 2", "go to stoveburner 3"}
        status = guiding_status(beliefs, wording, beside)
        assert "\nAlso here: stoveburner 2\n" in status
        assert "\nLeft for pan (the first is here): stoveburner 2 3\n" in status
        shut = guiding_status(beliefs, wording, {*beside, "open stoveburner 2"})
        assert "\nLeft for pan (the first is here, shut): stoveburner 2 3\n" in shut

    def test_of_two_things_the_one_that_is_in_place_stands_apart(self) -> None:
        beliefs, wording = room({"bed": 1, "sofa": 2}), "put two pillow in sofa."
        beliefs.add("go to sofa 2", "You arrive at sofa 2. On the sofa 2, you see a pillow 1.")
        status = guiding_status(beliefs, wording, set())
        assert "\nIn place: pillow 1 at sofa 2\nLeft for pillow: bed 1, sofa 1\n" in status
        beliefs.add("go to bed 1", "You arrive at bed 1. On the bed 1, you see a pillow 2.")
        assert "\nIn place: pillow 1 at sofa 2\nSeen pillow: pillow 2 at bed 1\n" in guiding_status(
            beliefs, wording, set()
        )

    @pytest.mark.parametrize(
        ("held", "said"), [("pen 1", "pen 1 (not asked for)"), ("book 1", "book 1"), ("", "nothing")]
    )
    def test_what_is_in_the_hand_and_not_asked_for_is_said_to_be(self, held: str, said: str) -> None:
        beliefs = room({"desk": 1})
        beliefs.held = held
        assert lines_of(guiding_status(beliefs, "put a book in desk.", set()))["Holding"] == said

    def test_places_stand_by_promise_with_the_prior_and_by_name_without(self) -> None:
        beliefs, wording = room({"cabinet": 5, "fridge": 1, "garbagecan": 1}), "put a clean lettuce in countertop."
        with_it, without = (guiding_status(beliefs, wording, set(), prior) for prior in (True, False))
        assert "\nLeft for lettuce: fridge 1, garbagecan 1, cabinet 1 2 3 ...\n" in with_it
        assert "\nLeft for lettuce: cabinet 1 2 3 ..., fridge 1, garbagecan 1\n" in without

    def test_kinds_of_places_beyond_the_fourth_follow_when_the_first_were_looked_at(self) -> None:
        beliefs, wording = room(dict.fromkeys(("bed", "desk", "shelf", "drawer", "cabinet"), 1)), "put a book in desk."
        before = guiding_status(beliefs, wording, set())
        look_at(beliefs, "bed 1")
        assert "\nLeft for book: bed 1, desk 1, cabinet 1, drawer 1, ...\n" in before
        assert "\nLeft for book: desk 1, cabinet 1, drawer 1, shelf 1\n" in guiding_status(beliefs, wording, set())

    def test_a_task_in_words_that_name_no_thing_has_the_plain_status(self) -> None:
        beliefs = room({"bed": 1, "desk": 2})
        wording = "Bring something to read."
        assert guiding_status(beliefs, wording, set()) == plain_status(beliefs, wording)
        assert plain_status(beliefs, wording).endswith("\nSeen: nothing\nLeft: bed 1 desk 1 2\n")
