"""The taxi world without any text: maps, transitions equal to gymnasium's Taxi, and shortest paths.

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
    """The state of a ride: gymnasium's (row, column, passenger, destination); passenger 4 is aboard."""

    row: int
    column: int
    passenger: int
    destination: int

    @property
    def cell(self) -> Cell:
        return (self.row, self.column)


@dataclass(frozen=True)
class City:
    """A map: `walls` holds the cells with a wall on their east side; `landmarks` are the four stops."""

    walls: frozenset[Cell]
    landmarks: tuple[Cell, Cell, Cell, Cell]

    def can_move(self, cell: Cell, move: str) -> bool:
        """Whether a taxi at `cell` gets anywhere by `move`."""
        row, column = cell
        if move == "east":
            return column < SIZE - 1 and cell not in self.walls
        if move == "west":
            return column > 0 and (row, column - 1) not in self.walls
        return 0 <= row + MOVES[move][0] < SIZE

    def next_ride(self, ride: Ride, action: str) -> Ride:
        """The ride after an action; an action that achieves nothing gives the same ride."""
        if action in MOVES:
            if not self.can_move(ride.cell, action):
                return ride
            down, right = MOVES[action]
            return ride._replace(row=ride.row + down, column=ride.column + right)
        if action == "pickup":
            waiting = ride.passenger != ABOARD and ride.cell == self.landmarks[ride.passenger]
            return ride._replace(passenger=ABOARD) if waiting else ride
        if ride.passenger == ABOARD and ride.cell in self.landmarks:
            at = ride.destination if ride.cell == self.landmarks[ride.destination] else self.landmarks.index(ride.cell)
            return ride._replace(passenger=at)
        return ride

    def target(self, ride: Ride) -> Cell:
        """Where the taxi has to go next: to the passenger, or with the passenger to the destination."""
        return self.landmarks[ride.destination if ride.passenger == ABOARD else ride.passenger]

    @cached_property
    def distances(self) -> dict[Cell, dict[Cell, int]]:
        """`distances[landmark][cell]`: moves between them. Found once per map by breadth-first search."""
        return {landmark: self._distances_to(landmark) for landmark in self.landmarks}

    def _distances_to(self, target: Cell) -> dict[Cell, int]:
        found = {target: 0}
        queue = deque([target])
        while queue:
            row, column = cell = queue.popleft()
            for move, (down, right) in MOVES.items():
                near = (row + down, column + right)
                if self.can_move(cell, move) and near not in found:
                    found[near] = found[cell] + 1
                    queue.append(near)
        return found

    def best_action(self, ride: Ride) -> str:
        """An action on a shortest path; among equally short ones sideways comes first."""
        target = self.target(ride)
        if ride.cell == target:
            return "dropoff" if ride.passenger == ABOARD else "pickup"
        distance = self.distances[target]
        for move in ("east", "west", "south", "north"):
            down, right = MOVES[move]
            if self.can_move(ride.cell, move) and distance[ride.row + down, ride.column + right] < distance[ride.cell]:
                return move
        raise ValueError(f"no way from {ride.cell} to {target}")

    def actions_left(self, ride: Ride) -> int:
        """The least number of actions until the passenger is delivered."""
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
    """A map drawn from a seed: each inner border is a wall with that probability, four distinct stops.

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
