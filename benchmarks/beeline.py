"""Score a run's arms in BeelineBench's own search, on trials that are not official ones.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from reflectrl.api import Agent, load_agent
from reflectrl.core.config import read_recipe
from reflectrl.core.types import UserError
from reflectrl.wings.planning.distances import distances
from reflectrl.wings.planning.env import FrontierEnv
from reflectrl.wings.planning.trials import DOMAINS, FIRST_TRIAL, OFFICIAL, package, problem, rules

Choose = Callable[[Sequence[Any]], int]
RESAMPLES = 2000


@dataclass(frozen=True)
class Settings:
    """Settings of the comparison."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Runs with trained arms."""
    arms: str = "sft-no-reflection,sft"
    """Arms, separated by commas. A run may have some of them only."""
    domains: str = ",".join(DOMAINS)
    """Domains, separated by commas."""
    first: int = FIRST_TRIAL["validation"]
    """First trial of each domain. Official ones are refused."""
    trials: int = 20
    """Number of trials of each domain."""
    seed: int = 0
    """Training seed of the agents."""
    peers: bool = True
    """Let the classic heuristic and random choice search as well."""
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


def paired(scores: Mapping[str, Sequence[float]], first: Mapping[str, Sequence[float]]) -> tuple[float, float, float]:
    """Return the ratio of two geometric means over domains, on the same trials, and its 95% interval.

    Args:
        scores, first: domain → scores of its trials, in the same order.
    """
    logs_DT = np.log([scores[domain] for domain in first]) - np.log([first[domain] for domain in first])
    domains, trials = logs_DT.shape
    drawn = np.random.default_rng(0).integers(trials, size=(RESAMPLES, domains, trials))
    means = np.take_along_axis(logs_DT[None], drawn, axis=2).mean((1, 2))
    low, high = np.quantile(means, (0.025, 0.975))
    return math.exp(logs_DT.mean()), math.exp(low), math.exp(high)


def trained(settings: Settings) -> dict[str, Callable[[Any], Choose]]:
    """Return the choosers of the runs' arms by name."""
    choosers: dict[str, Callable[[Any], Choose]] = {}
    wanted = list(filter(None, settings.arms.split(",")))
    for run in settings.runs:
        recipe = run / "recipe.toml"
        if not recipe.is_file():
            raise UserError(f"{run} is not a run folder (it has no recipe.toml)")
        for arm in (arm for arm in read_recipe(recipe).arms if arm in wanted):
            name = arm if len(settings.runs) == 1 else f"{run.name}:{arm}"
            agent = load_agent(run, arm, settings.seed)
            choosers[name] = lambda puzzle, agent=agent: agent_chooser(agent, puzzle)
    if not choosers:
        raise UserError(f"no run has an arm of {settings.arms!r}")
    return choosers


def main(settings: Settings) -> None:
    """Print a line per chooser and domain, the geometric mean over domains, and ratios to the first arm."""
    if settings.first in OFFICIAL or settings.first < 1:
        raise UserError("official trials are for the benchmark's own program; take --first from 1,000,000 on")
    arms = trained(settings)
    choosers: dict[str, Callable[[Any], Choose]] = {}
    if settings.peers:
        choosers.update(random=random_chooser, heuristic=heuristic_chooser)
    choosers.update(arms)
    scores: dict[str, dict[str, list[float]]] = {name: {} for name in choosers}
    for domain in settings.domains.split(","):
        for name, make_chooser in choosers.items():
            begin = time.process_time()
            of_trials = list[float]()
            for trial in range(settings.first, settings.first + settings.trials):
                puzzle = problem(domain, trial)
                of_trials.append(score(puzzle, make_chooser(puzzle), name, settings.explorations))
            scores[name][domain] = of_trials
            mean, low, high = mean_and_interval(of_trials)
            seconds = time.process_time() - begin
            print(
                f"{domain:12} {name:20} {mean:.3f} [{low:.3f}, {high:.3f}]  {seconds:.0f} processor seconds", flush=True
            )
    for name, by_domain in scores.items():
        means = [mean_and_interval(of_trials)[0] for of_trials in by_domain.values()]
        print(f"{'all':12} {name:20} {mean_and_interval(means)[0]:.3f}")
    first, *others = arms
    for name in others:
        ratio, low, high = paired(scores[name], scores[first])
        print(f"{name} / {first}: {ratio:.3f} [{low:.3f}, {high:.3f}]")


if __name__ == "__main__":
    try:
        main(tyro.cli(Settings, description=__doc__))
    except UserError as error:
        sys.exit(f"benchmarks.beeline: {error}")
