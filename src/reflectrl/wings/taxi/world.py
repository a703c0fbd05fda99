"""The taxi world without any text: maps, moves, and shortest paths.

A cell is (row, column) on a 5 × 5 grid. As in gymnasium, walls stand only between horizontal neighbours, so a taxi
moves freely north and south, and a shortest path never goes back on its columns.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

SIZE = 5
ABOARD = 4
ACTIONS = ("south", "north", "east", "west", "pickup", "dropoff")
MOVES = {"south": (1, 0), "north": (-1, 0), "east": (0, 1), "west": (0, -1)}
OPPOSITE = {"south": "north", "north": "south", "east": "west", "west": "east"}

Cell = tuple[int, int]
CELLS: tuple[Cell, ...] = tuple((row, column) for row in range(SIZE) for column in range(SIZE))


class Ride(NamedTuple):
    """The state of a ride: gymnasium's (row, column, passenger, destination). Passenger 4 is aboard."""

    row: int
    column: int
    passenger: int
    destination: int

    @property
    def cell(self) -> Cell:
        return (self.row, self.column)


@dataclass(frozen=True)
class City:
    """A map: `walls` holds the cells with a wall on their east side, `landmarks` the four stops."""

    walls: frozenset[Cell]
    landmarks: tuple[Cell, Cell, Cell, Cell]

    @cached_property
    def moves(self) -> dict[Cell, dict[str, Cell]]:
        """`moves[cell][move]`: the cell that a move leads to. A move against a wall or the edge has no entry."""
        neighbours: dict[Cell, dict[str, Cell]] = {cell: {} for cell in CELLS}
        for row, column in CELLS:
            for move, (down, right) in MOVES.items():
                neighbour = (row + down, column + right)
                west = (row, min(column, neighbour[1]))  # the western one of two cells has the wall between them
                if neighbour in neighbours and (move not in ("east", "west") or west not in self.walls):
                    neighbours[row, column][move] = neighbour
        return neighbours

    def target(self, ride: Ride) -> Cell:
        """Return the taxi's next target: the passenger, or with the passenger aboard the destination."""
        return self.landmarks[ride.destination if ride.passenger == ABOARD else ride.passenger]

    @cached_property
    def distances(self) -> dict[Cell, dict[Cell, int]]:
        """`distances[landmark][cell]`: number of moves between them. Computed once per map by breadth-first search."""
        distances = {}
        for landmark in self.landmarks:
            steps, queue = {landmark: 0}, deque([landmark])
            while queue:
                cell = queue.popleft()
                for neighbour in self.moves[cell].values():  # each move can be undone, so this is the way back as well
                    if neighbour not in steps:
                        steps[neighbour] = steps[cell] + 1
                        queue.append(neighbour)
            distances[landmark] = steps
        return distances

    def best_action(self, ride: Ride) -> str:
        """Return an action on a shortest path. Among equally short ones, sideways moves come first."""
        target = self.target(ride)
        if ride.cell == target:
            return "dropoff" if ride.passenger == ABOARD else "pickup"
        distance, neighbours = self.distances[target], self.moves[ride.cell]
        for move in ("east", "west", "south", "north"):
            if move in neighbours and distance[neighbours[move]] < distance[ride.cell]:
                return move
        raise ValueError(f"no way from {ride.cell} to {target}")

    def actions_left(self, ride: Ride) -> int:
        """Return the least number of actions until the passenger is delivered."""
        if ride.passenger == ABOARD:
            return self.distances[self.landmarks[ride.destination]][ride.cell] + 1
        pickup = self.landmarks[ride.passenger]
        to_destination = self.distances[self.landmarks[ride.destination]][pickup]
        return self.distances[pickup][ride.cell] + 1 + to_destination + 1


STANDARD = City(
    walls=frozenset({(0, 1), (1, 1), (3, 0), (4, 0), (3, 2), (4, 2)}),
    landmarks=((0, 0), (0, 4), (4, 0), (4, 3)),
)


@lru_cache(maxsize=65_536)
def random_city(seed: int, wall_probability: float = 0.3) -> City:
    """Draw a map from a seed: each inner border is a wall with that probability, and there are four distinct stops.

    A column border that is walled from top to bottom is drawn again, so every cell reaches every other.
    """
    rng = np.random.default_rng(seed)
    walls: set[Cell] = set()
    for column in range(SIZE - 1):
        closed = rng.random(SIZE) < wall_probability
        while closed.all():
            closed = rng.random(SIZE) < wall_probability
        walls.update((row, column) for row in range(SIZE) if closed[row])
    first, second, third, fourth = (CELLS[i] for i in rng.choice(len(CELLS), size=4, replace=False))
    return City(frozenset(walls), (first, second, third, fourth))
