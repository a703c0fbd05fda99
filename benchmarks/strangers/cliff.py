"""A gymnasium toy as `init --gym CliffWalking-v1` writes it, with its text edited. Every step costs something."""

from reflectrl.core.envs.adapter import GymTextEnv


class Cliff(GymTextEnv):
    """The one start is the same in every task, so test tasks say how reliably it is walked, not how it generalises."""

    def __init__(self, horizon: int = 60) -> None:
        super().__init__("CliffWalking-v1", ("up", "right", "down", "left"), horizon, name="cliff", scale=20.0)

    def describe(self, observation, info):
        row, column = divmod(int(observation), 12)
        return f"Row {row} of 3, column {column} of 11. The goal is in row 3, column 11."

    def won(self, observation, reward, info):
        return True


def best(env):
    """Return the next action of the shortest way, along the cliff."""
    row, column = divmod(int(env._seen), 12)
    if column == 11:
        return "down"
    return "up" if row == 3 else "right"
