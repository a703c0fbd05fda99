"""Graph of a task: its states, and the effect of every action in them, explored by playing.

An episode can be repeated from its seed and its actions, so the exploration can return to a state and try what is left
there. States are told apart by `Fingerprints`, never by their text alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from reflectrl.core.envs.base import TextEnv
from reflectrl.core.rollout import Start, TimeStep, advance, begin
from reflectrl.core.types import Observation, Task
from reflectrl.tools.certify.budget import now
from reflectrl.tools.certify.fingerprint import Fingerprints


@dataclass(frozen=True)
class Edge:
    """Effect of an action: the state it leads to (None at the end of the episode), its reward, and success."""

    state: int | None
    reward: float
    success: bool


@dataclass
class State:
    """State of a task.

    Attributes:
        text: everything that a player sees.
        legal: legal actions.
        actions: the shortest way there that was found.
        edges: effect of each action that was tried.
    """

    text: str
    legal: tuple[str, ...]
    actions: tuple[str, ...]
    edges: dict[str, Edge] = field(default_factory=dict)


def shown(observation: Observation) -> str:
    """Return everything that a player sees of an observation, as one text."""
    return "\x1f".join((observation.text, *observation.actions))


class StateGraph:
    """States of a task that were reached so far. The first one is the start.

    Args:
        env: environment of this process.
        seed: seed of the environment's randomness.
        fingerprint: function that tells states apart.
    """

    def __init__(self, env: TextEnv, task: Task, seed: int, fingerprint: Fingerprints | None = None) -> None:
        self.env, self.task, self.seed = env, task, seed
        self.fingerprint = fingerprint or Fingerprints()
        self.states: list[State] = []
        self.numbers: dict[str, int] = {}
        self.waiting: deque[int] = deque()
        self.steps = 0
        self.is_mergeable = True
        _, now = begin(env, task, Start(seed, ()))
        self._number(now, ())

    @property
    def is_complete(self) -> bool:
        """True if every action was tried in every state that lies within the horizon."""
        return self._open() is None

    def explore(self, most_states: int, most_steps: int, deadline: float) -> None:
        """Try untried actions, those near the start first, until nothing is left or a limit is reached.

        Args:
            deadline: time on the clock of `budget` at which to end.
        """
        while len(self.states) < most_states and self.steps < most_steps and now() < deadline:
            index = self._open()
            if index is None:
                return
            self._go_on_from(index)

    def follow(self, actions: Sequence[str]) -> None:
        """Add the states and effects along these actions from the start."""
        _, now = begin(self.env, self.task, Start(self.seed, ()))
        index = 0
        for action in actions:
            if now.done or action not in now.observation.actions:
                return
            now = self._step(action, now)
            next_index = self._add(index, action, now)
            if next_index is None:
                return
            index = next_index

    def _open(self) -> int | None:
        """Return the state nearest to the start with an untried action that still fits into the horizon."""
        while self.waiting:
            index = self.waiting[0]
            state = self.states[index]
            if len(state.edges) < len(state.legal) and len(state.actions) < self.env.horizon:
                return index
            self.waiting.popleft()
        return None

    def _go_on_from(self, number: int) -> None:
        """Return to a state, take an untried action, and go on as long as there is something untried."""
        actions = self.states[number].actions
        _, now = begin(self.env, self.task, Start(self.seed, actions))
        self.steps += len(actions)
        reached: int | None = number
        while reached is not None and not now.done:
            state = self.states[reached]
            untried = next((action for action in now.observation.actions if action not in state.edges), None)
            if untried is None:
                return
            now = self._step(untried, now)
            reached = self._add(reached, untried, now)

    def _step(self, action: str, now: TimeStep) -> TimeStep:
        self.steps += 1
        return advance(self.env, self.task, now.observation.actions.index(action))

    def _add(self, number: int, action: str, now: TimeStep) -> int | None:
        """Note the effect of an action. Return the number of the state that follows; None at an end."""
        state = self.states[number]
        # The walk may have come here by a longer way than the shortest one, and have run out of time.
        goes_on = not now.success and (now.truncated or not now.done)
        reached = self._number(now, (*state.actions, action)) if goes_on else None
        state.edges[action] = Edge(reached, now.reward, now.success)
        return reached

    def _number(self, now: TimeStep, actions: tuple[str, ...]) -> int:
        text = shown(now.observation)
        hidden = self.fingerprint(self.env) if self.is_mergeable else None
        if hidden is None:  # no way to tell whether two points are the same one
            self.is_mergeable = False
            hidden = "\x1f".join(actions)
        key = f"{hidden}\x1e{text}"
        index = self.numbers.get(key)
        if index is None:
            index = self.numbers[key] = len(self.states)
            self.states.append(State(text, now.observation.actions, actions))
            self.waiting.append(index)
        self._shorten(index, actions)
        return index

    def _shorten(self, number: int, actions: tuple[str, ...]) -> None:
        """Record a shorter way to a state, and to the states after it, which may now lie within the horizon."""
        shorter = [(number, actions)]
        while shorter:
            number, actions = shorter.pop()
            state = self.states[number]
            if len(actions) >= len(state.actions):
                continue
            state.actions = actions
            self.waiting.append(number)
            shorter += [(edge.state, (*actions, a)) for a, edge in state.edges.items() if edge.state is not None]

    # ---- questions ---------------------------------------------------------------------------------------------------

    def distances(self) -> list[float]:
        """Return for each state the least number of steps to a win; infinity where no win is known."""
        predecessors: list[list[int]] = [[] for _ in self.states]
        distances = [math.inf] * len(self.states)
        waiting: deque[int] = deque()
        for index, state in enumerate(self.states):
            for edge in state.edges.values():
                if edge.success and distances[index] > 1:
                    distances[index] = 1
                    waiting.append(index)
                elif edge.state is not None:
                    predecessors[edge.state].append(index)
        while waiting:
            index = waiting.popleft()
            for predecessor in predecessors[index]:
                if distances[predecessor] > distances[index] + 1:
                    distances[predecessor] = distances[index] + 1
                    waiting.append(predecessor)
        return distances

    def can_win(self, forced: Mapping[str, str], hopeful: bool = True) -> bool:
        """Tell whether a win can be reached from the start if some texts allow only a single action.

        Args:
            forced: text → the action that has to be taken wherever it is shown.
            hopeful: count a state with untried actions as a win.
        """
        seen, waiting = {0}, [0]
        while waiting:
            state = self.states[waiting.pop()]
            allowed: Iterable[str] = (forced[state.text],) if state.text in forced else state.legal
            for action in allowed:
                edge = state.edges.get(action)
                if edge is None:
                    if hopeful:
                        return True
                    continue
                if edge.success:
                    return True
                if edge.state is not None and edge.state not in seen:
                    seen.add(edge.state)
                    waiting.append(edge.state)
        return False

    def best_without_win(self, steps: int) -> float:
        """Return the largest sum of rewards in at most `steps` steps without a win, ended by the limit or by a loss."""
        values = [0.0] * len(self.states)
        for _ in range(steps):
            values = [_best(state, values, 0.0) for state in self.states]
        return values[0]

    def best_win(self, steps: int) -> float:
        """Return the largest sum of rewards of a win within `steps` steps; minus infinity if there is none."""
        values = [-math.inf] * len(self.states)
        for _ in range(steps):
            values = [max(_best(state, values, -math.inf), _win(state)) for state in self.states]
        return values[0]

    def shortest_win(self) -> tuple[tuple[str, ...], float] | None:
        """Return the actions and the return of a shortest win; None if none is known."""
        distances = self.distances()
        if distances[0] == math.inf:
            return None
        actions, earned, index = [], 0.0, 0
        while True:
            state = self.states[index]
            action, edge = min(state.edges.items(), key=lambda item: _rank(item[1], distances))
            actions.append(action)
            earned += edge.reward
            if edge.success or edge.state is None:
                return tuple(actions), earned
            index = edge.state


def _best(state: State, values: Sequence[float], end: float) -> float:
    """Return the largest sum of rewards from a state on without winning now.

    Args:
        values: the largest sum from each state on.
        end: value of an episode that ends.
    """
    options = [
        edge.reward + (end if edge.state is None else values[edge.state])
        for edge in state.edges.values()
        if not edge.success
    ]
    return max(options, default=end)


def _win(state: State) -> float:
    """Return the largest reward of an action that wins; minus infinity if there is none."""
    return max((edge.reward for edge in state.edges.values() if edge.success), default=-math.inf)


def _rank(edge: Edge, left: Sequence[float]) -> tuple[float, float]:
    """Order effects by the steps that are left to a win, then by reward."""
    if edge.success:
        return 0.0, -edge.reward
    return (math.inf if edge.state is None else left[edge.state]), -edge.reward
