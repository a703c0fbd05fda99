"""ALFWorld: household tasks as text, played by a native engine."""

from reflectrl.envs.alfworld.env import AlfworldEnv

__all__ = ["AlfworldEnv"]
