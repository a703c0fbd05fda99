"""A synthetic text game of ALFWorld's shape: long episodes, a growing history, many admissible actions, a small state.

ALFWorld itself (Shridhar et al. 2021) needs a simulator and downloads; what matters for speed is the shape of its text:
50 steps, about 40 new tokens of history a step, about 20 admissible actions that take about 200 tokens to list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from reflectrl.core.envs.base import TextEnv
from reflectrl.core.envs.teacher import Teacher
from reflectrl.core.types import Outcome, Task, UserError, named_seed

PLACES = (
    "kitchen cabinet 1", "kitchen cabinet 2", "kitchen cabinet 3", "kitchen cabinet 4",
    "desk drawer 1", "desk drawer 2", "desk drawer 3", "wall shelf 1", "wall shelf 2",
    "side table 1", "stone counter 1",
)  # fmt: skip
"""Places of the house. Their number is odd: the expert puts back on the next tour what it takes on this tour."""
THINGS = ("mug", "plate", "tomato", "knife", "book", "bowl", "spoon", "pencil", "cloth", "pan")
USES = (("clean", "in the sink"), ("heat", "in the oven"), ("cool", "in the fridge"), ("wipe", "with the towel"),
        ("fill", "with the water"), ("show", "to the robot"))  # fmt: skip
HELD_BY_A_PLACE = 4
LISTED = 20
SPLITS = ("train", "validation", "test")


class HouseholdTeacher(Teacher):
    """Teacher that names the expert's action, which is carried out in any case."""

    def expert_action(self, env: Household) -> int:
        return list(env.legal_actions()).index(env.expert())

    def analyse(self, env: Household) -> str:
        carried = f"the {env.carried}" if env.carried else "nothing yet"
        return f"I am at the {env.place} and carry {carried}. To {env.goal} I should next {env.expert()}."


class Household(TextEnv):
    """Carry things from place to place. Whatever action is chosen, the expert's action is carried out.

    The expert tours the places in an order drawn from the task's seed. It takes the first thing that it finds and puts
    it down at the next place. The task is won at the horizon and not before, since only the shape matters.

    Args:
        horizon: steps of every episode.
        tasks: tasks per split.
    """

    teacher = HouseholdTeacher()

    def __init__(self, horizon: int = 50, tasks: int = 64) -> None:
        super().__init__(horizon)
        self.count = tasks

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        if split not in SPLITS or stage not in (None, "full"):
            raise UserError(f"household: unknown split {split!r} or stage {stage!r}")
        first = SPLITS.index(split) * self.count
        return [Task(f"household-{i}", "household", {"seed": i}, split) for i in range(first, first + self.count)]

    def begin(self, task: Task) -> None:
        rng = np.random.default_rng(named_seed("household", task.payload["seed"]))
        self._held = _furnished(rng)
        self._tour = [PLACES[i] for i in rng.permutation(len(PLACES))]
        self.goal = f"put a {rng.choice(THINGS)} in {rng.choice(PLACES)}"
        self.place, self._visits = self._tour[0], 0
        self.carried: str | None = None
        self._past = f"You are in the middle of a room. Looking around you, you see {listing(PLACES)}.\n"

    def apply(self, action: str) -> Outcome:
        action = self.expert()
        verb, _, what = action.partition(" ")
        if verb == "go":
            self._visits += 1
            self.place = self._next_place
            message = f"You arrive at the {self.place}. On it you see {self._seen()}."
        elif verb == "take":
            self.carried = what.removeprefix("the ").partition(" from ")[0]
            self._move(drop=self.carried)
            message = f"You pick up the {self.carried} from the {self.place}. There remains {self._seen()}."
        else:
            self._move(add=self.carried)
            message = f"You put the {self.carried} on the {self.place}. On it you see {self._seen()}."
            self.carried = None
        self._past += f"> {action}\n{message}\n"
        over = self.elapsed + 1 == self.horizon
        return Outcome(float(over), terminated=over, success=over)

    def _move(self, drop: str | None = None, add: str | None = None) -> None:
        """Change the things at the current place in a copy, so that saved states keep theirs."""
        left = [thing for thing in self._held[self.place] if thing != drop]
        self._held = self._held | {self.place: [*left, *([add] if add else [])]}

    def _seen(self) -> str:
        return listing([f"a {thing}" for thing in self._held[self.place]])

    @property
    def _next_place(self) -> str:
        at = self._tour.index(self.place)
        return self._tour[(at + 1) % len(self._tour)]

    def expert(self) -> str:
        """Return the expert's action: take at every other place, put down at the places between, otherwise go on."""
        if self._visits % 2 == 0 and self.carried is None and self._held[self.place]:
            return f"take the {self._held[self.place][0]} from the {self.place}"
        if self._visits % 2 == 1 and self.carried is not None:
            return f"put the {self.carried} on the {self.place}"
        return f"go to the {self._next_place}"

    def history(self) -> str:
        return self._past

    def state(self) -> str:
        carried = f"the {self.carried}" if self.carried else "nothing"
        return f"Your task: {self.goal}. You are at {self.place} and carry {carried}.\n"

    def legal_actions(self) -> Sequence[str]:
        place, contents = self.place, self._held[self.place]
        if self.carried:
            uses = (f"{verb} the {self.carried} {where}" for verb, where in USES)
            here = [f"put the {self.carried} on the {place}", *uses]
        else:
            here = [f"take the {thing} from the {place}" for thing in contents]
        moves = [f"go to the {other}" for other in PLACES if other != place]
        looks = [f"examine the {thing} on the {place}" for thing in contents]
        return (*here, *moves, "look around", "check inventory", *looks)[:LISTED]

    def get_state(self) -> Any:
        return (self._held, self._tour, self.goal, self.place, self.carried, self._visits, self._past)

    def set_state(self, state: Any) -> None:
        self._held, self._tour, self.goal, self.place, self.carried, self._visits, self._past = state


def _furnished(rng: np.random.Generator) -> dict[str, list[str]]:
    """Place things at the start: each place has things of different kinds. Copies of a kind are numbered from 1."""
    copies: Counter[str] = Counter()
    contents: dict[str, list[str]] = {}
    for place in PLACES:
        kinds = [str(kind) for kind in rng.choice(THINGS, HELD_BY_A_PLACE, replace=False)]
        copies.update(kinds)
        contents[place] = [f"{kind} {copies[kind]}" for kind in kinds]
    return contents


def listing(names: Sequence[str]) -> str:
    """Join names as "a, b and c"; "nothing" if there are none."""
    if len(names) < 2:
        return names[0] if names else "nothing"
    return f"{', '.join(names[:-1])} and {names[-1]}"
