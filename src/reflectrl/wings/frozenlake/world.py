"""The frozen lake without any text: maps, transitions equal to gymnasium's FrozenLake, and the best way to the goal.

A cell is (row, column). A map is a tuple of equally long rows over the letters S (start), F (frozen), H (hole) and G
(goal), as in gymnasium.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

ACTIONS = ("left", "down", "right", "up")
MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
OPPOSITE = {"left": "right", "right": "left", "down": "up", "up": "down"}
STANDARD = {
    "4x4": ("SFFF", "FHFH", "FFFH", "HFFG"),
    "8x8": ("SFFFFFFF", "FFFFFFFF", "FFFHFFFF", "FFFFFHFF", "FFFHFFFF", "FHHFFFHF", "FHFFHFHF", "FFFHFFFG"),
}
DISCOUNT = 0.995  # of the slippery expert; below 1 since a horizon makes dawdling in a safe corner a risk too

Cell = tuple[int, int]


@dataclass(frozen=True)
class Lake:
    """A map, and whether its ice is slippery. On slippery ice a move goes straight or to either side, a third each."""

    rows: tuple[str, ...]
    slippery: bool = False

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """All cells, row by row."""
        return tuple((row, column) for row in range(len(self.rows)) for column in range(len(self.rows[0])))

    def letter(self, cell: Cell) -> str:
        return self.rows[cell[0]][cell[1]]

    @cached_property
    def start(self) -> Cell:
        return next(cell for cell in self.cells if self.letter(cell) == "S")

    @cached_property
    def goal(self) -> Cell:
        return next(cell for cell in self.cells if self.letter(cell) == "G")

    @cached_property
    def ice(self) -> tuple[Cell, ...]:
        """The cells on which an episode goes on."""
        return tuple(cell for cell in self.cells if self.letter(cell) in "SF")

    def neighbour(self, cell: Cell, move: str) -> Cell:
        """Return the cell that a move leads to on dry ice. At the edge of the lake the agent stays where it is."""
        row, column = cell[0] + MOVES[move][0], cell[1] + MOVES[move][1]
        return (row, column) if 0 <= row < len(self.rows) and 0 <= column < len(self.rows[0]) else cell

    def outcomes(self, cell: Cell, action: str) -> tuple[Cell, ...]:
        """Return the equally likely next cells: one on dry ice, else three (one side, straight on, other side)."""
        if not self.slippery:
            return (self.neighbour(cell, action),)
        index = ACTIONS.index(action)
        return tuple(self.neighbour(cell, ACTIONS[(index + turn) % 4]) for turn in (-1, 0, 1))

    @cached_property
    def distances(self) -> dict[Cell, int]:
        """Number of moves to the goal, for each cell that can reach it without a hole. Computed once, breadth first."""
        distances = {self.goal: 0}
        queue = deque([self.goal])
        while queue:
            cell = queue.popleft()
            for move in ACTIONS:
                neighbour = self.neighbour(cell, move)
                if neighbour not in distances and self.letter(neighbour) in "SF":
                    distances[neighbour] = distances[cell] + 1
                    queue.append(neighbour)
        return distances

    @cached_property
    def values(self) -> dict[Cell, float]:
        """Value of each cell: minus its distance; on slippery ice the discounted probability of reaching the goal."""
        if not self.slippery:
            return {cell: -float(distance) for cell, distance in self.distances.items()}
        return dict(zip(self.cells, self._solved[0], strict=True))

    def best_action(self, cell: Cell) -> str:
        """Return the first action on a shortest way; on slippery ice, the action with the best chances.

        Raises:
            ValueError: the goal cannot be reached from there.
        """
        if cell not in self.distances or cell == self.goal:
            raise ValueError(f"no way from {cell} to the goal")
        if self.slippery:
            return ACTIONS[self._solved[1][self.cells.index(cell)]]
        return self._shortest(cell)

    def route(self, cell: Cell) -> Iterator[str]:
        """Yield the moves of a shortest way to the goal, as if nothing slipped."""
        while cell != self.goal:
            move = self._shortest(cell)
            yield move
            cell = self.neighbour(cell, move)

    def _shortest(self, cell: Cell) -> str:
        nearer = self.distances[cell] - 1
        return next(move for move in ACTIONS if self.distances.get(self.neighbour(cell, move)) == nearer)

    @cached_property
    def _solved(self) -> tuple[list[float], list[int]]:
        """Solve slippery ice by policy iteration (Sutton and Barto, section 4.3). Return values and best actions."""
        index_of = {cell: index for index, cell in enumerate(self.cells)}
        to_goal = np.zeros((len(index_of), 4))
        to_ice = np.zeros((4, len(index_of), len(index_of)))
        for cell in self.ice:
            for index, action in enumerate(ACTIONS):
                for neighbour in self.outcomes(cell, action):
                    to_goal[index_of[cell], index] += (neighbour == self.goal) / 3
                    to_ice[index, index_of[cell], index_of[neighbour]] += (self.letter(neighbour) in "SF") / 3
        policy, all_cells = np.zeros(len(index_of), dtype=int), np.arange(len(index_of))
        while True:
            values = np.linalg.solve(
                np.eye(len(index_of)) - DISCOUNT * to_ice[policy, all_cells], to_goal[all_cells, policy]
            )
            action_values = to_goal + DISCOUNT * (to_ice @ values).T
            improved = action_values.max(axis=1) > action_values[all_cells, policy] + 1e-12
            if not improved.any():
                values[index_of[self.goal]] = 1.0
                return values.tolist(), policy.tolist()
            policy[improved] = action_values.argmax(axis=1)[improved]


@lru_cache(maxsize=65_536)
def lake(rows: tuple[str, ...], slippery: bool = False) -> Lake:
    """Return the cached `Lake` of these rows, so that its distances are computed only once."""
    return Lake(rows, slippery)


def restarted(rows: tuple[str, ...], start: Cell) -> tuple[str, ...]:
    """Return the same lake with its start elsewhere."""
    plain = [list(row.replace("S", "F")) for row in rows]
    plain[start[0]][start[1]] = "S"
    return tuple("".join(row) for row in plain)


def draw_rows(rng: np.random.Generator, size: int, holes: float) -> tuple[str, ...]:
    """Draw a square map: start and goal in opposite corners, every other cell a hole with probability `holes`.

    The goal may be out of reach; `Lake.distances` tells.
    """
    letters = np.where(rng.random(size * size) < holes, "H", "F")
    letters[0], letters[-1] = "S", "G"
    text = "".join(letters)
    return tuple(text[i : i + size] for i in range(0, size * size, size))
