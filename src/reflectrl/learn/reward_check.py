"""Check from a sample of random play whether reward alone can teach something in an environment."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reflectrl.core.envs.adapter import GymTextEnv
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.players import RandomPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Episode, Task, named_seed

EPISODES = 60
"""Smallest number of episodes in a sample of random play. If there are fewer tasks, they are repeated."""
RARE = 20_000
"""Number of steps of random play with equal returns after which we conclude that there is no reward to be found."""


@dataclass(frozen=True)
class Signal:
    """Statistics of some episodes of random play.

    Attributes:
        episodes, steps: number of episodes, and of their steps.
        won: number of episodes that ended in success.
        rewarded: number of episodes that had a step with a reward above 0.
        unmarked: number of episodes that ended with a reward above 0 but did not count as won.
        costly_wins: number of episodes that counted as won but ended with a reward below 0.
        early_wins: number of episodes that counted as won although every other step paid as much as their end.
        events: event → number of episodes in which it happened.
        lowest, highest: lowest and highest return of an episode, in environment units.
        fewest, most: smallest and largest number of legal actions in a state.
        length: number of steps of the longest episode.
        truncated: number of episodes cut off by the horizon or by the environment itself.
    """

    episodes: int
    steps: int
    won: int
    rewarded: int
    unmarked: int
    costly_wins: int
    early_wins: int
    events: Mapping[str, int]
    lowest: float
    highest: float
    fewest: int
    most: int
    length: int
    truncated: int

    @property
    def problem(self) -> str | None:
        """Reason why reward alone can teach nothing, as far as the sample shows; None if it can.

        There must be a choice between actions, and the returns must differ.
        """
        if self.most < 2:
            return "there was never more than one legal action, so there is nothing to choose"
        if self.lowest == self.highest:
            won = f", {self.won} of them won (give the winning outcome a reward)" if self.won else ""
            return f"all {self.episodes} episodes of random play earned {self.lowest:g}{won}, so no action looks better"
        return None


def signal_of(episodes: Sequence[Episode]) -> Signal:
    """Compute the statistics of at least one episode."""
    steps = [step for episode in episodes for step in episode.steps]
    returns = [round(episode.total_reward, 9) for episode in episodes]
    counts = [len(step.observation.actions) for step in steps]
    events = Counter[str]()
    for episode in episodes:  # an event counts once per episode
        events.update({event for step in episode.steps for event in step.events})
    return Signal(
        episodes=len(episodes),
        steps=len(steps),
        won=sum(episode.success for episode in episodes),
        rewarded=sum(any(step.reward > 0 for step in episode.steps) for episode in episodes),
        unmarked=sum(_pays_at_its_end(episode) and not episode.success for episode in episodes),
        costly_wins=sum(
            episode.success and bool(episode.steps) and episode.steps[-1].reward < 0 for episode in episodes
        ),
        early_wins=sum(episode.success and _pays_for_lasting(episode) for episode in episodes),
        events=events,
        lowest=min(returns),
        highest=max(returns),
        fewest=min(counts, default=0),
        most=max(counts, default=0),
        length=max(len(episode.steps) for episode in episodes),
        truncated=sum(episode.truncated for episode in episodes),
    )


def most_actions(episodes: Iterable[Episode]) -> int:
    """Return the largest number of legal actions in a step of these episodes; 1 if they have no steps."""
    return max((len(step.observation.actions) for episode in episodes for step in episode.steps), default=1)


def ways_out(signal: Signal, env: TextEnv, name: str = "ENV") -> str:
    """Advise what to do if random play finds no reward to learn from, or nothing to choose.

    Args:
        name: name of the environment, as the user would type it.
    """
    if signal.most < 2:
        return "list every action that may be taken"
    paid = "reward steps on the way"
    if isinstance(env, GymTextEnv):
        paid += " (in a subclass of GymTextEnv, override apply() and add to the reward that super().apply() gives)"
    return (
        f"show how it is done (reflectrl play {name} --record demos.jsonl, docs/demonstrations.md), {paid}, or look for"
        " rare rewards (--rl.count_coef, docs/exploration.md)"
    )


def doubt_about_success(signal: Signal, env: TextEnv) -> str:
    """Return a warning if rewards decide success and no episode of random play could count as won; else "".

    If every step costs something, including the last step of a win, such a rule never counts a win.
    """
    ended = signal.episodes - signal.truncated
    if not env.success_rule or signal.won or (signal.rewarded and not ended):
        return ""
    seen = f"no step of {signal.episodes} episodes of random play paid more than 0"
    if ended:
        seen = f"none of the {ended} episodes of random play that ended by themselves counts as won"
    return (
        f"{seen}: success means that {env.success_rule}. If an end that pays less can be a win (in CliffWalking every"
        " step costs 1, the last one too), change this rule, since results and demonstrations count successes"
    )


def luck_decides(make_env: Callable[[], TextEnv], tasks: Sequence[Task], walks: int = 10, steps: int = 40) -> bool:
    """Tell whether the environment's own randomness changes the effects of actions, as far as a few walks show.

    The same random actions are taken twice in each task, with different seeds of the environment.
    """
    envs = make_env(), make_env()
    try:
        for task_index, task in enumerate(tasks[:walks]):
            rng = np.random.default_rng(task_index)
            seen = [env.reset(seed=task_index + 1000 * i, options={"task": task})[0] for i, env in enumerate(envs)]
            for _ in range(steps):
                if seen[0] != seen[1] or envs[0].done != envs[1].done:
                    return True
                if envs[0].done:
                    break
                action = int(rng.integers(len(envs[0].legal_actions())))
                seen = [env.step(action)[0] for env in envs]
        return False
    finally:
        for env in envs:
            env.close()


def _pays_at_its_end(episode: Episode) -> bool:
    return not episode.truncated and bool(episode.steps) and episode.steps[-1].reward > 0


def _pays_for_lasting(episode: Episode) -> bool:
    """Tell whether every other step paid something, and at least as much as the last one."""
    others = [step.reward for step in episode.steps[:-1]]
    return bool(others) and min(others) > 0 and min(others) >= episode.steps[-1].reward


def random_play(
    tasks: Sequence[Task], make_env: Callable[[], TextEnv], seed: int, batch: int, steps: int
) -> Iterator[list[Episode]]:
    """Play the tasks at random, in order and if necessary repeatedly, until a number of steps is reached.

    As long as all episodes earn the same, play continues up to `RARE` steps, since rewards may be rare.

    Args:
        seed: seed of all choices. The same seed gives the same episodes.
        batch: number of episodes played at the same time.
        steps: number of steps to play.

    Yields:
        The episodes of a batch of tasks.
    """
    taken = played_episodes = 0
    returns: set[float] = set()
    choice = False
    for k in itertools.count():
        for start in range(0, len(tasks), batch):
            jobs = [Job(task, named_seed(seed, "random", task.id, k)) for task in tasks[start : start + batch]]
            order = {job.seed: i for i, job in enumerate(jobs)}
            played = sorted(
                rollout(jobs, make_env, RandomPlayer(), None, batch), key=lambda episode: order[episode.seed]
            )
            yield played
            signal = signal_of(played)
            taken, played_episodes = taken + signal.steps, played_episodes + len(played)
            returns |= {signal.lowest, signal.highest}
            choice |= signal.most > 1
            promising = choice and len(returns) > 1
            if taken >= (steps if promising else RARE):
                return
        if played_episodes >= EPISODES and promising:
            return
