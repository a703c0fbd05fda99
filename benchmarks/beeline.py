"""Score of a run's arms in BeelineBench's own search, on trials that are not official ones.

    python -m benchmarks.beeline runs/beeline --arms sft-no-reflection,sft --trials 20

The search, the score and the questions are the package's. The agent reads each question as `reflectrl serve` would
translate it. The classic heuristic and random choice search the same trials. The official trials are left to the
benchmark's own program, over the protocol:

    reflectrl serve runs/beeline --arm sft --port 8000
    beelinebench run --chooser ours
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from reflectrl.api import Agent, load_agent
from reflectrl.core.types import UserError
from reflectrl.wings.planning.distances import distances
from reflectrl.wings.planning.env import FrontierEnv
from reflectrl.wings.planning.trials import DOMAINS, FIRST_TRIAL, OFFICIAL, package, problem, rules

Choose = Callable[[Sequence[Any]], int]
RESAMPLES = 2000


@dataclass(frozen=True)
class Settings:
    """Settings of the comparison."""

    run: tyro.conf.Positional[Path]
    """A run with trained arms."""
    arms: str = "sft-no-reflection,sft"
    """Arms of the run, separated by commas."""
    domains: str = ",".join(DOMAINS)
    """Domains, separated by commas."""
    first: int = FIRST_TRIAL["validation"]
    """First trial of each domain. Official ones are refused."""
    trials: int = 20
    """Number of trials of each domain."""
    seed: int = 0
    """Training seed of the agents."""
    explorations: int = 0
    """Explorations after which a search gives up; 0 takes the benchmark's 2,500."""


def agent_chooser(agent: Agent, puzzle: Any) -> Choose:
    """Return a chooser that lets an agent answer the benchmark's question."""
    agent.reset()

    def choose(states: Sequence[Any]) -> int:
        labels = [puzzle.render(state) for state in states]
        read = FrontierEnv.read_question({"goal": puzzle.objective, "context": puzzle.context}, None, labels)
        assert read is not None
        return agent.act(read[0])

    return choose


def heuristic_chooser(puzzle: Any) -> Choose:
    """Return the benchmark's classic chooser."""
    chooser: Choose = package("search").lowest(puzzle.heuristic)
    return chooser


def random_chooser(puzzle: Any) -> Choose:
    """Return the benchmark's random chooser."""
    draws = package("rng").Draws(puzzle.domain, puzzle.trial, "random")
    chooser: Choose = package("search").random_choice(draws)
    return chooser


def score(puzzle: Any, choose: Choose, name: str, explorations: int) -> float:
    """Search a trial with a chooser, and return the benchmark's score."""
    search = package("search")
    outcome = search.best_first(
        start=puzzle.start,
        moves=puzzle.moves,
        solved=puzzle.solved,
        choose=choose,
        max_expansions=explorations or rules().max_expansions,
        max_frontier=rules().max_frontier,
        evict=package("rng").Draws(puzzle.domain, puzzle.trial, "evict", "model", name),
    )
    [shortest] = distances(puzzle)([puzzle.start])
    return float(search.efficiency(shortest, outcome.expansions if outcome.solved else rules().max_expansions))


def mean_and_interval(scores: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean, and its 95% interval from a bootstrap over trials."""
    logs = np.log(scores)
    draws = np.random.default_rng(0).choice(logs, (RESAMPLES, len(logs))).mean(1)
    low, high = np.quantile(draws, (0.025, 0.975))
    return math.exp(logs.mean()), math.exp(low), math.exp(high)


def main(settings: Settings) -> None:
    """Print a line per chooser and domain, and the geometric mean over domains."""
    if settings.first in OFFICIAL or settings.first < 1:
        raise UserError("official trials are for the benchmark's own program; take --first from 1,000,000 on")
    choosers: dict[str, Callable[[Any], Choose]] = {"random": random_chooser, "heuristic": heuristic_chooser}
    for arm in filter(None, settings.arms.split(",")):
        agent = load_agent(settings.run, arm, settings.seed)
        choosers[arm] = lambda puzzle, agent=agent: agent_chooser(agent, puzzle)
    means: dict[str, list[float]] = {name: [] for name in choosers}
    for domain in settings.domains.split(","):
        for name, make_chooser in choosers.items():
            begin = time.process_time()
            scores = []
            for trial in range(settings.first, settings.first + settings.trials):
                puzzle = problem(domain, trial)
                scores.append(score(puzzle, make_chooser(puzzle), name, settings.explorations))
            mean, low, high = mean_and_interval(scores)
            means[name].append(mean)
            seconds = time.process_time() - begin
            print(
                f"{domain:12} {name:20} {mean:.3f} [{low:.3f}, {high:.3f}]  {seconds:.0f} processor seconds", flush=True
            )
    for name, scores in means.items():
        print(f"{'all':12} {name:20} {mean_and_interval(scores)[0]:.3f}")


if __name__ == "__main__":
    try:
        main(tyro.cli(Settings, description=__doc__))
    except UserError as error:
        sys.exit(f"benchmarks.beeline: {error}")
