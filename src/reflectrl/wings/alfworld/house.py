"""The household itself: commands, their effects, and the replies to them.

A native engine for ALFWorld's text games. It gives the same observations, admissible commands (in the same order) and
outcomes as the reference engine, TextWorld with ALFWorld's grammar, quirks included. `tests/wings/alfworld` and
`benchmarks/alfworld_sweep.py` compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal

from reflectrl.wings.alfworld.game import TREATMENTS, Game

Dialect = Literal["current", "paper"]
"""Wording of commands and replies: "current" is alfworld 0.4 ("move X to Y", "You arrive at desk 1.", help). "paper" is
alfworld 0.3, which published prompts use ("put X in/on Y", "You arrive at loc 7.", no help).
"""

HELP = """Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""

_TOOLS = {treatment.tool: treatment for treatment in TREATMENTS.values()}
_STATES = {treatment.verb: state for state, treatment in TREATMENTS.items()}
_UNDONE = {"hot": "cool", "cool": "hot", "clean": ""}

Command = tuple[Any, ...]
"""A verb, then indices of things or receptacles: ("take", thing, receptacle)."""


def listed(names: Sequence[str]) -> str:
    """Format names as "a mug 1, a pen 2, and a book 1", or "nothing" if there are none."""
    items = [f"a {name}" for name in names]
    if len(items) < 2:
        return items[0] if items else "nothing"
    return f"{', '.join(items[:-1])}, and {items[-1]}"


