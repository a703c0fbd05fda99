"""FrozenLake: gymnasium's grid of ice and holes as text."""

from reflectrl.envs.frozenlake.env import FrozenLakeEnv

__all__ = ["FrozenLakeEnv"]
