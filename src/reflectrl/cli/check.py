"""`check-env`: does an environment keep its promises, and what can be done with it?"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reflectrl.cli.projects import EnvName, env_section
from reflectrl.config import Word
from reflectrl.config.values import read_word
from reflectrl.plugins import one_line
from reflectrl.types import UserError

if TYPE_CHECKING:
    from reflectrl.envs.base import TextEnv
    from reflectrl.learn.signal import Signal

EPISODES, STEPS = 200, 20_000
"""Random play ends with whichever comes first."""
LISTS_TASKS = """
import json, sys
from reflectrl.envs import make
env = make(json.loads(sys.argv[1]))
print(json.dumps([[task.id, dict(task.payload)] for task in env.tasks("train")], sort_keys=True))
"""


@dataclass(frozen=True)
class CheckEnv:
    """Try the promises of an environment, and say what it is fit for: play, reward alone, or teaching.

    Any argument of the environment is an option: --size 6
    """

    env: EnvName
    """Name of an environment, package.module:Class, or the folder of a project that `init` has begun."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Check, and print what was found; a broken promise, or nothing to be learned, ends with exit code 2."""
        section = env_section(self.env, settings)
        try:
            print(checked(section))
        except (UserError, KeyboardInterrupt):
            raise
        except BaseException as error:  # whatever the environment's own code raises
            raise UserError(f"environment {section['name']!r} raised {one_line(error)}") from error


def checked(section: dict[str, Any]) -> str:
    """What there is to say of the environment that an `env` section describes.

    Raises:
        UserError: the first broken promise, or why nobody could learn anything.
    """
    from reflectrl.envs import make
    from reflectrl.envs.base import SPLITS
    from reflectrl.envs.check import EnvCheckError, check_text_env
    from reflectrl.learn.signal import random_play, signal_of

    name, make_env = section["name"], functools.partial(make, section)
    env = make_env()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            abilities = check_text_env(make_env)
    except EnvCheckError as error:
        raise UserError(f"environment {name!r} breaks a promise: {error}") from error
    _require_stable_tasks(section, env)
    notes = [f"note: {one_line(warning.message)}" for warning in caught if isinstance(warning.message, Warning)]
    sizes = [f"{len(env.tasks(split))} {split}" for split in SPLITS]
    found = {"stages": env.stages, "tasks": sizes, "teacher": abilities or ["none"]}
    told = "; ".join(f"{what}: {', '.join(names)}" for what, names in found.items())
    played = [one for batch in random_play(env.tasks("train")[:EPISODES], make_env, 0, 16, STEPS) for one in batch]
    signal = signal_of(played)
    if signal.problem and "expert" not in abilities:
        raise UserError(f"environment {name!r} can be played, but not learned: {signal.problem}")
    return "\n".join([*notes, f"{name}: every promise is kept ({told})", *_levels(env, signal, abilities)])


def _require_stable_tasks(section: Mapping[str, Any], env: TextEnv) -> None:
    """Refuse tasks that change between processes, as the order of a set of words does."""
    plain = json.dumps({key: read_word(item) if isinstance(item, Word) else item for key, item in section.items()})
    here = json.dumps([[task.id, dict(task.payload)] for task in env.tasks("train")], sort_keys=True)
    for seed in "1", "2":
        command = [sys.executable, "-c", LISTS_TASKS, plain]
        surroundings = os.environ | {"PYTHONHASHSEED": seed}
        there = subprocess.run(command, capture_output=True, text=True, env=surroundings, check=False)
        if there.returncode == 0 and there.stdout.strip() != here:
            about = "tasks are the same in every process: another one lists others (is a set or hash() involved?)"
            raise UserError(f"environment {section['name']!r} breaks a promise: {about}")


def _levels(env: TextEnv, signal: Signal, abilities: Sequence[str]) -> list[str]:
    """A line for each thing that an environment may be fit for, with what the next one would need."""
    actions = str(signal.most) if signal.fewest == signal.most else f"{signal.fewest} to {signal.most}"
    length = f"{signal.length} of {env.horizon} steps"
    lines = [
        f"  in {signal.episodes} episodes of random play: {actions} legal actions; observations of up to"
        f" {signal.longest} characters (about {signal.longest // 3} tokens); up to {length};"
        f" returns {signal.lowest:g} to {signal.highest:g}; {signal.won} won",
        "  playable: yes",
    ]
    if signal.problem:
        lines.append(f"  trainable by reward: no; {signal.problem}")
    else:
        rare = "" if signal.won else " (nobody won by chance: expect to need rewards on the way, or demonstrations)"
        lines.append(f"  trainable by reward: yes, returns differ{rare}: --arms rl-only")
    if "expert" not in abilities:
        lines.append("  teachable: no; name a teacher with an expert_action, or record demonstrations")
    elif "analyst" not in abilities:
        lines.append("  teachable: without reflections (--arms no-reflection); for those, its teacher needs an analyse")
    else:
        lines.append("  teachable: yes, with reflections: --arms reflect-rl")
    return lines
