"""Compare play with and without draft tokens, for the trained reflector of a finished run, on whole episodes.

    python -m benchmarks.drafts runs/taxi --arm reflect-rl --episodes 32 --batches 1 16

Choices are greedy, reflections are sampled at the given temperature, and cached results are not used, so every
reflection is generated. Both sides must play the same episodes. `per pass` is the number of reflection tokens per
forward pass.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import tyro

from reflectrl.core.config import load_recipe
from reflectrl.core.envs import make
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Episode, Sampling, UserError
from reflectrl.models.backend import Counters
from reflectrl.models.players import Policy, Reflector
from reflectrl.runs.players import load_models

from .measure import interleaved, report, timed
from .settings import note


@dataclass(frozen=True)
class Asked:
    """Settings of the measurement."""

    run: tyro.conf.Positional[Path]
    """A finished run folder."""
    arm: str = "reflect-rl"
    """An arm of the run that has a reflector."""
    seed: int = 0
    """A seed of the run."""
    split: str = "validation"
    """Split that is played."""
    episodes: int = 32
    """Number of tasks, from the split's first one on."""
    batches: tuple[int, ...] = (1, 16)
    """Numbers of episodes played at a time, a row each."""
    temperature: float = 0.0
    """Temperature of the reflections."""
    repetitions: int = 2
    """Interleaved repetitions; medians are shown."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclass(frozen=True)
class Played:
    """Episodes in the order of their seeds, with the seconds and the reflector's counters."""

    seconds: float
    episodes: list[Episode]
    counters: Counters


def rows(asked: Asked) -> list[dict[str, Any]]:
    """Return a row per batch size."""
    recipe = load_recipe(asked.run / "recipe.toml")
    models = load_models(recipe, asked.run, asked.seed, asked.arm)
    if models[0] is None or models[1] is None:
        raise UserError(f"the arm {asked.arm!r} has no reflector")
    policy_lm, reflector_lm = models
    env = make(recipe.env)
    tasks = env.tasks(asked.split)[: asked.episodes]

    def play(batch: int, drafts: bool) -> Played:
        reflector_lm.counters = Counters()
        policy = Policy(policy_lm, Sampling(0.0), memory=0, scoring=recipe.play.scoring)
        length, sampling = recipe.play.reflection_tokens, Sampling(asked.temperature)
        reflector = Reflector(reflector_lm, length, sampling, memory=0, speculative=drafts)
        played: list[Episode] = []
        jobs = [Job(task, i) for i, task in enumerate(tasks)]
        seconds = timed(lambda: played.extend(rollout(jobs, lambda: make(recipe.env), policy, reflector, batch)))
        return Played(seconds, sorted(played, key=lambda episode: episode.seed), reflector_lm.counters)

    return [note(_row(batch, play, asked.repetitions)) for batch in asked.batches]


def _row(batch: int, play: Callable[[int, bool], Played], repetitions: int) -> dict[str, Any]:
    latest: dict[bool, Played] = {}

    def timed_play(drafts: bool) -> float:
        latest[drafts] = play(batch, drafts)
        return latest[drafts].seconds

    sides = {"off": partial(timed_play, False), "on": partial(timed_play, True)}
    off, on = (median(seconds) for seconds in interleaved(sides, repetitions, False).values())
    plain, drafted = latest[False], latest[True]
    steps = sum(len(episode.steps) for episode in plain.episodes)
    return {
        "batch": batch,
        "episodes": len(plain.episodes),
        "the same": sum(map(same, plain.episodes, drafted.episodes)),
        "steps/s without": steps / off,
        "steps/s": steps / on,
        "speed-up": off / on,
        "written": plain.counters.decoded / steps,
        "written and guessed": drafted.counters.decoded / steps,
        "per pass": plain.counters.decoded / max(1, drafted.counters.decoded - drafted.counters.drafted),
    }


def same(first: Episode, second: Episode) -> bool:
    """Return whether two episodes have the same reflections and choices."""

    def said(episode: Episode) -> Sequence[tuple[int, tuple[tuple[str, tuple[int, ...]], ...]]]:
        return [(step.action, tuple((turn.text, turn.token_ids) for turn in step.turns)) for step in episode.steps]

    return said(first) == said(second)


def main() -> int:
    """Run from the command line. Return 2 if the run, arm or split is missing."""
    options = tyro.cli(Asked, description=(__doc__ or "").split("\n\n")[0])
    try:
        print(report(rows(options), options.json), end="")
    except UserError as error:
        print(f"drafts: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
