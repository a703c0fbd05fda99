"""Players that read nothing, and their returns: they repeat one action, two in turn, or a stretch that was rewarded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from reflectrl.core.envs.base import TextEnv
from reflectrl.core.types import Episode, Task
from reflectrl.tools.certify.budget import now

MOST_ACTIONS, MOST_IN_PAIRS = 12, 6
"""Number of actions that are repeated alone, and in pairs: the most frequent ones."""
WINDOWS = (1, 2, 3, 4)
"""Lengths of the stretches before a reward that are repeated."""

Choose = Callable[[Sequence[str], int], int]
"""Function of the legal actions and the number of the step, which returns an index."""


@dataclass(frozen=True)
class Play:
    """Result of a player on a task: the return, success, number of rewards above 0, and steps."""

    earned: float
    success: bool
    rewards: int
    steps: int


def play(env: TextEnv, task: Task, seed: int, choose: Choose) -> Play:
    """Play a task to its end."""
    _, info = env.reset(seed=seed, options={"task": task})
    earned, rewards, steps = 0.0, 0, 0
    while not env.done:
        _, reward, _, _, info = env.step(choose(info["actions"], steps))
        earned, rewards, steps = earned + reward, rewards + (reward > 0), steps + 1
    return Play(earned, env.success, rewards, steps)


def in_turn(*names: str) -> Choose:
    """Return a player that takes these actions in turn, and the first legal action where the next one is not legal."""

    def choose(legal: Sequence[str], step: int) -> int:
        name = names[step % len(names)]
        return legal.index(name) if name in legal else 0

    return choose


def repeating(start: Sequence[str], loop: Sequence[str]) -> Choose:
    """Return a player that takes some actions once, and then repeats a loop of actions."""

    def choose(legal: Sequence[str], step: int) -> int:
        name = start[step] if step < len(start) else loop[(step - len(start)) % len(loop)]
        return legal.index(name) if name in legal else 0

    return choose


def constant_players(episodes: Sequence[Episode]) -> dict[str, Choose]:
    """Return the players that read nothing, by name.

    Args:
        episodes: random play, from which the most frequent actions are taken.
    """
    players: dict[str, Choose] = {
        "always the first action": lambda legal, step: 0,
        "always the last action": lambda legal, step: len(legal) - 1,
    }
    count = Counter(action for episode in episodes for step in episode.steps for action in step.observation.actions)
    names = [name for name, _ in count.most_common(MOST_ACTIONS)]
    players |= {f"always {name!r:.40}": in_turn(name) for name in names}
    pairs = combinations(names[:MOST_IN_PAIRS], 2)
    return players | {f"{a!r:.40} and {b!r:.40} in turn": in_turn(a, b) for a, b in pairs}


def played(env: TextEnv, tasks: Sequence[Task], players: dict[str, Choose], deadline: float) -> dict[str, list[Play]]:
    """Play all tasks with each player, as far as time allows. Players with no finished task are left out."""
    results: dict[str, list[Play]] = {}
    for name, choose in players.items():
        plays = []
        for seed, task in enumerate(tasks):
            if now() > deadline:
                break
            plays.append(play(env, task, seed, choose))
        if plays:
            results[name] = plays
    return results


def best_loop(env: TextEnv, episode: Episode, deadline: float) -> tuple[Play, str] | None:
    """Repeat the stretches of an episode that ended in a reward, and return the best one without a win.

    Returns:
        The play and the loop in words; None if there was no reward before the last step.
    """
    actions = [step.observation.actions[step.action] for step in episode.steps]
    best: tuple[Play, str] | None = None
    for index, step in enumerate(episode.steps[:-1]):
        if step.reward <= 0:
            continue
        start = actions[: index + 1]
        loops = {tuple(start[-length:]) for length in WINDOWS if length <= len(start)}
        loops |= {(other, start[-1]) for other in episode.steps[index + 1].observation.actions}
        for loop in sorted(loops):
            if now() > deadline:
                return best
            result = play(env, episode.task, episode.seed, repeating(start, loop))
            if not result.success and result.rewards >= 3 and (best is None or result.earned > best[0].earned):
                best = result, ", ".join(map(repr, loop))
    return best
