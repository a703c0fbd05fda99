"""DangerousTaxi as a `TextEnv`.

Rules (Reflect-RL, section on benchmarks, and its released code): gymnasium's Taxi drawn as an ASCII map. Rewards are
Taxi's divided by 20. An action that leaves the state unchanged costs 10/20 and ends the episode. The first pick-up
gives a milestone reward of 20/20. There are three departures. Success is decided by the event (picked up, delivered),
never by the return. The horizon is 20: optimal solutions take up to 18 actions, and a horizon of 15 would leave a fifth
of the starts without any solution. The first pick-up costs a step, unless `free_pickup` is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import permutations
from typing import Any, ClassVar, Literal

import numpy as np

from reflectrl.core.envs.base import SPLITS, TextEnv, require_known
from reflectrl.core.types import Outcome, Task, UserError, named_seed
from reflectrl.wings.taxi.teacher import TaxiTeacher
from reflectrl.wings.taxi.wording import WORDINGS
from reflectrl.wings.taxi.world import ABOARD, ACTIONS, CELLS, MOVES, SIZE, STANDARD, Ride, random_city

SIZES = {"standard": (60, 30, 210), "random": (2000, 100, 500)}
TEXTS = ("map", *WORDINGS)
FIRST_MAP_SEED = {"train": 0, "validation": 10**7, "test": 2 * 10**7}
STEP, ILLEGAL, DELIVERY, MILESTONE, SCALE = -1, -10, 20, 20, 20

IN_WORDS = "Rows are counted from the north, columns from the west, both from 0. No taxi drives through a wall."
LEGENDS = {
    "map": "Walls are |. T is the taxi, P the passenger, D the destination; O is the taxi beside the waiting passenger,"
    " X the taxi with the passenger aboard.",
    "words": IN_WORDS,
    "reworded": IN_WORDS,
}
RULES = (
    "You drive a taxi. {} Fetch the passenger and bring them to the destination. An action that is impossible ends the"
    " ride.\n"
)


class TaxiEnv(TextEnv):
    """Fetch the passenger, bring them to the destination, and never try the impossible.

    Args:
        maps: "standard" (gymnasium's map; tasks are start states) or "random" (walls and stops from a seed; every task
            has its own map, and the splits use disjoint seeds).
        train, validation, test: tasks per split for the stages pickup and full; 0 takes the default. On the standard
        map there are 300 starts, and the dropoff stage splits its 100 starts in the same proportions.
        text: "map" (the drawing that the paper's models read), "words" (the same in sentences, with rows and columns as
            numbers, for pretrained models, whose tokens cut up the lines of a drawing; the analyst is brief then) or
            "reworded" (the same facts in other sentences and another order; a model trained on "words" that plays
            "reworded" shows whether it understands the sentences or has memorised them).
        rules: put the rules before everything else.
        history: show the past maps and actions.
        milestone: give a reward for the first pick-up.
        free_pickup: the first pick-up costs no step: it pays 1.0, as in the released code, and not 0.95. The figures of
            the other recipes were measured with 0.95.
        wall_probability: probability of a wall on random maps.
        horizon: 0 takes 20 on the standard map and 30 on random ones, whose longest optimal solutions are longer.
        split_seed: decides which starts of the standard map belong to which split.

    Attributes:
        city, ride: the map, and the positions of taxi, passenger and destination.
        before, last: the ride before the last action, and that action; None at the start.
    """

    stages: ClassVar[tuple[str, ...]] = ("pickup", "dropoff", "full")
    milestones: ClassVar[dict[str, str]] = {"pickup": "pickup"}
    teacher = TaxiTeacher()

    def __init__(
        self,
        maps: Literal["standard", "random"] = "standard",
        train: int = 0,
        validation: int = 0,
        test: int = 0,
        text: Literal["map", "words", "reworded"] = "map",
        rules: bool = False,
        history: bool = False,
        milestone: bool = True,
        free_pickup: bool = False,
        wall_probability: float = 0.3,
        horizon: int = 0,
        split_seed: int = 0,
    ) -> None:
        require_known("taxi", "maps", maps, list(SIZES))
        require_known("taxi", "text", text, TEXTS)
        if not 0 <= wall_probability < 1:
            raise UserError(f"taxi: wall_probability must be in [0, 1), not {wall_probability}")
        super().__init__(horizon or (20 if maps == "standard" else 30))
        self.maps, self.text = maps, text
        self.instructions = RULES.format(LEGENDS[text]).strip()
        self.sizes: dict[str, int] = {}
        for split, count, default in zip(SPLITS, (train, validation, test), SIZES[maps], strict=True):
            self.sizes[split] = count or default
        if min(self.sizes.values()) < 1 or (maps == "standard" and sum(self.sizes.values()) > 300):
            raise UserError(f"taxi: split sizes {self.sizes} must be positive, and at most 300 together on one map")
        self.show_rules, self.show_history = rules, history
        self.milestone, self.free_pickup = milestone, free_pickup
        self.wall_probability, self.split_seed = wall_probability, split_seed

    # ---- tasks -----------------------------------------------------------------------------------------------------

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        stage = stage or self.stages[-1]
        require_known("taxi", "split", split, SPLITS)
        require_known("taxi", "stage", stage, self.stages)
        tasks = list[Task]()
        if self.maps == "random":
            first = FIRST_MAP_SEED[split]  # seeds of the splits are far apart, so no map is in two of them
            for seed in range(first, first + self.sizes[split]):
                tasks.append(Task(f"taxi-{stage}-map{seed}", "taxi", {"map_seed": seed}, split, stage))
            return tasks
        for ride in self._starts[stage == "dropoff"][split]:
            digits = "".join(map(str, ride))
            tasks.append(Task(f"taxi-{stage}-{digits}", "taxi", {"ride": list(ride)}, split, stage))
        return tasks

    @cached_property
    def _starts(self) -> tuple[dict[str, list[Ride]], dict[str, list[Ride]]]:
        """Starts on the standard map per split: with a waiting passenger, and with the passenger aboard."""
        waiting, aboard = list[Ride](), list[Ride]()
        for cell in CELLS:
            for passenger, destination in permutations(range(4), 2):
                waiting.append(Ride(*cell, passenger, destination))
            for destination in range(4):
                aboard.append(Ride(*cell, ABOARD, destination))
        # There are 300 starts with a waiting passenger, and a third as many with the passenger aboard.
        sizes = list(self.sizes.values())
        return self._split(waiting, sizes), self._split(aboard, [max(1, size // 3) for size in sizes])

    def _split(self, rides: list[Ride], sizes: list[int]) -> dict[str, list[Ride]]:
        order = np.random.default_rng(named_seed("taxi-split", self.split_seed)).permutation(len(rides))
        parts = np.split(order, np.cumsum(sizes))[: len(SPLITS)]  # what is left over belongs to no split
        starts: dict[str, list[Ride]] = {}
        for split, part in zip(SPLITS, parts, strict=True):
            starts[split] = [rides[i] for i in part]
        return starts

    # ---- the world -------------------------------------------------------------------------------------------------

    def begin(self, task: Task) -> None:
        if "ride" in task.payload:
            self.city, self.ride = STANDARD, Ride(*task.payload["ride"])
        else:
            seed = task.payload["map_seed"]
            rng = np.random.default_rng(named_seed("taxi-start", seed))
            passenger, destination = (int(stop) for stop in rng.choice(4, size=2, replace=False))
            start = CELLS[rng.integers(len(CELLS))]
            self.city = random_city(seed, self.wall_probability)
            if task.stage == "dropoff":
                passenger = ABOARD
            self.ride = Ride(*start, passenger, destination)
        self._stage, self._picked = task.stage, self.ride.passenger == ABOARD
        self.before: Ride | None = None
        self.last: str | None = None
        self._past = ""
        if self.show_rules:
            self._past = f"{self.instructions}\n"

    def apply(self, action: str) -> Outcome:
        if self.show_history:
            self._past += f"{self.state().partition('Last')[0]}> {action}\n"
        ride, stops = self.ride, self.city.landmarks
        cell, aboard = (ride.row, ride.column), ride.passenger == ABOARD
        after = ride
        if action in MOVES:
            row, column = self.city.moves[cell].get(action, cell)
            after = ride._replace(row=row, column=column)
        elif action == "pickup" and not aboard and cell == stops[ride.passenger]:
            after = ride._replace(passenger=ABOARD)
        elif action == "dropoff" and aboard and cell in stops:
            after = ride._replace(passenger=stops.index(cell))
        self.before, self.last, self.ride = ride, action, after
        # The paper's danger: whatever changes nothing (a wall, nobody to pick up) ends the episode at once.
        if after == ride:
            return Outcome(ILLEGAL / SCALE, terminated=True, events=("illegal",))
        if action == "pickup":
            cost, bonus = STEP, 0
            # Once only: otherwise a player could earn by picking up and setting down for ever.
            if self.milestone and not self._picked:
                bonus = MILESTONE
                if self.free_pickup:
                    cost = 0
            self._picked = True
            won = self._stage == "pickup"  # decided by the event, so no sum of rewards can pass for a success
            return Outcome((cost + bonus) / SCALE, terminated=won, success=won, events=("pickup",))
        if action == "dropoff":
            if after.passenger == after.destination:
                return Outcome(DELIVERY / SCALE, terminated=True, success=True, events=("delivered",))
            return Outcome(STEP / SCALE, events=("wrong stop",))
        return Outcome(STEP / SCALE)

    # ---- text ------------------------------------------------------------------------------------------------------

    def history(self) -> str:
        return self._past

    def state(self) -> str:
        """Return the map, a line per row, 11 characters wide (or the same in sentences), and the last action."""
        city, ride = self.city, self.ride
        if self.text != "map":
            return f"{WORDINGS[self.text](city, ride)}Last: {self.last or 'none'}\n"
        # A later mark covers an earlier one, so the taxi's own says whether the passenger is in it or beside it.
        marks = {city.landmarks[ride.destination]: "D"}
        if ride.passenger == ABOARD:
            marks[ride.cell] = "X"
        else:
            stop = city.landmarks[ride.passenger]
            marks[stop] = "P"
            marks[ride.cell] = "O" if ride.cell == stop else "T"
        edge = "+" + "-" * (2 * SIZE - 1) + "+\n"
        text = edge
        for row in range(SIZE):
            text += "|"
            for column in range(SIZE):
                text += marks.get((row, column), " ")
                walled = column == SIZE - 1 or (row, column) in city.walls
                text += "|" if walled else ":"
            text += "\n"
        return f"{text}{edge}Last: {self.last or 'none'}\n"

    def legal_actions(self) -> Sequence[str]:
        return ACTIONS

    # ---- saving ----------------------------------------------------------------------------------------------------

    def get_state(self) -> Any:
        return (self.city, self.ride, self.before, self.last, self._picked, self._past)

    def set_state(self, state: Any) -> None:
        self.city, self.ride, self.before, self.last, self._picked, self._past = state
        self._stage = self.task.stage
