"""Gymnasium's FrozenLake-v1 without slipping, with a new map for every task, seen from the player's cell."""

from functools import cache

from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from reflectrl.core.envs.adapter import GymTextEnv
from reflectrl.core.envs.base import divide
from reflectrl.core.types import Task


@cache
def splits():
    """Return the seeds of each split's maps. All maps are different, and all can be crossed."""
    maps = {tuple(generate_random_map(4, seed=seed)): seed for seed in range(6000)}
    return divide(sorted(maps.values()), {"train": 1000, "validation": 50, "test": 200}, "frozen-maps")


class FrozenMaps(GymTextEnv):
    def __init__(self, horizon: int = 12) -> None:
        super().__init__("FrozenLake-v1", ("left", "down", "right", "up"), horizon, name="frozen-maps")

    def tasks(self, split, stage=None):
        super().tasks(split, stage)  # refuses unknown splits and stages
        return [Task(f"frozen-maps-{seed}", "frozen-maps", {"seed": seed}, split) for seed in splits()[split]]

    def begin(self, task):
        self.wrapped.__init__(desc=generate_random_map(4, seed=task.payload["seed"]), is_slippery=False)
        super().begin(task)

    def describe(self, observation, info):
        lake, (row, column) = self.wrapped.desc, divmod(int(observation), 4)
        cells = {(i, j): lake[i, j].decode() for i in range(4) for j in range(4)} | {(row, column): "A"}
        view = []
        for i in range(row - 2, row + 3):
            view.append("".join(f" {cells.get((i, j), 'W')}" for j in range(column - 2, column + 3)))
        return "\n".join([f"Row {row}, column {column}", *view])  # letters, since each is a token of its own
