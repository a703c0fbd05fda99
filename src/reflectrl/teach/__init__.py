"""Making training data: expert, noisy and negative trajectories with reflections."""

from reflectrl.teach.trajectories import Demonstration, demonstrations, teach

__all__ = ["Demonstration", "demonstrations", "teach"]
