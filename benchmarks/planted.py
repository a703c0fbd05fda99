"""Small environments with one planted fault each, for `benchmarks.certified`.

`Sound` classes are worlds without a fault; each fault changes one of them in one respect. `FAULTS` says which check of
`reflectrl certify` has to name it.
"""

from __future__ import annotations

import random
import time
from itertools import product
from typing import Any, ClassVar

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, divide, require_known
from reflectrl.core.types import Task

ROOMS = ("hall", "kitchen", "office", "garden", "cellar", "attic")
COLOURS = ("red", "green", "blue", "white", "black", "grey")


class World(TextEnv):
    """Base of the worlds below: tasks are cases, divided among the splits."""

    cases: ClassVar[list[list[Any]]]
    sizes: ClassVar[tuple[int, int, int]] = (60, 15, 25)

    def __init__(self, horizon: int = 12) -> None:
        super().__init__(horizon)
        sizes = dict(zip(SPLITS, self.sizes, strict=True))
        self.divided = divide(self.cases, sizes, type(self).__mro__[-4].__name__)

    def tasks(self, split: str, stage: str | None = None) -> list[Task]:
        require_known("planted", "split", split, SPLITS)
        require_known("planted", "stage", stage or "full", self.stages)
        return [Task("-".join(map(str, case)), "planted", {"case": case}, split) for case in self.divided[split]]


class Parcel(World):
    """Fetch a parcel, and bring it to its room."""

    cases: ClassVar[list[list[Any]]] = [list(case) for case in product(ROOMS, repeat=3) if case[1] != case[2]]

    def begin(self, task: Task) -> None:
        self.room, self.parcel, self.goal = task.payload["case"]

    def apply(self, action: str) -> Outcome:
        if action in ROOMS:
            self.room = action
        elif action == "take" and self.parcel == self.room:
            self.parcel = "you"
            return Outcome(0.3)
        elif action == "drop" and self.parcel == "you":
            self.parcel = self.room
            won = self.room == self.goal
            return Outcome(1.0 if won else -0.3, terminated=won, success=won)
        return Outcome(-0.05)

    def state(self) -> str:
        where = "in your hands" if self.parcel == "you" else f"in the {self.parcel}"
        return f"You are in the {self.room}. The parcel is {where}. It belongs in the {self.goal}.\n"

    def legal_actions(self) -> list[str]:
        return [*ROOMS, "take", "drop"]


class Lamps(World):
    """Press three named buttons in a row. A wrong one ends the game."""

    cases: ClassVar[list[list[Any]]] = [list(case) for case in product(COLOURS, repeat=3)]

    def begin(self, task: Task) -> None:
        self.order, self.pressed = list(task.payload["case"]), 0

    def apply(self, action: str) -> Outcome:
        if action != self.order[self.pressed]:
            return Outcome(-0.2, terminated=True)
        self.pressed += 1
        won = self.pressed == len(self.order)
        return Outcome(1.0 if won else 0.1, terminated=won, success=won)

    def state(self) -> str:
        return f"Lamp {self.pressed + 1}. Press {self.order[min(self.pressed, 2)]}.\n"

    def legal_actions(self) -> list[str]:
        return sorted(COLOURS)


class Corridor(World):
    """Walk to the key, then to the door, and open it."""

    cases: ClassVar[list[list[Any]]] = [
        [start, key, door] for start, key, door in product(range(8), repeat=3) if key != door
    ]

    def __init__(self, horizon: int = 24) -> None:
        super().__init__(horizon)

    def begin(self, task: Task) -> None:
        self.cell, self.key, self.door = task.payload["case"]
        self.has_key = False

    def apply(self, action: str) -> Outcome:
        if action in ("left", "right"):
            self.cell = min(max(0, self.cell + (1 if action == "right" else -1)), 7)
        elif action == "take" and self.cell == self.key and not self.has_key:
            self.has_key = True
            return Outcome(0.2)
        elif action == "open" and self.cell == self.door and self.has_key:
            return Outcome(1.0, terminated=True, success=True)
        return Outcome(-0.02)

    def state(self) -> str:
        key_text = "You hold the key." if self.has_key else f"The key lies in cell {self.key}."
        return f"You are in cell {self.cell}. {key_text} The door is in cell {self.door}.\n"

    def legal_actions(self) -> list[str]:
        return ["left", "right", "take", "open"]


# ---- not deterministic -----------------------------------------------------------------------------------------------


