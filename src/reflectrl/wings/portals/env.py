"""Portals as a `TextEnv`: follow a parcel through several portals, and name the room in which it comes out.

    Portals from a to h lead to: e h b a g d c f.
    The parcel in c goes 4 portals.

Eight rooms have one portal each, and every task has its own portals, so nothing can be learned by heart. The portals
form a single ring. So no journey of up to seven portals returns to a room, and each of the other seven rooms is equally
likely to be the answer. Four portals are the hardest, because five portals forwards are three backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import permutations
from typing import Any, Literal

import numpy as np

from reflectrl.core.envs.base import SPLITS, TextEnv, divide, require_known
from reflectrl.core.types import Outcome, Task, UserError, named_seed
from reflectrl.wings.portals.teacher import ANALYSES, PortalsTeacher

ROOMS = "abcdefgh"
RINGS = 5040
"""Number of rings through all eight rooms: 7!."""


class PortalsEnv(TextEnv):
    """Say in which room each parcel comes out. A wrong answer ends the episode.

    Args:
        portals: number of portals that every parcel goes through, 1 to 7.
        parcels: number of parcels per task, each from another room. The task is won if all answers are right.
        analysis: the analyst's text. "steps" writes down every stop, the last of which is the answer; "answer" names
            only the last stop; "filler" replaces the other stops by words without content.
        train, validation, test: tasks per split. No ring is in two splits.
        split_seed: decides which ring belongs to which split.

    Raises:
        UserError: an argument is unknown, out of range, or asks for more tasks than there are rings.

    Attributes:
        ring: for each room, the room to which its portal leads.
        starts: rooms of the parcels, in order.
        solved: number of right answers so far.
    """

    teacher = PortalsTeacher()
    instructions = "Every room has a portal to another room. Say in which room the parcel comes out."

    def __init__(
        self,
        portals: int = 4,
        parcels: int = 3,
        analysis: Literal["steps", "answer", "filler"] = "steps",
        train: int = 3000,
        validation: int = 100,
        test: int = 300,
        split_seed: int = 0,
    ) -> None:
        require_known("portals", "analysis", analysis, ANALYSES)
        if not (1 <= portals < len(ROOMS) and 1 <= parcels <= len(ROOMS)):
            raise UserError(f"portals: portals must be in 1..7 and parcels in 1..8, not {portals} and {parcels}")
        super().__init__(horizon=parcels)
        self.portals, self.parcels, self.analysis = portals, parcels, analysis
        self.sizes, self.split_seed = {"train": train, "validation": validation, "test": test}, split_seed
        if min(self.sizes.values()) < 1 or sum(self.sizes.values()) > RINGS:
            raise UserError(f"portals: split sizes {self.sizes} must be positive, and at most {RINGS} together")

    # ---- tasks -----------------------------------------------------------------------------------------------------

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        require_known("portals", "split", split, SPLITS)
        require_known("portals", "stage", stage or "full", self.stages)
        return _tasks(split, tuple(self.sizes.values()), self.split_seed, self.parcels)

    # ---- the world -------------------------------------------------------------------------------------------------

    def begin(self, task: Task) -> None:
        order = task.payload["ring"]
        self.ring = dict(zip(order, order[1:] + order[0], strict=True))
        self.starts, self.solved = task.payload["starts"], 0

    def stops(self) -> list[str]:
        """Return the rooms that the current parcel comes through, the last one included."""
        room, rooms = self.starts[self.solved], []
        for _ in range(self.portals):
            room = self.ring[room]
            rooms.append(room)
        return rooms

    def apply(self, action: str) -> Outcome:
        if action != self.stops()[-1]:
            return Outcome(0.0, terminated=True, events=("wrong room",))
        self.solved += 1
        won = self.solved == self.parcels
        return Outcome(1 / self.parcels, terminated=won, success=won)

    # ---- text ------------------------------------------------------------------------------------------------------

    def history(self) -> str:
        """List the rooms to which the portals lead, in the order of the rooms where they stand."""
        return f"Portals from {ROOMS[0]} to {ROOMS[-1]} lead to: {' '.join(self.ring[room] for room in ROOMS)}.\n"

    def state(self) -> str:
        if self.solved == self.parcels:
            return "Every parcel was followed.\n"
        return f"The parcel in {self.starts[self.solved]} goes {self.portals} portals.\n"

    def legal_actions(self) -> Sequence[str]:
        return tuple(ROOMS)

    # ---- saving ----------------------------------------------------------------------------------------------------

    def get_state(self) -> Any:
        return self.ring, self.starts, self.solved

    def set_state(self, state: Any) -> None:
        self.ring, self.starts, self.solved = state


@cache
def _tasks(split: str, sizes: tuple[int, ...], split_seed: int, parcels: int) -> tuple[Task, ...]:
    """Return the tasks of a split: its rings, each with the rooms in which the parcels begin."""
    tasks = []
    for ring in _rings(sizes, split_seed)[split]:
        rng = np.random.default_rng(named_seed("portals-starts", ring))
        starts = "".join(ROOMS[i] for i in rng.permutation(len(ROOMS))[:parcels])
        tasks.append(Task(f"portals-{ring}-{starts}", "portals", {"ring": ring, "starts": starts}, split))
    return tuple(tasks)


@cache
def _rings(sizes: tuple[int, ...], split_seed: int) -> dict[str, list[str]]:
    """Return the rings of each split. A ring is written as the rooms in the order in which its portals pass them."""
    rings = [f"{ROOMS[0]}{''.join(rest)}" for rest in permutations(ROOMS[1:])]
    return divide(rings, dict(zip(SPLITS, sizes, strict=True)), "portals", split_seed)
