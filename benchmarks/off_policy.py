"""Coverage of off-policy estimates on logs of DangerousTaxi, whose expected success is computed exactly.

    python -m benchmarks.off_policy --logs 100 --episodes 400

The players of every log take the expert's action with a fixed probability, and a random action otherwise, and win 10 to
40 % of their episodes. The evaluated policy takes the expert's action more often. An interval covers if it contains the
exact success rate of that policy on the log's tasks.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import numpy as np

from reflectrl.core.types import Task, named_seed
from reflectrl.learn.off_policy import LoggedEpisode, estimates
from reflectrl.wings.taxi.env import TaxiEnv
from reflectrl.wings.taxi.world import ACTIONS, Ride

SHARES = (0.70, 0.75, 0.80, 0.85)
"""Probabilities with which the logs' players follow the expert."""
EVALUATED = 0.93
"""Probability with which the evaluated policy does."""


def choice(env: TaxiEnv, share: float) -> np.ndarray:
    """Return the probability of every action in the environment's current state."""
    probabilities = np.full(len(ACTIONS), (1 - share) / len(ACTIONS))
    probabilities[ACTIONS.index(env.city.best_action(env.ride))] += share
    return probabilities


def played(env: TaxiEnv, task: Task, share: float, rng: np.random.Generator) -> tuple[LoggedEpisode, bool]:
    """Play an episode as a logged player does, and tell whether it was won."""
    env.begin(task)
    states, actions, logged, evaluated, rewards = [], [], [], [], []
    for _ in range(env.horizon):
        probabilities = choice(env, share)
        action = int(rng.choice(len(ACTIONS), p=probabilities))
        states.append(repr(env.ride))
        actions.append(action)
        logged.append(float(probabilities[action]))
        evaluated.append(choice(env, EVALUATED))
        outcome = env.apply(ACTIONS[action])
        rewards.append(float(outcome.success))
        if outcome.terminated:
            break
    return LoggedEpisode(states, actions, logged, evaluated, rewards), bool(rewards[-1])


def exact(env: TaxiEnv, tasks: Sequence[Task], share: float) -> float:
    """Compute the expected success of a policy on tasks, step by step from the horizon backwards."""
    env.begin(tasks[0])
    rides = [
        Ride(row, column, passenger, destination)
        for row in range(5)
        for column in range(5)
        for passenger in range(5)
        for destination in range(4)
        if passenger != destination
    ]
    outcomes: dict[Ride, list[tuple[float, bool, Ride]]] = {}
    for ride in rides:
        env.ride = ride
        probabilities = choice(env, share)
        for action, probability in zip(ACTIONS, probabilities, strict=True):
            env.ride = ride
            outcome = env.apply(action)
            won, ended = bool(outcome.success), outcome.terminated
            outcomes.setdefault(ride, []).append((float(probability) * (won or not ended), won, env.ride))
    values = dict.fromkeys(rides, 0.0)
    for _ in range(env.horizon):
        values = {ride: sum(p * (1.0 if won else values[after]) for p, won, after in outcomes[ride]) for ride in rides}
    return float(np.mean([values[Ride(*task.payload["ride"])] for task in tasks]))


def coverage(logs: int, episodes: int, seed: int = 0) -> dict[str, object]:
    """Return, for each estimate, the share of intervals that cover, and their mean width."""
    env = TaxiEnv()
    tasks = env.tasks("test")
    truth = exact(env, tasks, EVALUATED)
    covered: dict[str, list[bool]] = {}
    widths: dict[str, list[float]] = {}
    errors: dict[str, list[float]] = {}
    won = []
    for log_index in range(logs):
        rng, share = np.random.default_rng(named_seed(seed, "log", log_index)), SHARES[log_index % len(SHARES)]
        drawn = [played(env, tasks[int(rng.integers(len(tasks)))], share, rng) for _ in range(episodes)]
        won.append(float(np.mean([success for _, success in drawn])))
        for estimate in estimates([episode for episode, _ in drawn], seed=log_index):
            covered.setdefault(estimate.method, []).append(estimate.low <= truth <= estimate.high)
            widths.setdefault(estimate.method, []).append(estimate.high - estimate.low)
            errors.setdefault(estimate.method, []).append(estimate.value - truth)
    return {
        "truth": truth,
        "logged success": [min(won), max(won)],
        "logs": logs,
        "episodes": episodes,
        **{
            method: {
                "covers": float(np.mean(hits)),
                "width": float(np.mean(widths[method])),
                "error": float(np.sqrt(np.mean(np.square(errors[method])))),
            }
            for method, hits in covered.items()
        },
    }


def main() -> None:
    """Print the coverage as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=int, default=100)
    parser.add_argument("--episodes", type=int, default=400)
    arguments = parser.parse_args()
    print(json.dumps(coverage(arguments.logs, arguments.episodes), indent=1))


if __name__ == "__main__":
    main()
