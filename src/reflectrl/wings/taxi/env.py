"""DangerousTaxi as a `TextEnv`.

Rules (Reflect-RL, section on benchmarks, and its released code): gymnasium's Taxi drawn as an ASCII map; rewards of
Taxi divided by 20; an action that leaves the state unchanged costs 10/20 and ends the episode; the first pick-up pays
a milestone of 20/20. Departures: success is decided by the event (picked up, delivered), never by the return; the
horizon is 20, since optimal solutions take up to 18 actions and a horizon of 15 leaves a fifth of the starts without
any solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from reflectrl.envs.base import Outcome, TextEnv
from reflectrl.plugins import suggestion
from reflectrl.types import Task, UserError, named_seed
from reflectrl.wings.taxi.analyst import analyse
from reflectrl.wings.taxi.world import ABOARD, ACTIONS, CELLS, SIZE, STANDARD, City, Ride, random_city

SPLITS = ("train", "validation", "test")
SIZES = {"standard": (60, 30, 210), "random": (2000, 100, 500)}
FIRST_MAP_SEED = {"train": 0, "validation": 10**7, "test": 2 * 10**7}
STEP, ILLEGAL, DELIVERY, MILESTONE, SCALE = -1, -10, 20, 20, 20

RULES = (
    "You drive a taxi. Walls are |. T is the taxi, P the passenger, D the destination; O is the taxi beside the waiting"
    " passenger, X the taxi with the passenger aboard. Fetch the passenger and bring them to the destination. An action"
    " that is impossible ends the ride.\n"
)


class TaxiEnv(TextEnv):
    """Fetch the passenger, bring them to the destination, and never try the impossible.

    Args:
        maps: "standard" (gymnasium's map; tasks are start states) or "random" (walls and stops from a seed; every task
            has a map of its own, and the splits use disjoint seeds).
        train, validation, test: tasks per split for the stages pickup and full; 0 takes the default. On the standard
            map there are 300 starts, and the dropoff stage splits its 100 starts in the same proportions.
        rules: put the rules before everything else.
        history: show the past maps and actions.
        milestone: pay for the first pick-up.
        wall_probability: of random maps.
        horizon: 0 takes 20 on the standard map and 30 on random ones, whose longest optimal solutions are longer.
        split_seed: decides which starts of the standard map belong to which split.
    """

    stages: ClassVar[tuple[str, ...]] = ("pickup", "dropoff", "full")
    milestones: ClassVar[dict[str, str]] = {"pickup": "pickup"}

    def __init__(
        self,
        maps: Literal["standard", "random"] = "standard",
        train: int = 0,
        validation: int = 0,
        test: int = 0,
        rules: bool = False,
        history: bool = False,
        milestone: bool = True,
        wall_probability: float = 0.3,
        horizon: int = 0,
        split_seed: int = 0,
    ) -> None:
        if maps not in SIZES:
            raise UserError(f"taxi: unknown maps {maps!r}{suggestion(maps, SIZES)}")
        if not 0 <= wall_probability < 1:
            raise UserError(f"taxi: wall_probability must be in [0, 1), not {wall_probability}")
        super().__init__(horizon or (20 if maps == "standard" else 30))
        self.maps = maps
        given = (train, validation, test)
        self.sizes = dict(zip(SPLITS, (n or d for n, d in zip(given, SIZES[maps], strict=True)), strict=True))
        if min(self.sizes.values()) < 1 or (maps == "standard" and sum(self.sizes.values()) > 300):
            raise UserError(f"taxi: split sizes {self.sizes} must be positive, and at most 300 together on one map")
        self.show_rules, self.show_history, self.milestone = rules, history, milestone
        self.wall_probability, self.split_seed = wall_probability, split_seed

    # ---- tasks -----------------------------------------------------------------------------------------------------

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        stage = stage or self.stages[-1]
        if split not in SPLITS:
            raise UserError(f"taxi: unknown split {split!r}{suggestion(split, SPLITS)}")
        if stage not in self.stages:
            raise UserError(f"taxi: unknown stage {stage!r}{suggestion(stage, self.stages)}")
        if self.maps == "random":
            first = FIRST_MAP_SEED[split]
            payloads: list[dict[str, Any]] = [{"map_seed": first + i} for i in range(self.sizes[split])]
            return [Task(f"taxi-{stage}-map{p['map_seed']}", "taxi", p, split, stage) for p in payloads]
        rides = self._starts(stage)[split]
        return [Task(f"taxi-{stage}-" + "".join(map(str, r)), "taxi", {"ride": list(r)}, split, stage) for r in rides]

    def _starts(self, stage: str) -> dict[str, list[Ride]]:
        return self._dropoff_starts if stage == "dropoff" else self._full_starts

    @cached_property
    def _full_starts(self) -> dict[str, list[Ride]]:
        rides = [Ride(*cell, p, d) for cell in CELLS for p in range(4) for d in range(4) if p != d]
        return self._split(rides, [self.sizes[split] for split in SPLITS])

    @cached_property
    def _dropoff_starts(self) -> dict[str, list[Ride]]:
        rides = [Ride(*cell, ABOARD, d) for cell in CELLS for d in range(4)]
        return self._split(rides, [max(1, self.sizes[split] // 3) for split in SPLITS])

    def _split(self, rides: list[Ride], sizes: list[int]) -> dict[str, list[Ride]]:
        order = np.random.default_rng(named_seed("taxi-split", self.split_seed)).permutation(len(rides))
        ends = np.cumsum(sizes)
        parts = np.split(order, ends)[: len(SPLITS)]
        return {split: [rides[i] for i in part] for split, part in zip(SPLITS, parts, strict=True)}

    # ---- the world -------------------------------------------------------------------------------------------------

    def begin(self, task: Task) -> None:
        self._city, self._ride = self._world(task)
        self._before: Ride | None = None
        self._last: str | None = None
        self._picked = self._ride.passenger == ABOARD
        self._past = RULES if self.show_rules else ""

    def _world(self, task: Task) -> tuple[City, Ride]:
        if "ride" in task.payload:
            return STANDARD, Ride(*task.payload["ride"])
        seed = task.payload["map_seed"]
        city = random_city(seed, self.wall_probability)
        rng = np.random.default_rng(named_seed("taxi-start", seed))
        passenger, destination = rng.choice(4, size=2, replace=False)
        passenger = ABOARD if task.stage == "dropoff" else passenger
        return city, Ride(*CELLS[rng.integers(len(CELLS))], int(passenger), int(destination))

    def apply(self, action: str) -> Outcome:
        before, now = self._ride, self._city.next_ride(self._ride, action)
        if self.show_history:
            self._past += f"{self.draw()}> {action}\n"
        self._before, self._last, self._ride = before, action, now
        if now == before:
            return Outcome(ILLEGAL / SCALE, terminated=True, events=("illegal",))
        if action == "pickup":
            bonus = MILESTONE if self.milestone and not self._picked else 0
            self._picked = True
            won = self.task.stage == "pickup"
            return Outcome((STEP + bonus) / SCALE, terminated=won, success=won, events=("pickup",))
        if action == "dropoff" and now.passenger == now.destination:
            return Outcome(DELIVERY / SCALE, terminated=True, success=True, events=("delivered",))
        return Outcome(STEP / SCALE, events=("wrong stop",) if action == "dropoff" else ())

    # ---- text ------------------------------------------------------------------------------------------------------

    def history(self) -> str:
        return self._past

    def state(self) -> str:
        return f"{self.draw()}Last: {self._last or 'none'}\n"

    def draw(self) -> str:
        """The map, a line per row, 11 characters wide."""
        city, ride = self._city, self._ride
        marks = {city.landmarks[ride.destination]: "D"}
        if ride.passenger != ABOARD:
            marks[city.landmarks[ride.passenger]] = "P"
        aboard = ride.passenger == ABOARD
        marks[ride.cell] = "X" if aboard else "O" if marks.get(ride.cell) == "P" else "T"
        edge = "+" + "-" * (2 * SIZE - 1) + "+\n"
        return edge + "".join(self._draw_row(row, marks) for row in range(SIZE)) + edge

    def _draw_row(self, row: int, marks: dict[tuple[int, int], str]) -> str:
        line = "|"
        for column in range(SIZE):
            walled = column == SIZE - 1 or (row, column) in self._city.walls
            line += marks.get((row, column), " ") + ("|" if walled else ":")
        return line + "\n"

    def legal_actions(self) -> Sequence[str]:
        return ACTIONS

    # ---- saving, teaching ------------------------------------------------------------------------------------------

    def get_state(self) -> Any:
        return (self._city, self._ride, self._before, self._last, self._picked, self._past)

    def set_state(self, state: Any) -> None:
        self._city, self._ride, self._before, self._last, self._picked, self._past = state

    def expert_action(self) -> int:
        return ACTIONS.index(self._city.best_action(self._ride))

    def analyse(self) -> str:
        return analyse(self._city, self._ride, self._before, self._last)
