"""Samples: prompts, completions and rewards to learn from offline, read from data files of many forms."""

from reflectrl.samples.reading import Reading, read_samples, stream_samples, write_samples
from reflectrl.samples.rows import Gate
from reflectrl.samples.sample import Sample, Samples, Skipped, group_of
from reflectrl.samples.steps import StepReading, from_episode, return_bounds

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
    "return_bounds",
    "stream_samples",
    "write_samples",
]
