"""The log of episodes, one JSON line each, and views of it: pure functions from episodes to training rows."""

from reflectrl.core.episodes.foreign import ForeignEpisode, ForeignStep, as_foreign
from reflectrl.core.episodes.log import EpisodeLog, drop_half_line, merge, read_episodes, task_key
from reflectrl.core.episodes.logged import successes, with_carried, with_reflections, without_reflections
from reflectrl.core.episodes.schema import SCHEMA, from_line, to_line, to_lines
from reflectrl.core.episodes.views import (
    ChoiceRow,
    ReflectionRow,
    check_disjoint,
    drop_reflections,
    sft,
    sft_policy,
    sft_reflection,
)

__all__ = [
    "SCHEMA",
    "ChoiceRow",
    "EpisodeLog",
    "ForeignEpisode",
    "ForeignStep",
    "ReflectionRow",
    "as_foreign",
    "check_disjoint",
    "drop_half_line",
    "drop_reflections",
    "from_line",
    "merge",
    "read_episodes",
    "sft",
    "sft_policy",
    "sft_reflection",
    "successes",
    "task_key",
    "to_line",
    "to_lines",
    "with_carried",
    "with_reflections",
    "without_reflections",
]
