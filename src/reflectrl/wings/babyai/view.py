"""Sentences about what an agent of minigrid sees and remembers, relative to its position and heading.

The sentences follow BabyAI-Text (Carta et al. 2023, "Grounding Large Language Models in Interactive Environments with
Online Reinforcement Learning"): objects and walls of the partial view, counted in steps. A *place* is (ahead, aside):
steps forward, and steps to the right. Steps back and to the left are negative.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

Place = tuple[int, int]

ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")
"""Actions in minigrid's order, without its seventh, "done", which no level needs."""

SIDES = ("in front of you", "behind you", "on your left", "on your right")
DOOR = {"open": "an open", "closed": "a closed", "locked": "a locked"}
NEXT = {(1, 0): "Ahead", (0, -1): "Left", (0, 1): "Right"}
WANTED = re.compile(
    r"\b(?:a|the) (?:(red|green|blue|purple|yellow|grey) )?(ball|box|key|door|object)(?: (" + "|".join(SIDES) + "))?"
)
"""A description in a mission: colour, kind and side at the start. Only the kind is always present."""


class Thing(NamedTuple):
    """An object that the agent knows of.

    Attributes:
        sides: where it was when the episode began, as a mission would say it; () outside of the first room.
        seen: True if it is in view now; False if it is remembered.
    """

    colour: str
    kind: str
    article: str
    place: Place
    sides: tuple[str, ...]
    seen: bool

    @property
    def name(self) -> str:
        return f"{self.article} {self.colour} {self.kind}"


class Wanted(NamedTuple):
    """A thing that a mission names. "" matches any colour or side."""

    colour: str
    kind: str
    side: str

    @property
    def name(self) -> str:
        return " ".join(filter(None, self))

    def fits(self, thing: Thing) -> bool:
        """Return whether the mission's words describe a thing."""
        kind = self.kind in (thing.kind, "object")
        return kind and self.colour in ("", thing.colour) and (not self.side or self.side in thing.sides)


def wanted(mission: str) -> list[Wanted]:
    """Return the things that a mission names, in order."""
    return [Wanted(*(part or "" for part in match.groups())) for match in WANTED.finditer(mission)]


def steps(place: Place) -> str:
    """Put a place in words: "2 steps forward and 1 step left"."""
    ahead, aside = place
    parts = [(ahead, "forward" if ahead > 0 else "back"), (aside, "right" if aside > 0 else "left")]
    return (
        " and ".join(f"{abs(count)} step{'s' * (abs(count) > 1)} {direction}" for count, direction in parts if count)
        or "here"
    )


