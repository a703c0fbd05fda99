"""Chance: collect 20 points in three turns of dice. Rolling on may lose a turn's points, stopping keeps them."""

from functools import cache

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, require_known
from reflectrl.core.types import Task

GOAL, TURNS = 20, 3
FIRST = {"train": 0, "validation": 10_000, "test": 20_000}
SIZES = {"train": 200, "validation": 100, "test": 200}


class Dice(TextEnv):
    """A one loses what the turn has brought, and the turn. The best player wins three games of four."""

    def __init__(self, horizon: int = 30) -> None:
        super().__init__(horizon)

    def tasks(self, split, stage=None):
        require_known("dice", "split", split, SPLITS)
        require_known("dice", "stage", stage or "full", self.stages)
        seeds = range(FIRST[split], FIRST[split] + SIZES[split])
        return [Task(f"dice-{seed}", "dice", {"seed": seed}, split) for seed in seeds]

    def begin(self, task):
        self.kept, self.pot, self.turns = 0, 0, TURNS

    def apply(self, action):
        if action == "roll":
            rolled = int(self.np_random.integers(1, 7))
            if rolled > 1:
                self.pot += rolled
                return Outcome(0.0)
            self.pot = 0
        self.kept, self.pot, self.turns = self.kept + self.pot, 0, self.turns - 1
        won = self.kept >= GOAL
        return Outcome(float(won), terminated=won or not self.turns, success=won)

    def state(self):
        needed = max(0, GOAL - self.kept - self.pot)
        return f"Kept: {self.kept}. This turn: {self.pot}. Still needed: {needed}. Turns left: {self.turns}.\n"

    def legal_actions(self):
        return ["roll", "stop"]


@cache
def chance(banked, pot, turns):
    """Return the best chance to win from a state."""
    if banked >= GOAL:
        return 1.0
    return max(rolling(banked, pot, turns), stopping(banked, pot, turns)) if turns else 0.0


def stopping(banked, pot, turns):
    """Return the chance to win after stopping."""
    return chance(banked + pot, 0, turns - 1)


def rolling(banked, pot, turns):
    """Return the chance to win after rolling."""
    if pot >= GOAL:
        return 0.0
    return (chance(banked, 0, turns - 1) + sum(chance(banked, pot + n, turns) for n in range(2, 7))) / 6


def best(env):
    """Return the action with the better chance."""
    state = env.kept, env.pot, env.turns
    return "roll" if rolling(*state) > stopping(*state) else "stop"
