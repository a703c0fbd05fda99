"""Teaching data: expert, noisy and negative trajectories with reflections, and recorded demonstrations."""

from reflectrl.teach.record import Recorder, Recording
from reflectrl.teach.recorded import as_told, has_reflections, recorded, replayed, tasks_of
from reflectrl.teach.trajectories import Demonstration, demonstrations, teach
from reflectrl.teach.wrapper import RecordEpisodes

__all__ = [
    "Demonstration",
    "RecordEpisodes",
    "Recorder",
    "Recording",
    "as_told",
    "demonstrations",
    "has_reflections",
    "recorded",
    "replayed",
    "tasks_of",
    "teach",
]