class View:
    """The agent's view of a world, and its memory of what it has seen since the episode began.

    Args:
        world: a `MiniGridEnv` at the start of an episode.
    """

    def __init__(self, world: Any) -> None:
        self.world = world
        self._start, self._heading = world.agent_pos, world.dir_vec
        self._known: dict[tuple[int, int], Any] = {}
        self._sides: dict[int, tuple[str, ...]] = {}
        self._met: list[Any] = []  # keeps alive what `_sides` knows by its id
        self.walls: list[Place] = []
        self.look()

    def look(self) -> None:
        """Record what is visible now."""
        grid, visible = self.world.gen_obs_grid()
        middle, last = grid.width // 2, grid.height - 1
        x, y = map(int, self.world.agent_pos)
        dx, dy = map(int, self.world.dir_vec)  # numbers, once a look: minigrid makes new arrays at each reading
        self._visible: set[tuple[int, int]] = set()
        walls = []
        for column, row in zip(*(indices.tolist() for indices in visible.nonzero()), strict=True):
            ahead, aside = place = (last - row, column - middle)
            cell = grid.get(column, row) if place != (0, 0) else None
            if cell is not None and cell.type == "wall":
                walls.append(place)
                cell = None
            self._take_in((x + ahead * dx - aside * dy, y + ahead * dy + aside * dx), cell)
        front = [place for place in walls if place[1] == 0]
        left = [place for place in walls if place[0] == 0 and place[1] < 0]
        right = [place for place in walls if place[0] == 0 and place[1] > 0]
        self.walls = [min(ray, key=_distance) for ray in (front, left, right) if ray]

    def things(self) -> list[Thing]:
        """Return the things whose places are known, nearest first."""
        things = [self._thing(position, cell) for position, cell in self._known.items()]
        return sorted(things, key=lambda thing: (_distance(thing.place), thing.place, thing.name))

    def carried(self) -> str | None:
        """Return what the agent carries ("a red key"); None if nothing."""
        carried = self.world.carrying
        return None if carried is None else f"a {carried.color} {carried.type}"

    def ahead(self) -> str | None:
        """Return what blocks a step forward; None if the agent knows of nothing there."""
        return self.beside((1, 0))

    def beside(self, place: Place) -> str | None:
        """Return what blocks a cell beside the agent; None if the agent knows of nothing there."""
        if place in self.walls:
            return "a wall"
        near = (thing for thing in self.things() if thing.place == place and thing.article != DOOR["open"])
        return next((thing.name for thing in near), None)

    def sentences(self, memory: bool) -> Iterator[str]:
        """Yield the sentences that the agent reads: walls, things it sees, things it remembers, and what it carries.

        Args:
            memory: also name things out of view. If the mission mentions a side, also say where things were at the
                start.
        """
        yield from (f"You see a wall {steps(place)}." for place in self.walls)
        sided = memory and any(target.side for target in wanted(self.world.mission))
        for thing in self.things():
            if thing.seen or memory:
                verb = "see" if thing.seen else "remember"
                origin = f", at first {' and '.join(thing.sides)}" if sided and thing.sides else ""
                yield f"You {verb} {thing.name} {steps(thing.place)}{origin}."
        if carried := self.carried():
            yield f"You carry {carried}."

    def guided(self, memory: bool) -> Iterator[str]:
        """Yield a shorter text: places of the things in the goal, cells beside the agent, and what it carries."""
        things = [thing for thing in self.things() if thing.seen or memory]
        for target in wanted(self.world.mission):
            match = next((thing for thing in things if target.fits(thing)), None)
            yield f"Wanted: {steps(match.place) if match else 'not seen yet'}."
        for place, side in NEXT.items():
            yield f"{side}: {self.beside(place) or 'free'}."
        if carried := self.carried():
            yield f"You carry {carried}."

    def _take_in(self, position: tuple[int, int], cell: Any) -> None:
        self._visible.add(position)
        if cell is None:
            self._known.pop(position, None)
            return
        self._known[position] = cell
        if id(cell) not in self._sides:
            self._met.append(cell)
            self._sides[id(cell)] = self._sides_at_first(position)

    def _sides_at_first(self, position: tuple[int, int]) -> tuple[str, ...]:
        """Return the sides of a position as seen from the start; () outside of the first room.

        Missions that name a side mean the first room only.
        """
        if hasattr(self.world, "room_from_pos"):  # other worlds of minigrid are one room
            room = self.world.room_from_pos(*self._start)
            if not room.pos_inside(*position):
                return ()
        ahead, aside = _seen_from(self._start, self._heading, position)
        truths = (ahead > 0, ahead < 0, aside < 0, aside > 0)
        return tuple(side for side, true in zip(SIDES, truths, strict=True) if true)

    def _thing(self, position: tuple[int, int], cell: Any) -> Thing:
        article = "a"
        if cell.type == "door":
            article = DOOR["locked" if cell.is_locked else "open" if cell.is_open else "closed"]
        place = _seen_from(self.world.agent_pos, self.world.dir_vec, position)
        return Thing(cell.color, cell.type, article, place, self._sides[id(cell)], position in self._visible)


def _distance(place: Place) -> int:
    return abs(place[0]) + abs(place[1])


def _seen_from(at: Any, heading: Any, position: tuple[int, int]) -> Place:
    """Return the place of a position, seen from `at` along `heading` (the y axis points down)."""
    dx, dy = position[0] - at[0], position[1] - at[1]
    return int(dx * heading[0] + dy * heading[1]), int(dy * heading[0] - dx * heading[1])
