"""Making training data: expert, noisy and negative trajectories with reflections."""

from reflectrl.teach.trajectories import Lesson, lessons, teach

__all__ = ["Lesson", "lessons", "teach"]
