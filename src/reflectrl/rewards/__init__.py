"""Rewards of written text: components by name or plug-in, scored in batches, kept, and summed by weights."""

from reflectrl.rewards.base import Component, response_of
from reflectrl.rewards.total import Reward, build

__all__ = ["Component", "Reward", "build", "response_of"]
