"""Samples for offline learning: prompts, completions and rewards, read from data files in several forms."""

from reflectrl.wings.text.samples.reading import Reading, read_samples, stream_samples
from reflectrl.wings.text.samples.rows import Gate
from reflectrl.wings.text.samples.sample import Sample, Samples, Skipped, group_of, to_unit
from reflectrl.wings.text.samples.steps import StepReading, from_episode
from reflectrl.wings.text.samples.writing import to_trl, write_samples

__all__ = [
    "Gate",
    "Reading",
    "Sample",
    "Samples",
    "Skipped",
    "StepReading",
    "from_episode",
    "group_of",
    "read_samples",
    "stream_samples",
    "to_trl",
    "to_unit",
    "write_samples",
]
