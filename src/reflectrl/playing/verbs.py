"""`play` and `import-episodes`. What is slow to import is imported inside the calls, so that help is quick."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from reflectrl.cli.projects import EnvName
from reflectrl.cli.run import flags
from reflectrl.projects import env_section
from reflectrl.types import UserError


@dataclass(frozen=True)
class Play:
    """Watch a player, or play, in the terminal; record it. Any argument of the environment is an option: --size 6"""

    env: EnvName
    """Name of an environment (`reflectrl list envs`), or package.module:Class."""
    player: Annotated[str, tyro.conf.arg(metavar="PLAYER")] = "human"
    """human, expert, oracle, baseline, random, a run folder, optionally with an arm (runs/taxi:sft), an exported
    agent, or a model behind an address (http://127.0.0.1:8000/v1?model=NAME)."""
    take_over: bool = False
    """You choose; the player advises, and takes over when you type h."""
    task: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Number of the (first) task, from 0."""
    record: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Append the finished episodes to this log of demonstrations; tasks that it has are passed over."""
    episodes: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """How many episodes; one if not given, or as many as you want where you play yourself and record."""
    split: Annotated[str, tyro.conf.arg(metavar="SPLIT")] = "train"
    """Which tasks."""
    stage: Annotated[str | None, tyro.conf.arg(metavar="STAGE")] = None
    """Curriculum stage; the last one if not given."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of the episode."""
    trust: bool = False
    """Let the run's models bring code of their own, and its players behind endpoints ask the servers that its recipe
    names, now and from now on."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Play, and say how each episode ended."""
        from reflectrl.playing.play import choose_tasks, play

        if self.episodes is not None and self.episodes < 1:
            raise UserError(f"--episodes must be at least 1, not {self.episodes}")
        section = env_section(self.env, settings)
        tasks = choose_tasks(_made(section, type(self)), self.split, self.stage, self.task)
        play(section, self.player, tasks, self.seed, self.take_over, self.trust, self.record, self.episodes)


@dataclass(frozen=True)
class ImportEpisodes:
    """Make a log of demonstrations of episodes that another program wrote as JSON lines, checking each by playing it
    again in the environment. Any argument of the environment is an option: --size 6
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """Files of JSON lines; the form is on the page "Teach by showing"."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """The log to which the episodes are appended, unless it has them already."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ENV")] = None
    """Name of the environment, or package.module:Class. Without it, nothing is played and everything has to be told."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Read, check and append everything, or nothing."""
        from reflectrl.playing.import_episodes import import_episodes

        if settings and self.env is None:
            raise UserError(f"unknown option {settings[0].partition('=')[0]!r}; arguments of an environment need --env")
        env = _made(env_section(self.env, settings), type(self)) if self.env is not None else None
        print(import_episodes(self.files, self.out, env))


def _made(section: dict[str, Any], verb: type) -> Any:
    """The environment; what it does not take may be a misspelt option of the verb."""
    from reflectrl.envs import make

    try:
        return make(section)
    except UserError as error:
        near = [f"--{flag}" for key in section for flag in difflib.get_close_matches(key, flags(verb), 1, 0.7)]
        raise UserError(f"{error}{f'; or did you mean {near[0]}?' if near else ''}") from error
