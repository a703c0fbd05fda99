"""Rewards of generated text: components by name or plug-in, scored in batches, cached, and summed with weights."""

from reflectrl.wings.text.rewards.base import Component, response_of
from reflectrl.wings.text.rewards.total import Reward, build

__all__ = ["Component", "Reward", "build", "response_of"]
