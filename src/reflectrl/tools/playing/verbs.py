"""`play`, `import-episodes` and `estimate`. Slow imports happen inside the calls, so that help is quick."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from reflectrl.cli.projects import EnvName
from reflectrl.cli.run import flags
from reflectrl.core.types import UserError
from reflectrl.runs.projects import env_section


@dataclass(frozen=True)
class Play:
    """Watch a player, or play yourself, in the terminal, and record it.

    Any argument of the environment is an option: --size 6
    """

    env: EnvName
    """Name of an environment (`reflectrl list envs`), or package.module:Class."""
    player: Annotated[str, tyro.conf.arg(metavar="PLAYER")] = "human"
    """Player: human, expert, oracle, baseline or random; a run folder, optionally with an arm (runs/taxi:sft); an
    exported agent; or a model behind an address (http://127.0.0.1:8000/v1?model=NAME)."""
    take_over: bool = False
    """Choose the actions yourself. The player advises, and takes over when you type h."""
    task: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Number of the (first) task, from 0."""
    record: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Append the finished episodes to this log of demonstrations. Tasks that it has already are skipped."""
    episodes: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Number of episodes. Without it, one, or as many as you want if you play yourself and record."""
    split: Annotated[str, tyro.conf.arg(metavar="SPLIT")] = "train"
    """Split whose tasks are played."""
    stage: Annotated[str | None, tyro.conf.arg(metavar="STAGE")] = None
    """Curriculum stage; the last one if not given."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of the episode."""
    trust: bool = False
    """Trust the run's models to bring code of their own, and its players behind endpoints to contact the servers that
    its recipe names, now and from now on."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Play, and print how each episode ended."""
        from reflectrl.tools.playing.play import choose_tasks, play

        if self.episodes is not None and self.episodes < 1:
            raise UserError(f"--episodes must be at least 1, not {self.episodes}")
        section = env_section(self.env, settings)
        tasks = choose_tasks(_made(section, type(self)), self.split, self.stage, self.task)
        play(section, self.player, tasks, self.seed, self.take_over, self.trust, self.record, self.episodes)


@dataclass(frozen=True)
class ImportEpisodes:
    """Import demonstrations that another program wrote as JSON lines, and check each by replaying it in the
    environment.

    Any argument of the environment is an option: --size 6
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """Files of JSON lines. The page "Teach by showing" describes their form."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """Log to which the episodes are appended, unless it has them already."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ENV")] = None
    """Name of the environment, or package.module:Class. Without it, nothing is replayed, and the files must be
    complete."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Read, check and append all episodes, or none."""
        from reflectrl.tools.playing.import_episodes import import_episodes

        if settings and self.env is None:
            raise UserError(f"unknown option {settings[0].partition('=')[0]!r}; arguments of an environment need --env")
        env = _made(env_section(self.env, settings), type(self)) if self.env is not None else None
        print(import_episodes(self.files, self.out, env))


FEW_EFFECTIVE = 10
"""Effective number of episodes below which an estimate gets a warning."""


@dataclass(frozen=True)
class EstimateSuccess:
    """Estimate the success that a trained arm would have, from a log of another player.

    Nothing is played. The log must hold the probability of every choice, as logs of sampled evaluations do.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, or an exported agent's folder."""
    log: Annotated[tuple[tuple[Path, ...], ...], tyro.conf.arg(metavar="FILE ..."), tyro.conf.UseAppendAction]
    """Logs of episodes in the run's environment."""
    arm: Annotated[str, tyro.conf.arg(metavar="ARM")] = "reflect-rl"
    """Arm whose success is estimated."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Training seed of the arm."""
    greedy: bool = False
    """Estimate greedy play. Without it, choices are sampled at rl.temperature."""
    confidence: Annotated[float, tyro.conf.arg(metavar="LEVEL")] = 0.95
    """Level of the intervals, between 0 and 1."""
    trust: bool = False
    """Trust the run's models to bring code of their own, now and from now on."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Compute the probabilities of all logged actions, and print a line per estimate."""
        from reflectrl.tools.playing.estimate import estimate_success

        if settings:
            raise UserError(f"unknown option {settings[0].partition('=')[0]!r} (--help says which there are)")
        paths = [path for paths in self.log for path in paths]
        if not paths:
            raise UserError("estimate: --log needs a file")
        if not 0 < self.confidence < 1:
            raise UserError(f"estimate: --confidence must be between 0 and 1, not {self.confidence}")
        rows = estimate_success(self.run, paths, self.arm, self.seed, self.greedy, self.confidence, self.trust)
        for row in rows:
            low, high = max(0.0, row.low), min(1.0, row.high)
            print(f"{row.method + ':':24}success {row.value:.3f} [{low:.3f}, {high:.3f}] at {self.confidence:.0%}")
        print(f"effective number of episodes: {rows[0].effective:.1f}")
        if rows[0].effective < FEW_EFFECTIVE:
            print("note: so few say little; the arm plays too differently from the log")


def _made(section: dict[str, Any], verb: type) -> Any:
    """Make the environment. An argument that it does not take may be a misspelt option of the verb."""
    from reflectrl.core.envs import make

    try:
        return make(section)
    except UserError as error:
        close_options = [f"--{flag}" for key in section for flag in difflib.get_close_matches(key, flags(verb), 1, 0.7)]
        raise UserError(f"{error}{f'; or did you mean {close_options[0]}?' if close_options else ''}") from error
