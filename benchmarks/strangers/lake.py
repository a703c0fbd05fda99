"""A game of TextArena: the frozen lake, on a map that the game draws."""

from collections import deque

from reflectrl.wings.textarena.env import TextArenaEnv

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


class Lake(TextArenaEnv):
    """The game's own board is all that players see. The game pays for progress at its end."""

    def __init__(self, horizon: int = 24) -> None:
        super().__init__(
            "FrozenLake-v0", horizon=horizon, rules=False, messages=False, train=400, validation=40, test=100
        )


def best(env):
    """Return the first move of a shortest way around the holes."""
    game = env.game
    grid, start = game.state.game_state["grid"], tuple(game.state.game_state["player_pos"])
    waiting, seen = deque([(start, None)]), {start}
    while waiting:
        (row, column), first = waiting.popleft()
        if grid[row][column] == "G":
            return first
        for name, (down, right) in MOVES.items():
            cell = (row + down, column + right)
            if all(0 <= n < game.size for n in cell) and cell not in seen and grid[cell[0]][cell[1]] != "H":
                seen.add(cell)
                waiting.append((cell, first or name))
    raise ValueError(f"{env.task.id} cannot be won")
