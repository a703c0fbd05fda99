"""Keys and doors by walking: three rooms in a row, and the key to each door lies somewhere in the room before it."""

import numpy as np

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, require_known
from reflectrl.core.types import Task

SIZE, ROOMS = 3, 2
WALK = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
FIRST = {"train": 0, "validation": 10_000, "test": 20_000}
SIZES = {"train": 300, "validation": 40, "test": 100}


class Castle(TextEnv):
    """Rooms have three by three squares. A door stands on a square of its room; open it with the key, and go on."""

    def __init__(self, horizon: int = 30) -> None:
        super().__init__(horizon)

    def tasks(self, split, stage=None):
        require_known("castle", "split", split, SPLITS)
        require_known("castle", "stage", stage or "full", self.stages)
        seeds = range(FIRST[split], FIRST[split] + SIZES[split])
        return [Task(f"castle-{seed}", "castle", {"seed": seed}, split) for seed in seeds]

    def begin(self, task):
        rng = np.random.default_rng(task.payload["seed"])
        squares = [(x, y) for x in range(SIZE) for y in range(SIZE)]
        self.plan = [[squares[i] for i in rng.choice(len(squares), size=3, replace=False)] for _ in range(ROOMS)]
        self.room, self.held = 0, False
        self.at = self.plan[0][0]

    def apply(self, action):
        if action in WALK:
            self.at = tuple(np.add(self.at, WALK[action]).tolist())
        elif action == "take key":
            self.held = True
            return Outcome(0.1, events=("key",))
        else:
            self.held, self.room = False, self.room + 1
            if self.room == ROOMS:
                return Outcome(1.0, terminated=True, success=True)
            self.at = self.plan[self.room][0]
            return Outcome(0.2, events=("door",))
        return Outcome(-0.01)

    def state(self):
        if self.room == ROOMS:
            return "You are free.\n"
        _, key, door = self.plan[self.room]
        carried = "You carry the key." if self.held else f"The key lies {self.direction(key)}."
        return f"Room {self.room + 1} of {ROOMS}. {carried} The door is {self.direction(door)}.\n"

    def direction(self, square):
        """Say where a square is."""
        east, north = square[0] - self.at[0], square[1] - self.at[1]
        parts = [f"{abs(east)} {'east' if east > 0 else 'west'}"] if east else []
        parts += [f"{abs(north)} {'north' if north > 0 else 'south'}"] if north else []
        return " and ".join(parts) or "here"

    def legal_actions(self):
        if self.room == ROOMS:
            return []
        _, key, door = self.plan[self.room]
        actions = [name for name, step in WALK.items() if all(0 <= n < SIZE for n in np.add(self.at, step))]
        if self.at == key and not self.held:
            actions.append("take key")
        return [*actions, "open door"] if self.at == door and self.held else actions


def best(env):
    """Return the next action on the way to the key, then to the door."""
    _, key, door = env.plan[env.room]
    goal = door if env.held else key
    if env.at == goal:
        return "open door" if env.held else "take key"
    if goal[0] != env.at[0]:
        return "east" if goal[0] > env.at[0] else "west"
    return "north" if goal[1] > env.at[1] else "south"
