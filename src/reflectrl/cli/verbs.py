"""The verbs: one dataclass each, whose fields are its options and whose call does the work.

Whatever is slow to import (torch, gymnasium) is imported inside the calls, so that help, lists and dry runs are quick.
"""

from __future__ import annotations

import difflib
import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from reflectrl.cli.bench import Bench
from reflectrl.cli.data import Data
from reflectrl.cli.export import ExportAgent
from reflectrl.cli.run import flags, recipes, run_verbs, summary
from reflectrl.config import Word, parse_overrides
from reflectrl.config.reference import keys
from reflectrl.pipeline import all_arms
from reflectrl.plugins import names, one_line, resolve
from reflectrl.types import UserError

EnvName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]


@dataclass(frozen=True)
class Play:
    """Watch a player, or play, in the terminal. Any argument of the environment is an option: --size 6"""

    env: EnvName
    """Name of an environment (`reflectrl list envs`), or package.module:Class."""
    player: Annotated[str, tyro.conf.arg(metavar="PLAYER")] = "human"
    """human, expert, oracle, baseline, random, a run folder, optionally with an arm (runs/taxi:sft), or an
    exported agent."""
    take_over: bool = False
    """You choose; the player advises, and takes over when you type h."""
    task: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Number of the task, from 0."""
    split: Annotated[str, tyro.conf.arg(metavar="SPLIT")] = "train"
    """Which tasks."""
    stage: Annotated[str | None, tyro.conf.arg(metavar="STAGE")] = None
    """Curriculum stage; the last one if not given."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of the episode."""
    trust: bool = False
    """Let the run's models bring code of their own, if its recipe wants that, now and from now on."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Play one episode and say how it ended."""
        from reflectrl.cli.play import choose_task, ending, play

        section = _section(self.env, settings)
        task = choose_task(_made(section, type(self)), self.split, self.stage, self.task)
        episode = play(section, self.player, task, self.seed, self.take_over, self.trust)
        print(ending(episode) if episode else "stopped")


@dataclass(frozen=True)
class CheckEnv:
    """Try the promises of an environment. Any argument of the environment is an option: --size 6"""

    env: EnvName
    """Name of an environment, or package.module:Class."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Check, and say in one line what was found."""
        print(_checked(_section(self.env, settings)))


@dataclass(frozen=True)
class List:
    """Say which environments, recipes, arms or recipe keys there are."""

    what: Annotated[
        Literal["envs", "recipes", "arms", "keys", "all"], tyro.conf.Positional, tyro.conf.arg(metavar="WHAT")
    ] = "all"
    """envs, recipes, arms, keys, or all of the first three."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Print a line for each."""
        if settings:
            raise UserError(f"unknown option {settings[0].partition('=')[0]!r}; list has none")
        for what in ("envs", "recipes", "arms") if self.what == "all" else (self.what,):
            if self.what == "all":
                print(f"{what}:")
            for name, words in _listed(what):
                print(f"  {name:22} {words}".rstrip())


OWN: dict[str, type] = {
    "play": Play,
    "check-env": CheckEnv,
    "export-agent": ExportAgent,
    "data": Data,
    "bench": Bench,
    "list": List,
}
"""The core's verbs, beside those of a run."""


def all_verbs() -> dict[str, type]:
    """Name → verb: the core's, and those that installed packages announce (the wings among them)."""
    return {**run_verbs(), **{name: resolve("verbs", name) for name in names("verbs") if name not in OWN}, **OWN}


def _listed(what: str) -> list[tuple[str, str]]:
    if what == "envs":
        return [(name, "") for name in names("envs")]
    if what == "recipes":
        return [(name, summary(path) or str(path)) for name, path in recipes().items()]
    if what == "keys":
        return [(key.dotted, f"= {key.default}  {key.description}") for key in keys()]
    return [(name, arm.about) for name, arm in all_arms().items()]


def _checked(section: dict[str, Any]) -> str:
    """Try the environment that an `env` section describes.

    Returns:
        What was found, the warnings of gymnasium's checker included.

    Raises:
        UserError: the first broken promise, or what the environment's own code raised.
    """
    from reflectrl.envs import make
    from reflectrl.envs.base import SPLITS
    from reflectrl.envs.check import EnvCheckError, check_text_env

    name = section["name"]
    env = make(section)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            abilities = check_text_env(functools.partial(make, section))
        sizes = [f"{len(env.tasks(split))} {split}" for split in SPLITS]
    except UserError:
        raise
    except EnvCheckError as error:
        raise UserError(f"environment {name!r} breaks a promise: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the environment's own code raises
        raise UserError(f"environment {name!r} raised {one_line(error)}") from error
    notes = [f"note: {one_line(warning.message)}" for warning in caught if isinstance(warning.message, Warning)]
    found = {"stages": env.stages, "tasks": sizes, "teacher": abilities or ["none"]}
    told = "; ".join(f"{what}: {', '.join(names)}" for what, names in found.items())
    return "\n".join([*notes, f"{name}: every promise is kept ({told})"])


def _made(section: dict[str, Any], verb: type) -> Any:
    """The environment; what it does not take may be a misspelt option of the verb."""
    from reflectrl.envs import make

    try:
        return make(section)
    except UserError as error:
        near = [f"--{flag}" for key in section for flag in difflib.get_close_matches(key, flags(verb), 1, 0.7)]
        raise UserError(f"{error}{f'; or did you mean {near[0]}?' if near else ''}") from error


def _section(name: str, settings: Sequence[str]) -> dict[str, Any]:
    """The env section that `--key value` (or `--env.key value`) describes."""
    pairs = parse_overrides(settings)
    return {"name": name} | {key.removeprefix("env."): Word(value) for key, value in pairs}
