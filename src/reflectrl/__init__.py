"""reflectrl: teach a small, local, private language model to act in a multi-step text environment.

`import reflectrl` is quick: each public name is imported from its module only when it is first used.
"""

TYPE_CHECKING = False  # as in `typing`, which takes its time to import
if TYPE_CHECKING:
    from typing import Any

    from reflectrl.api import Agent, Run, evaluate, load_agent, make_env, train
    from reflectrl.core.envs.adapter import GymTextEnv
    from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, divide, require_known
    from reflectrl.core.envs.teacher import Teacher
    from reflectrl.core.envs.written import WrittenEnv
    from reflectrl.core.teach import RecordEpisodes, Recorder, Recording
    from reflectrl.core.types import (
        AuxiliaryQuestion,
        Choice,
        Episode,
        Observation,
        Reflection,
        Step,
        Task,
        Turn,
        UserError,
    )
    from reflectrl.tools.workbench.check import check_text_env
    from reflectrl.wings.babyai.view import View

__version__ = "0.1.0"

_HOMES = {
    "reflectrl.api": ("Agent", "Run", "evaluate", "load_agent", "make_env", "train"),
    "reflectrl.core.envs.adapter": ("GymTextEnv",),
    "reflectrl.core.envs.base": ("SPLITS", "Outcome", "TextEnv", "divide", "require_known"),
    "reflectrl.core.envs.teacher": ("Teacher",),
    "reflectrl.core.envs.written": ("WrittenEnv",),
    "reflectrl.core.teach": ("RecordEpisodes", "Recorder", "Recording"),
    "reflectrl.core.types": (
        "AuxiliaryQuestion", "Choice", "Episode", "Observation", "Reflection", "Step", "Task", "Turn", "UserError",
    ),
    "reflectrl.tools.workbench.check": ("check_text_env",),
    "reflectrl.wings.babyai.view": ("View",),
}  # fmt: skip
"""Modules of the public names. These names stay, wherever the modules move."""
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "SPLITS", "Agent", "AuxiliaryQuestion", "Choice", "Episode", "GymTextEnv", "Observation", "Outcome",
    "RecordEpisodes", "Recorder", "Recording", "Reflection", "Run", "Step", "Task", "Teacher", "TextEnv", "Turn",
    "UserError", "View", "WrittenEnv", "check_text_env", "divide", "evaluate", "load_agent", "make_env",
    "require_known", "train",
]  # fmt: skip


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
