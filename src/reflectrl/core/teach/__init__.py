"""Teaching data: expert, noisy and negative trajectories with reflections, and recorded demonstrations."""

from reflectrl.core.teach.record import Recorder, Recording
from reflectrl.core.teach.recorded import has_reflections, recorded, replayed, tasks_of, unreplayed
from reflectrl.core.teach.trajectories import Demonstration, demonstrations, expert_length, teach
from reflectrl.core.teach.wrapper import RecordEpisodes

__all__ = [
    "Demonstration",
    "RecordEpisodes",
    "Recorder",
    "Recording",
    "demonstrations",
    "expert_length",
    "has_reflections",
    "recorded",
    "replayed",
    "tasks_of",
    "teach",
    "unreplayed",
]
