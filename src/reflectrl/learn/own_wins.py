"""Search for wins in the environment itself, as episodes to imitate before RL if random play hardly ever wins.

Play is cheap compared to learning, and an environment repeats an episode from its seed and its actions. So a search can
return to a point that it has reached and explore from there, as in Ecoffet et al. 2021, "First return, then explore".
A win is then shortened by leaving out actions that were not needed. The search needs no model and no demonstrations.

Such a win contains no mistakes: it goes straight to what a player would have to find out. A policy that imitates it
does not learn how to go on after a mistake, or after an action that revealed something. So it also imitates copies with
random actions in between, except for the random actions themselves, as in Laskey et al. 2017, "DART: noise injection
for robust imitation learning".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from reflectrl.core.envs.base import TextEnv
from reflectrl.core.players.simple import RandomPlayer
from reflectrl.core.rollout import Start, TimeStep, advance, begin
from reflectrl.core.types import Choice, Episode, Step, Task, UserError, named_seed

PLAYER = RandomPlayer.__name__
STRAY = 0.3
"""Chance of a random action before each action of a win, in the copies with detours."""


class Points:
    """Points of an episode that the search can return to, in the order in which they were found.

    A search chooses among tens of thousands of them before each exploration, so what the choice depends on is kept in
    arrays that grow.

    Attributes:
        actions: for each point, the fewest known actions that lead there.
    """

    def __init__(self) -> None:
        self.actions = list[tuple[str, ...]]()
        self._index_of: dict[str, int] = {}
        self._rows = np.zeros((1024, 3))  # earned, visits, number of actions

    @property
    def earned_P(self) -> NDArray[np.float64]:
        """Sum of the rewards above 0 on the way. Costs are left out: they would keep the search near the start."""
        return self._rows[: len(self.actions), 0]

    @property
    def visits_P(self) -> NDArray[np.float64]:
        """Number of explorations that began at each point."""
        return self._rows[: len(self.actions), 1]

    @property
    def depths_P(self) -> NDArray[np.float64]:
        """Number of actions that lead to each point."""
        return self._rows[: len(self.actions), 2]

    def add(self, key: str, actions: tuple[str, ...], earned: float) -> None:
        """Remember a new point, or a shorter way to a known one."""
        index = self._index_of.get(key)
        if index is None:
            index = self._index_of[key] = len(self.actions)
            self.actions.append(actions)
            if index == len(self._rows):
                self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        elif len(actions) >= len(self.actions[index]):
            return
        self.actions[index] = actions
        self._rows[index, 0], self._rows[index, 2] = earned, len(actions)


class Search:
    """Search for a win of a single task.

    Args:
        env: environment of this process.
        seed: seed of the environment's randomness in this episode, and of the search.

    Attributes:
        steps: number of environment steps taken, including those for returning to points.
    """

    def __init__(self, env: TextEnv, task: Task, seed: int) -> None:
        self.env, self.task, self.seed, self.steps = env, task, seed, 0
        self.points = Points()
        self.points.add("", (), 0.0)
        self.rng = np.random.default_rng(named_seed(seed, "search"))

    def find(self, most_steps: int) -> tuple[str, ...] | None:
        """Return the actions of a win, shortened; None if the search took `most_steps` without one."""
        while self.steps < most_steps:
            point = self._choose()
            won = self._explore(point)
            if won is not None:
                return self.shorten(won)
        return None

    def _choose(self) -> int:
        """Draw the index of a point. Rarely visited points, and points that have earned more, are drawn more often.

        A quarter of the explorations begin at the start, and for another quarter the number of actions is drawn first.
        Otherwise, if early mistakes cannot be undone, most points would lie after a mistake and lead nowhere, and
        hardly any exploration would begin before it.
        """
        points, kind = self.points, self.rng.random()
        if kind < 0.25:
            return 0
        among_P = np.arange(len(points.actions))
        if kind < 0.5:
            depths = np.unique(points.depths_P)
            among_P = np.flatnonzero(points.depths_P == depths[int(self.rng.integers(len(depths)))])
        earned = points.earned_P[among_P]
        spread = float(earned.max() - earned.min()) or 1.0
        weights = np.exp(2 * (earned - earned.max()) / spread) / np.sqrt(1 + points.visits_P[among_P])
        index = int(among_P[self.rng.choice(len(among_P), p=weights / weights.sum())])
        points.visits_P[index] += 1
        return index

    def _explore(self, point: int) -> tuple[str, ...] | None:
        """Return to a point, and act at random from there. Return the actions if the episode was won."""
        actions, earned = list(self.points.actions[point]), float(self.points.earned_P[point])
        now = self._repeat(actions)
        # Short walks explore around many points, long ones may reach what lies far off: lengths of every scale.
        for _ in range(int(self.env.horizon ** self.rng.random())):
            if now is None or now.done:
                break
            action = now.observation.actions[int(self.rng.integers(len(now.observation.actions)))]
            now = self._step(action, now)
            actions.append(action)
            earned += max(0.0, now.reward)
            if now.success:
                return tuple(actions)
            if not now.done:
                self._note(now, tuple(actions), earned)
        return None

    def _note(self, now: TimeStep, actions: tuple[str, ...], earned: float) -> None:
        """Remember the state that was reached."""
        seen = now.observation
        # The sum of rewards distinguishes points whose texts are equal, for instance before and after taking a key.
        text = "\x1f".join((seen.state, *seen.actions, f"{earned:.1f}"))
        self.points.add(hashlib.blake2b(text.encode(), digest_size=8).hexdigest(), actions, earned)

    def shorten(self, actions: tuple[str, ...]) -> tuple[str, ...]:
        """Leave out actions without which the same episode is still won, long stretches first."""
        size = max(1, len(actions) // 2)
        while size:
            start = 0
            while start < len(actions):
                tried = actions[:start] + actions[start + size :]
                if tried and self._wins(tried):
                    actions = tried
                else:
                    start += size
            size //= 2
        return actions

    def detour(self, actions: Sequence[str]) -> tuple[tuple[str, ...], frozenset[int]]:
        """Put random actions into a win, wherever the rest of it still wins.

        Returns:
            The actions of the longer win, and the indices of the random ones.
        """
        taken, strays, rest = list[str](), set[int](), list(actions)
        while rest:
            now = self._repeat(taken) if self.rng.random() < STRAY else None
            if now is not None:
                stray = now.observation.actions[int(self.rng.integers(len(now.observation.actions)))]
                tried = [*taken, stray, *rest]  # must win with its last action, since an episode ends with the win
                if stray != rest[0] and self._wins(tried) and not self._wins(tried[:-1]):
                    strays.add(len(taken))
                    taken.append(stray)
                    continue
            taken.append(rest.pop(0))
        return tuple(taken), frozenset(strays)

    def _wins(self, actions: Sequence[str]) -> bool:
        now = self._repeat(actions)
        return now is not None and now.success

    def _repeat(self, actions: Sequence[str]) -> TimeStep | None:
        """Begin the episode and take these actions; None if they cannot be taken."""
        _, now = begin(self.env, self.task, Start(self.seed, ()))
        for action in actions:
            if now.done or action not in now.observation.actions:
                return None
            now = self._step(action, now)
            if now.success:
                return now
        return now

    def _step(self, action: str, now: TimeStep) -> TimeStep:
        self.steps += 1
        return advance(self.env, self.task, now.observation.actions.index(action))


def find_wins(
    make_env: Callable[[], TextEnv], tasks: Sequence[Task], most_steps: int, seed: int, detours: int = 0
) -> Iterator[tuple[list[Episode], int]]:
    """Search for a win of each task in turn.

    Args:
        tasks: training tasks.
        most_steps: number of environment steps after which the search ends. A single task gets a tenth at most.
        seed: seed of the run.
        detours: number of copies of each win with random actions in between. Equal copies count once. Their steps are
            counted too, and may go beyond the limit.

    Yields:
        The win and its copies, labelled for imitation, or nothing; and the number of steps that were taken.
    """
    env, left = make_env(), most_steps
    try:
        for task in tasks:
            search = Search(env, task, named_seed(seed, "own wins", task.id))
            actions = search.find(min(left, most_steps // 10))
            episodes = []
            if actions is not None:
                # A dictionary, because the order of a set differs between processes.
                wins = dict.fromkeys([(actions, frozenset()), *(search.detour(actions) for _ in range(detours))])
                episodes = [episode_of(env, task, search.seed, *win) for win in wins]
            left -= search.steps
            yield episodes, search.steps
            if left <= 0:
                break
    finally:
        env.close()


def episode_of(
    env: TextEnv, task: Task, seed: int, actions: Sequence[str], strays: Collection[int] = frozenset()
) -> Episode:
    """Replay a win, and label its steps for imitation.

    Args:
        strays: indices of the steps that are not to be imitated.

    Raises:
        UserError: the environment behaves differently than before.
    """
    steps, now = begin(env, task, Start(seed, tuple(actions)))
    if not now.success:
        raise UserError(f"environment {type(env).__name__}: a win of task {task.id!r} does not win again when replayed")
    labelled: list[Step] = []
    for index, step in enumerate(steps):
        turn = Choice(PLAYER, step.observation.actions[step.action], choice=step.action)
        if index in strays:
            labelled.append(replace(step, turns=(turn,)))
        else:
            labelled.append(replace(step, turns=(turn,), target=step.action, label="positive"))
    return Episode(task, tuple(labelled), True, False, seed, {"player": "search"})
