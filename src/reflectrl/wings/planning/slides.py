"""Exact distances in Rush Hour, breadth first over arrays of boards.

The package's own search takes seconds a board, because every board is a Python object. Here a board is a row of small
numbers, one per vehicle: its offset along its own direction. All boards of a level are expanded together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIZE = 6
BITS = 3  # of an offset along a direction, 0 to 5

Board = tuple[tuple[int, int], ...]
Offsets = NDArray[np.int64]


class Slides:
    """Vehicles of a trial, and the moves between their boards.

    Args:
        vehicles: the vehicles of a trial of the package.
        start: one of its boards. Vehicles never leave their row or column, so it gives that of each vehicle.
    """

    def __init__(self, vehicles: Sequence[Any], start: Board) -> None:
        self.across = [vehicle.horizontal for vehicle in vehicles]
        self.lengths = [vehicle.length for vehicle in vehicles]
        self.lines = [row if flat else column for flat, (row, column) in zip(self.across, start, strict=True)]
        self._powers = 1 << (BITS * np.arange(len(vehicles), dtype=np.int64))
        self._masks = [self._mask_table(vehicle) for vehicle in range(len(vehicles))]

    def _bit(self, vehicle: int, offset: int) -> int:
        line = self.lines[vehicle]
        return 1 << (line * SIZE + offset if self.across[vehicle] else offset * SIZE + line)

    def _mask_table(self, vehicle: int) -> NDArray[np.int64]:
        """Return the cells that a vehicle covers, as bits of a number, for each of its offsets."""
        length, masks = self.lengths[vehicle], []
        for offset in range(SIZE - length + 1):
            masks.append(sum(self._bit(vehicle, offset + i) for i in range(length)))
        return np.array(masks, dtype=np.int64)

    def offsets(self, boards: Sequence[Board]) -> Offsets:
        """Return boards of the package as rows of offsets."""
        rows = []
        for board in boards:
            rows.append([column if flat else row for flat, (row, column) in zip(self.across, board, strict=True)])
        return np.array(rows, dtype=np.int64).reshape(len(boards), len(self.across))

    def codes(self, offsets: Offsets) -> NDArray[np.int64]:
        """Return a number for each row of offsets. Different rows have different numbers."""
        return offsets @ self._powers

    def neighbours(self, offsets: Offsets) -> Offsets:
        """Return every board one move away from any of these, with repetitions."""
        covered = sum(masks[offsets[:, vehicle]] for vehicle, masks in enumerate(self._masks))
        return np.concatenate([offsets[:0], *self._moved(offsets, np.asarray(covered))])

    def _moved(self, offsets: Offsets, covered: NDArray[np.int64]) -> Iterator[Offsets]:
        for vehicle, length in enumerate(self.lengths):
            cells = np.array([self._bit(vehicle, offset) for offset in range(SIZE)], dtype=np.int64)
            for direction in (-1, 1):
                moving = offsets
                others = covered
                for _ in range(SIZE - length):
                    front = moving[:, vehicle] + (length if direction > 0 else -1)
                    inside = (front >= 0) & (front < SIZE)
                    free = inside & ((others & cells[np.clip(front, 0, SIZE - 1)]) == 0)
                    moving, others = moving[free], others[free]
                    if not len(moving):
                        break
                    moving = moving.copy()
                    moving[:, vehicle] += direction
                    yield moving

    def levels(self, offsets: Offsets) -> Iterator[tuple[Offsets, NDArray[np.int64]]]:
        """Yield the boards 0, 1, 2, ... moves away, with their codes sorted.

        Every move can be taken back, so a neighbour of a level lies on that level, the one before or the next one.
        """
        codes, first = np.unique(self.codes(offsets), return_index=True)
        offsets, before = offsets[first], codes[:0]
        while len(offsets):
            yield offsets, codes
            reached = self.neighbours(offsets)
            reached_codes, first = np.unique(self.codes(reached), return_index=True)
            new = ~(
                np.isin(reached_codes, codes, assume_unique=True) | np.isin(reached_codes, before, assume_unique=True)
            )
            before, offsets, codes = codes, reached[first[new]], reached_codes[new]

    def is_solved(self, offsets: Offsets) -> NDArray[np.bool_]:
        return offsets[:, 0] == SIZE - 2

    def moves_to_exit(self, start: Board) -> int | None:
        """Return the fewest moves from a board to the exit; None if there is no way out."""
        for depth, (offsets, _) in enumerate(self.levels(self.offsets([start]))):
            if self.is_solved(offsets).any():
                return depth
        return None

    def all_distances(self, start: Board) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the codes of all boards that can be reached, sorted, and their distances to the exit."""
        component = [offsets for offsets, _ in self.levels(self.offsets([start]))]
        everything = np.concatenate(component)
        layers = list(self.levels(everything[self.is_solved(everything)]))
        codes = np.concatenate([codes for _, codes in layers])
        depths = np.repeat(np.arange(len(layers)), [len(codes) for _, codes in layers])
        order = np.argsort(codes)
        return codes[order], depths[order]