class House:
    """A game in progress.

    Attributes:
        location: where the player is (an index of `game.places`).
        held: index of the thing in the player's hand, or None.
        opened: receptacles that stand open.
        contents: for each receptacle the things in or on it.
        at: current (thing, location) pairs, initially the game's.
        removed: (thing, receptacle) pairs: the thing was taken from there and not put back. `look` shows some of them.
        states: thing → its states ("clean", "hot", "cool", "sliced", "toggled").
    """

    def __init__(self, game: Game, dialect: Dialect = "current") -> None:
        self.game, self.dialect = game, dialect
        self.location = game.start
        self.held: int | None = None
        self.opened = {index for index, receptacle in enumerate(game.receptacles) if receptacle.opened}
        self.contents: list[set[int]] = [set() for _ in game.receptacles]
        for thing, receptacle in game.inside:
            self.contents[receptacle].add(thing)
        self.at = set(game.at)
        self.removed: set[tuple[int, int]] = set()
        self.states = [thing.states for thing in game.things]
        self._commands: dict[str, Command] | None = None

    # ---- what can be done ------------------------------------------------------------------------------------------

    def commands(self) -> dict[str, Command]:
        """The admissible commands and their meanings, sorted by their texts."""
        if self._commands is None:
            commands: dict[str, Command] = {**self.game.travels[self.location]}
            commands |= {"look": ("look",), "inventory": ("inventory",)}
            if self.dialect == "current":
                commands["help"] = ("help",)
            for receptacle in self.game.here.get(self.location, ()):
                self._add_receptacle(commands, receptacle)
            if self.held is not None:
                self._add_held(commands, self.held)
            self._commands = {text: commands[text] for text in sorted(commands)}
        return self._commands

    def admissible(self) -> tuple[str, ...]:
        """Return the texts of the admissible commands, in order."""
        return tuple(self.commands())

    def _add_receptacle(self, commands: dict[str, Command], index: int) -> None:
        game, receptacle = self.game, self.game.receptacles[index]
        name = receptacle.name
        commands[f"examine {name}"] = ("examine receptacle", index)
        if receptacle.openable:
            verb = "close" if index in self.opened else "open"
            commands[f"{verb} {name}"] = (verb, index)
        for thing in self.contents[index]:
            if "toggleable" in game.things[thing].abilities:
                commands[f"use {game.things[thing].name}"] = ("use", thing)
        if not self.is_accessible(index):
            return
        for thing in self.contents[index]:
            about = game.things[thing]
            if self.held is None and "pickupable" in about.abilities:
                commands[f"take {about.name} from {name}"] = ("take", thing, index)

    def _add_held(self, commands: dict[str, Command], held: int) -> None:
        thing = self.game.things[held]
        put = "move {} to {}" if self.dialect == "current" else "put {} in/on {}"
        # Only what is held can be examined: a stray comma in ALFWorld's domain makes its rule for other things void.
        commands[f"examine {thing.name}"] = ("examine thing", held)
        for index in self.game.here.get(self.location, ()):
            receptacle = self.game.receptacles[index]
            if self.is_accessible(index) and thing.kind in receptacle.holds:
                commands[put.format(thing.name, receptacle.name)] = ("put", held, index)
            treatment = _TOOLS.get(receptacle.kind)
            if treatment is not None and treatment.ability in thing.abilities:
                commands[f"{treatment.verb} {thing.name} with {receptacle.name}"] = (treatment.verb, held, index)
        if thing.kind in ("knife", "butterknife"):
            for other, location in self.at:
                if location == self.location and "sliceable" in self.game.things[other].abilities:
                    commands[f"slice {self.game.things[other].name} with {thing.name}"] = ("slice", other)

    def is_accessible(self, receptacle: int) -> bool:
        """Return whether the player can reach into a receptacle: it has no door, or the door is open."""
        return not self.game.receptacles[receptacle].openable or receptacle in self.opened

    # ---- doing it --------------------------------------------------------------------------------------------------

    def do(self, command: str) -> str:
        """Carry out a command and return the reply. A command that is not admissible changes nothing."""
        meaning = self.commands().get(command.strip())
        if meaning is None:
            return "Nothing happens."
        self._commands = None
        verb, *indices = meaning
        if verb in ("look", "inventory", "help"):
            return {"look": self.look, "inventory": self.inventory, "help": lambda: HELP}[verb]()
        if verb == "examine receptacle":
            return self.describe_receptacle(*indices)
        if verb == "examine thing":
            return self.describe_thing(*indices)
        if verb == "go":
            return self._go(*indices)
        if verb in ("open", "close"):
            name = self.game.receptacles[indices[0]].name
            if verb == "close":
                self.opened.discard(indices[0])
                return f"You close the {name}."
            self.opened.add(indices[0])
            return f"You open the {name}. {self.describe_receptacle(indices[0])}"
        if verb in ("take", "put"):
            return self._take(*indices) if verb == "take" else self._put(*indices)
        thing = indices[0]
        name = self.game.things[thing].name
        if verb == "use":
            self.states[thing] |= {"toggled"}
            return f"You turn on the {name}."  # always "on": the reference never says otherwise
        if verb == "slice":
            self.states[thing] |= {"sliced"}
            assert self.held is not None
            return f"You sliced the {name} with the {self.game.things[self.held].name}."
        state = _STATES[verb]
        self.states[thing] = (self.states[thing] | {state}) - {_UNDONE[state]}
        return f"You {verb} the {name} using the {self.game.receptacles[indices[1]].name}."

    def _go(self, receptacle: int) -> str:
        self.location = self.game.receptacles[receptacle].location
        current = self.dialect == "current"
        place = self.game.receptacles[receptacle].name if current else self.game.places[self.location]
        return f"You arrive at {place}. {self.describe_receptacle(receptacle)}"

    def _take(self, thing: int, receptacle: int) -> str:
        self.contents[receptacle].discard(thing)
        self.removed.add((thing, receptacle))
        self.at.discard((thing, self.location))
        self.held = thing
        return f"You pick up the {self.game.things[thing].name} from the {self.game.receptacles[receptacle].name}."

    def _put(self, thing: int, receptacle: int) -> str:
        self.contents[receptacle].add(thing)
        self.removed.discard((thing, receptacle))
        self.at.add((thing, self.location))
        self.held = None
        name, place = self.game.things[thing].name, self.game.receptacles[receptacle].name
        template = "You move the {} to the {}." if self.dialect == "current" else "You put the {} in/on the {}."
        return template.format(name, place)

    # ---- what is said ----------------------------------------------------------------------------------------------

    def introduction(self, wording: str) -> str:
        """Return the text that a player reads first. `wording` is the task in words."""
        names = [receptacle.name for receptacle in self.game.receptacles]
        overview = f"You are in the middle of a room. Looking quickly around you, you see {listed(names)}."
        if self.game.here.get(self.location):
            overview = self.look()
        return f"-= Welcome to TextWorld, ALFRED! =-\n\n{overview}\n\nYour task is to: {wording}"

    def look(self) -> str:
        """Describe the surroundings. Only things taken from a receptacle and put down beside it are listed."""
        here = self.game.here.get(self.location, ())
        if not here:
            return "You are in the middle of a room. Looking quickly around you, you see nothing."
        names = [self.game.receptacles[index].name for index in here]
        facing = names[0] if len(names) == 1 else f"{', '.join(names[:-1])}, and {names[-1]}"
        things = sorted(thing for thing, location in self.at if location == self.location)
        beside = [self.game.things[t].name for t in things for index in here if (t, index) in self.removed]
        return f"You are facing the {facing}. Next to it, you see {listed(beside)}."

    def inventory(self) -> str:
        if self.held is None:
            return "You are not carrying anything."
        return f"You are carrying: a {self.game.things[self.held].name}."

    def describe_receptacle(self, index: int) -> str:
        """Describe what is seen in or on a receptacle."""
        receptacle = self.game.receptacles[index]
        if receptacle.openable and index not in self.opened:
            return f"The {receptacle.name} is closed."
        seen = listed([self.game.things[thing].name for thing in sorted(self.contents[index])])
        if receptacle.openable:
            return f"The {receptacle.name} is open. In it, you see {seen}."
        return f"On the {receptacle.name}, you see {seen}."

    def describe_thing(self, index: int) -> str:
        """Describe an object."""
        thing, states = self.game.things[index], self.states[index]
        name = thing.name
        if "isreceptacleobject" in thing.abilities:
            contents = [self.game.things[inner].name for inner, outer in self.game.nested if outer == index]
            return f"This is a normal {name}. In it, you see {listed(contents)}."
        sliced = "sliced" in states
        temperature = "hot" if "hot" in states else "cool" if "cool" in states else ""
        if temperature and "clean" in states:
            return f"This is a {temperature} and clean {'sliced ' if sliced else ''}{name}."
        if sliced and (temperature or "clean" in states):
            return f"This is a {'clean' if 'clean' in states else temperature} sliced {name}."
        if temperature or "clean" in states:
            return f"This is a {'hot' if temperature == 'hot' else 'clean' if 'clean' in states else 'cold'} {name}."
        if "toggleable" in thing.abilities and "toggled" in states:
            return f"This {name} is on."
        if "sliceable" in thing.abilities and sliced:
            return f"This is a sliced {name}."
        return f"There's nothing special about {name}."

    # ---- how it ends -----------------------------------------------------------------------------------------------

    def is_won(self) -> bool:
        """Return whether the goal is reached."""
        goal, game = self.game.goal, self.game
        if goal.lamp:
            if self.held is None or game.things[self.held].kind != goal.kind:
                return False
            here = chain.from_iterable(self.contents[index] for index in game.here.get(self.location, ()))
            return any(game.things[thing].kind == goal.lamp and "toggled" in self.states[thing] for thing in here)
        for index, receptacle in enumerate(game.receptacles):
            if receptacle.kind == goal.receptacle:
                things = [thing for thing in self.contents[index] if game.things[thing].kind == goal.kind]
                if sum(map(self.is_prepared, things)) >= goal.count:
                    return True
        return False

    def is_prepared(self, thing: int) -> bool:
        """Return whether a thing is in the state that the goal asks for (and has the ability to be brought into it)."""
        state = self.game.goal.state
        abilities = self.game.things[thing].abilities
        return not state or (state in self.states[thing] and TREATMENTS[state].ability in abilities)

    def get_state(self) -> tuple[Any, ...]:
        """Return everything that commands change, as a value that later commands do not alter."""
        contents = tuple(frozenset(inside) for inside in self.contents)
        sets = frozenset(self.opened), frozenset(self.at), frozenset(self.removed)
        return (self.location, self.held, contents, *sets, tuple(self.states))

    def set_state(self, state: tuple[Any, ...]) -> None:
        """Restore a value of `get_state`."""
        self.location, self.held, contents, opened, at, removed, states = state
        self.contents = [set(inside) for inside in contents]
        self.opened, self.at, self.removed = set(opened), set(at), set(removed)
        self.states, self._commands = list(states), None
