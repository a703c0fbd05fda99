"""reflectrl: teach a small, local, private language model to act in a multi-step text environment.

`import reflectrl` is quick: each public name is imported from its module only when it is first used.
"""

TYPE_CHECKING = False  # as in `typing`, which takes its time to import
if TYPE_CHECKING:
    from typing import Any

    from reflectrl.api import Agent, Run, evaluate, load_agent, make_env, train
    from reflectrl.core.envs.base import Outcome, TextEnv
    from reflectrl.core.teach import RecordEpisodes, Recorder, Recording
    from reflectrl.core.types import Choice, Episode, Observation, Reflection, Step, Task, Turn, UserError

__version__ = "0.1.0"

_HOMES = {
    "reflectrl.api": ("Agent", "Run", "evaluate", "load_agent", "make_env", "train"),
    "reflectrl.core.envs.base": ("Outcome", "TextEnv"),
    "reflectrl.core.teach": ("RecordEpisodes", "Recorder", "Recording"),
    "reflectrl.core.types": ("Choice", "Episode", "Observation", "Reflection", "Step", "Task", "Turn", "UserError"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Agent", "Choice", "Episode", "Observation", "Outcome", "RecordEpisodes", "Recorder", "Recording", "Reflection",
    "Run", "Step", "Task", "TextEnv", "Turn", "UserError", "evaluate", "load_agent", "make_env", "train",
]  # fmt: skip


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