class RareNoise(Parcel):
    """Once in thirty steps, the global random generator moves the player."""

    def apply(self, action: str) -> Outcome:
        outcome = super().apply(action)
        if random.random() < 1 / 30:
            self.room = random.choice(ROOMS)
        return outcome


class SetOrder(Lamps):
    """After the first step, a set decides the order of the actions."""

    def legal_actions(self) -> list[str]:
        return list(set(COLOURS)) if self.pressed else sorted(COLOURS)


class ByTheClock(Corridor):
    """By night, the key cannot be taken."""

    def apply(self, action: str) -> Outcome:
        if action == "take" and time.localtime().tm_hour >= 12 and self.elapsed > 2:
            return Outcome(-0.02)
        return super().apply(action)

    def state(self) -> str:
        return f"It is {time.strftime('%A, %H', time.localtime(time.time()))} o'clock. {super().state()}"


# ---- not isolated ----------------------------------------------------------------------------------------------------


class SharedRoom(Parcel):
    """All environments have one player."""

    place: ClassVar[dict[str, str]] = {}

    def begin(self, task: Task) -> None:
        super().begin(task)
        self.place["room"] = self.room

    def apply(self, action: str) -> Outcome:
        self.room = self.place["room"]
        outcome = super().apply(action)
        self.place["room"] = self.room
        return outcome


class KeepsTheKey(Corridor):
    """A key that was taken is still held in the next episode."""

    has_key = False

    def begin(self, task: Task) -> None:
        had_key = self.has_key
        super().begin(task)
        self.has_key = had_key


class Tired(Lamps):
    """After twenty episodes, no lamp pays any more."""

    episodes = 0

    def begin(self, task: Task) -> None:
        super().begin(task)
        self.episodes += 1

    def apply(self, action: str) -> Outcome:
        outcome = super().apply(action)
        return Outcome(0.0, outcome.terminated, outcome.success) if self.episodes > 20 else outcome


class SpendsItsTask(Lamps):
    """Pressing a lamp takes it out of the task itself."""

    def begin(self, task: Task) -> None:
        self.order, self.pressed = task.payload["case"], 0

    def apply(self, action: str) -> Outcome:
        outcome = super().apply(action)
        if action == self.order[0] and len(self.order) == 3:
            self.order.append(self.order.pop(0))
            self.order.append("red")
        return outcome

    def state(self) -> str:
        return f"Lamp {self.pressed + 1} of {len(self.order)}. Press {self.order[min(self.pressed, 2)]}.\n"

    def tasks(self, split: str, stage: str | None = None) -> list[Task]:
        if not hasattr(self, "listed"):
            self.listed = {name: super(SpendsItsTask, self).tasks(name) for name in SPLITS}
        return list(self.listed[split]) if split in SPLITS and stage in (None, "full") else super().tasks(split, stage)


# ---- test tasks that are training tasks ------------------------------------------------------------------------------


class FewWorlds(Corridor):
    """Tasks are seeds, but there are only twelve worlds."""

    def tasks(self, split: str, stage: str | None = None) -> list[Task]:
        super().tasks(split, stage)
        first = 1000 * SPLITS.index(split)
        return [Task(f"seed-{n}", "planted", {"seed": n}, split) for n in range(first, first + 60)]

    def begin(self, task: Task) -> None:
        case = self.cases[(task.payload["seed"] % 12) * 31]
        super().begin(Task(task.id, "planted", {"case": case}, task.split))


class CopiedTasks(Parcel):
    """Some test tasks are training tasks with a note added."""

    def tasks(self, split: str, stage: str | None = None) -> list[Task]:
        tasks = super().tasks(split, stage)
        if split == "test":
            copied = super().tasks("train")[:8]
            tasks[:8] = [Task(f"again-{t.id}", t.env, {**t.payload, "note": "copy"}, split) for t in copied]
        return tasks


# ---- text that hides what matters ------------------------------------------------------------------------------------


class NoGoal(Lamps):
    """The text does not name the button to press."""

    def state(self) -> str:
        return f"Lamp {self.pressed + 1} of 3. Press the right button.\n"


class NoKey(Corridor):
    """The text does not say whether the key is held."""

    def state(self) -> str:
        return f"You are in cell {self.cell}. The key was in cell {self.key}. The door is in cell {self.door}.\n"


