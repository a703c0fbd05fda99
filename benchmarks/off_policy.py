"""Coverage of off-policy estimates on logs whose expected success is known.

    python -m benchmarks.off_policy --logs 100 --episodes 400
    python -m benchmarks.off_policy --world alfworld --games DIR --logs 100 --episodes 400

The players of every log take the expert's action with a fixed probability, and a random action otherwise, and win about
10 to 40 % of their episodes. The evaluated policy takes the expert's action more often. An interval covers if it
contains the success rate of that policy on the log's tasks. In taxi, this rate is computed exactly; in ALFWorld, whose
states are too many, it is the mean of 20,000 episodes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reflectrl.core.envs.base import TextEnv
from reflectrl.core.types import Task, named_seed
from reflectrl.learn.exploration import ObservationCounts
from reflectrl.learn.off_policy import LoggedEpisode, estimates
from reflectrl.wings.alfworld.env import AlfworldEnv
from reflectrl.wings.taxi.env import TaxiEnv
from reflectrl.wings.taxi.world import ACTIONS, Ride

PLAYED = 20_000
"""Number of episodes from which the success rate in ALFWorld is measured; its standard error is at most 0.0035."""


@dataclass(frozen=True)
class World:
    """An environment with the players of its logs.

    Attributes:
        shares: probabilities with which the logs' players follow the expert.
        evaluated: probability with which the evaluated policy does.
    """

    env: TextEnv
    shares: tuple[float, ...]
    evaluated: float


def taxi() -> World:
    """Return DangerousTaxi, in which a wrong action often ends the ride."""
    return World(TaxiEnv(), (0.70, 0.75, 0.80, 0.85), 0.93)


def alfworld(games: str) -> World:
    """Return 20 games of ALFWorld with at most 20 steps, in which wrong actions can be mended."""
    return World(AlfworldEnv(games=games, recall=1, horizon=20, limit=20), (0.20, 0.25, 0.30, 0.35), 0.42)


def choice(env: TextEnv, share: float) -> np.ndarray:
    """Return the probability of every legal action in the environment's current state."""
    count = len(env.legal_actions())
    probabilities = np.full(count, (1 - share) / count)
    probabilities[env.teacher.expert_action(env)] += share
    return probabilities


def played(world: World, task: Task, share: float, rng: np.random.Generator) -> tuple[LoggedEpisode, bool]:
    """Play an episode as a logged player does, and tell whether it was won."""
    env = world.env
    env.begin(task)
    states, actions, logged, evaluated, rewards = [], [], [], [], []
    for _ in range(env.horizon):
        probabilities = choice(env, share)
        action = int(rng.choice(len(probabilities), p=probabilities))
        states.append(ObservationCounts.key(env.observe()))
        actions.append(action)
        logged.append(float(probabilities[action]))
        evaluated.append(choice(env, world.evaluated))
        outcome = env.apply(env.legal_actions()[action])
        rewards.append(float(outcome.success))
        if outcome.terminated:
            break
    return LoggedEpisode(states, actions, logged, evaluated, rewards), bool(rewards[-1])


def success_rate(world: World, tasks: Sequence[Task]) -> float:
    """Return the evaluated policy's expected success on tasks."""
    if isinstance(world.env, TaxiEnv):
        return exact(world.env, tasks, world.evaluated)
    rng = np.random.default_rng(named_seed("success rate"))
    return float(np.mean([played(world, tasks[i % len(tasks)], world.evaluated, rng)[1] for i in range(PLAYED)]))


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


def coverage(world: World, logs: int, episodes: int, seed: int = 0) -> dict[str, object]:
    """Return, for each estimate, the share of intervals that cover, and their mean width."""
    tasks = world.env.tasks("test")
    truth = success_rate(world, tasks)
    covered: dict[str, list[bool]] = {}
    widths: dict[str, list[float]] = {}
    errors: dict[str, list[float]] = {}
    won = []
    for log_index in range(logs):
        rng, share = (
            np.random.default_rng(named_seed(seed, "log", log_index)),
            world.shares[log_index % len(world.shares)],
        )
        drawn = [played(world, tasks[int(rng.integers(len(tasks)))], share, rng) for _ in range(episodes)]
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
    parser.add_argument("--world", choices=["taxi", "alfworld"], default="taxi")
    parser.add_argument("--games", default="", help="folder of ALFWorld's games, if not the default one")
    parser.add_argument("--logs", type=int, default=100)
    parser.add_argument("--episodes", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0, help="seed of the logs")
    arguments = parser.parse_args()
    world = taxi() if arguments.world == "taxi" else alfworld(arguments.games)
    print(json.dumps(coverage(world, arguments.logs, arguments.episodes, arguments.seed), indent=1))


if __name__ == "__main__":
    main()
