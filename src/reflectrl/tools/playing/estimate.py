"""`estimate`: the success that a trained arm would have, estimated from a log of another player."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from reflectrl.core.config import read_recipe
from reflectrl.core.episodes import read_episodes
from reflectrl.core.evaluation import is_unread
from reflectrl.core.players.base import LiveEpisode, Player
from reflectrl.core.types import Episode, Step, UserError, named_seed
from reflectrl.learn.exploration import ObservationCounts
from reflectrl.learn.off_policy import Array, Estimate, LoggedEpisode, estimates
from reflectrl.models.players import Policy
from reflectrl.runs import load_players

LEAST_EFFECTIVE = 1.5
"""Smallest effective number of episodes. Below it, an estimate is the outcome of a single episode."""
AT_ONCE = 64
"""Number of logged episodes for which the probabilities are computed together."""


def estimate_success(
    folder: Path, logs: Sequence[Path], arm: str, seed: int, greedy: bool, confidence: float, trust: bool = False
) -> list[Estimate]:
    """Estimate an arm's success on the tasks of a log.

    Args:
        folder: run folder, or an exported agent's folder.
        greedy: evaluate the most probable choices instead of sampled ones.

    Raises:
        UserError: the arm has no policy of its own, the log lacks the probabilities of its choices, or hardly any
            episode of the log is one that the arm would play.
    """
    everything = [(path, episode) for path in logs for episode in read_episodes(path)]
    episodes = [(path, episode) for path, episode in everything if episode.steps and not is_unread(episode)]
    if left_out := len(everything) - len(episodes):
        print(f"{left_out} of {len(everything)} episodes are left out: they have no step, or a refused question")
    policy, reflector = load_players(folder, arm, seed, trust)
    if not isinstance(policy, Policy):
        raise UserError(f"estimate: the arm {arm!r} does not choose by a policy with known probabilities")
    if not greedy:
        temperature = read_recipe(folder / "recipe.toml").rl.temperature
        policy = policy.with_sampling(replace(policy.sampling, temperature=temperature))
    logged = list[LoggedEpisode]()
    for start in range(0, len(episodes), AT_ONCE):
        part = episodes[start : start + AT_ONCE]
        chances = evaluated(policy, reflector, [episode for _, episode in part], seed)
        for (path, episode), probabilities in zip(part, chances, strict=True):
            logged.append(_logged(path, episode, probabilities, greedy))
    rows = estimates(logged, confidence, seed)
    if rows[0].effective < LEAST_EFFECTIVE:
        raise UserError(
            f"estimate: the effective number of episodes is {rows[0].effective:.1f} of {len(logged)}, so the log says"
            " nothing about this arm; take a log of a player that plays more alike"
        )
    return rows


def evaluated(policy: Policy, reflector: Player | None, episodes: Sequence[Episode], seed: int) -> list[list[Array]]:
    """Return the policy's probability of every legal action at every step of logged episodes.

    Episodes are read step by step, side by side, so that histories are encoded once.
    """
    probabilities: list[list[Array]] = [[] for _ in episodes]
    live = [_live(episode, seed) for episode in episodes]
    for t in range(max(len(episode.steps) for episode in episodes)):
        rows = [row for row, episode in enumerate(episodes) if t < len(episode.steps)]
        for row in rows:
            live[row].observation, live[row].turns = episodes[row].steps[t].observation, []
            live[row].steps = list(episodes[row].steps[:t])
        playing = [live[row] for row in rows]
        if reflector is not None:
            for live_episode, turn in zip(playing, reflector.turns(playing), strict=True):
                live_episode.turns.append(turn)
        for row, turn in zip(rows, policy.turns(playing), strict=True):
            probabilities[row].append(np.array(turn.probs))
    policy.clear_cache()
    return probabilities


def _live(episode: Episode, seed: int) -> LiveEpisode:
    """Return a logged episode as players see it. Models read observations only, so it has no environment."""
    rng = np.random.default_rng(named_seed(seed, "estimate", episode.task.id, episode.seed))
    no_environment = None
    return LiveEpisode(no_environment, episode.task, episode.seed, rng, episode.steps[0].observation)  # type: ignore[arg-type]


def _logged(path: Path, episode: Episode, probabilities: Sequence[Array], greedy: bool) -> LoggedEpisode:
    if greedy:
        probabilities = [np.eye(len(row))[int(row.argmax())] for row in probabilities]
    rewards = [0.0] * len(episode.steps)
    rewards[-1] = float(episode.success)
    return LoggedEpisode(
        states=[ObservationCounts.key(step.observation) for step in episode.steps],
        actions=[step.action for step in episode.steps],
        logged=list(_chances(path, episode)),
        evaluated=probabilities,
        rewards=rewards,
    )


def _chances(path: Path, episode: Episode) -> Iterator[float]:
    """Yield the probability with which each action was taken."""
    for step in episode.steps:
        if step.choice is not None and step.choice.support:
            raise UserError(
                f"{path}: an episode of task {episode.task.id} was sampled with top-k or top-p, which never take some "
                "actions; an estimate needs a log in which every action had a chance"
            )
        chance = _chance(step)
        if not 0 < chance <= 1:
            raise UserError(
                f"{path}: an episode of task {episode.task.id} has a choice without its probability; an estimate needs "
                "a log of sampled choices, such as a run writes with --eval.sampling sampled"
            )
        yield chance


def _chance(step: Step) -> float:
    turn = step.choice
    if turn is None or turn.choice != step.action or (turn.sampling and turn.sampling.temperature == 0):
        return math.nan
    if turn.logprobs:
        return math.exp(sum(turn.logprobs))
    return turn.probs[step.action] if turn.probs else math.nan