class BlindLock(World):
    """A lock with a code of three digits, the same in all tasks. The text never changes."""

    cases: ClassVar[list[list[Any]]] = [[name] for name in range(100)]

    def begin(self, task: Task) -> None:
        self.name, self.right = task.payload["case"][0], 0

    def apply(self, action: str) -> Outcome:
        if int(action) != (3, 1, 2)[self.right]:
            return Outcome(-0.1, terminated=True)
        self.right += 1
        won = self.right == 3
        return Outcome(float(won), terminated=won, success=won)

    def state(self) -> str:
        return f"This is lock {self.name}. Turn the dial.\n"

    def legal_actions(self) -> list[str]:
        return ["1", "2", "3", "4"]


class HiddenGoal(Parcel):
    """The text does not say where the parcel belongs, and a wrong delivery ends the game."""

    def apply(self, action: str) -> Outcome:
        was_held = self.parcel == "you"
        outcome = super().apply(action)
        return Outcome(-0.3, terminated=True) if action == "drop" and was_held and not outcome.success else outcome

    def state(self) -> str:
        return super().state().partition(" It belongs")[0] + "\n"


# ---- reward that pays for nothing ------------------------------------------------------------------------------------


class PaidToLive(Corridor):
    """Every step pays, and the win ends the pay."""

    def apply(self, action: str) -> Outcome:
        outcome = super().apply(action)
        return Outcome(outcome.reward + 0.12, outcome.terminated, outcome.success)


class TakeAndDrop(Parcel):
    """Taking pays each time, dropping costs nothing."""

    def apply(self, action: str) -> Outcome:
        outcome = super().apply(action)
        return Outcome(max(0.0, outcome.reward), outcome.terminated, outcome.success)


class SurrenderPays(Corridor):
    """Giving up pays more than the door."""

    def apply(self, action: str) -> Outcome:
        return Outcome(1.5, terminated=True) if action == "give up" else super().apply(action)

    def legal_actions(self) -> list[str]:
        return [*super().legal_actions(), "give up"]


class NothingPays(Lamps):
    """A win earns what a loss earns."""

    def apply(self, action: str) -> Outcome:
        outcome = super().apply(action)
        return Outcome(0.0, outcome.terminated, outcome.success)


# ---- no headroom -----------------------------------------------------------------------------------------------------


class FirstIsRight(Lamps):
    """The right button always stands first."""

    def legal_actions(self) -> list[str]:
        right = self.order[min(self.pressed, 2)]
        return [right, *(name for name in sorted(COLOURS) if name != right)]


class AnyEndWins(Lamps):
    """Every end of the game counts as a success."""

    def apply(self, action: str) -> Outcome:
        outcome = super().apply(action)
        return Outcome(abs(outcome.reward), outcome.terminated, outcome.terminated)


class NoKeyThere(Corridor):
    """In a third of the tasks there is no key."""

    def begin(self, task: Task) -> None:
        super().begin(task)
        if sum(task.payload["case"]) % 3 == 0:
            self.key = 99


class TooShort(Corridor):
    """The horizon is too short for most tasks."""

    def __init__(self, horizon: int = 5) -> None:
        super().__init__(horizon)


# ---- broken promises -------------------------------------------------------------------------------------------------


class RewritesHistory(Corridor):
    """The log is cut after six lines."""

    def begin(self, task: Task) -> None:
        super().begin(task)
        self.lines: list[str] = []

    def apply(self, action: str) -> Outcome:
        self.lines.append(f"> {action}\n")
        return super().apply(action)

    def history(self) -> str:
        return "".join(self.lines[-6:])


class LosesTheKey(Corridor):
    """A saved point does not hold the key."""

    def get_state(self) -> Any:
        return self.cell, self.key, self.door

    def set_state(self, state: Any) -> None:
        self.cell, self.key, self.door = state
        self.has_key = False


FAULTS: dict[type[TextEnv], str] = {
    RareNoise: "deterministic",
    SetOrder: "deterministic",
    ByTheClock: "deterministic",
    SharedRoom: "isolated",
    KeepsTheKey: "isolated",
    Tired: "isolated",
    SpendsItsTask: "isolated",
    FewWorlds: "splits",
    CopiedTasks: "splits",
    NoGoal: "text",
    NoKey: "text",
    BlindLock: "text",
    HiddenGoal: "text",
    PaidToLive: "reward",
    TakeAndDrop: "reward",
    SurrenderPays: "reward",
    NothingPays: "reward",
    FirstIsRight: "headroom",
    AnyEndWins: "headroom",
    NoKeyThere: "headroom",
    TooShort: "headroom",
    RewritesHistory: "promises",
    LosesTheKey: "promises",
}
"""Environments with a fault, and the check that has to name it."""
SOUND: tuple[type[TextEnv], ...] = (Parcel, Lamps, Corridor)
"""The same worlds without a fault."""
