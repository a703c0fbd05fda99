"""An environment as a table: every state reachable from the start of some tasks, and the consequence of each action.

A program that reads the table can play without the environment's code. The table is found by trying every action in
every state. So it suits environments with few states, in which equal actions in equal states have equal consequences.
"""

from __future__ import annotations

import io
import pickle
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reflectrl.core.envs.base import TextEnv
from reflectrl.core.envs.contract import raised
from reflectrl.core.plugins import one_line
from reflectrl.core.types import Observation, Task, UserError, named_seed

NOT_STATE = {
    *("_task", "_actions", "_rng_at_start", "_np_random", "_np_random_seed", "elapsed", "done", "success"),
    *("action_space", "observation_space"),
}
"""Attributes of every environment that its own hooks do not change."""
TRIALS = 200
"""Number of random episodes, at least one for each task, that are compared with the table."""


class Numbered:
    """Assign equal values the same number, counted from 0 in the order in which they first occur."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def __getitem__(self, item: Hashable) -> int:
        return self.numbers.setdefault(item, len(self.numbers))

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.numbers)


@dataclass(frozen=True)
class World:
    """The table.

    Attributes:
        observations: (history, state, legal actions), each once.
        outcomes: (reward, terminated, success, events), each once. A fifth element, True, marks that the environment
            itself cuts the episode off.
        states: for each state the number of its observation, then for each action the numbers of the next state and of
            the outcome. A state without actions is the end of an episode, or lies at the horizon.
        starts: for each task the number of its first state.
        tasks: the tasks.
        groups: the kind of each task; None if the environment has no kinds.
        horizon: largest number of steps of an episode.
    """

    observations: tuple[Observation, ...]
    outcomes: tuple[tuple[Any, ...], ...]
    states: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]
    tasks: tuple[Task, ...]
    groups: tuple[str | None, ...]
    horizon: int

    def as_json(self) -> dict[str, Any]:
        """Return the table for the page. Equal texts and equal lists of actions are stored once."""
        texts, lists = Numbered(), Numbered()
        encoded = [
            (texts[observation.history], texts[observation.state], lists[observation.actions])
            for observation in self.observations
        ]
        tasks = [{"id": task.id, "group": group} for task, group in zip(self.tasks, self.groups, strict=True)]
        return {
            "texts": list(texts),
            "lists": list(lists),
            "observations": encoded,
            "outcomes": self.outcomes,
            "states": self.states,
            "tasks": [{**task, "start": start} for task, start in zip(tasks, self.starts, strict=True)],
            "horizon": self.horizon,
        }


def explore(env: TextEnv, tasks: Sequence[Task], most: int, seed: int = 0) -> World:
    """Try every action in every state that can be reached within the horizon.

    Args:
        most: largest number of states to visit.
        seed: seed for what is drawn when a task begins, as in `play --seed`.

    Raises:
        UserError: there are more states; chance decides what follows an action; or equal states behave differently.
    """
    book = _Book(env, most)
    seed = named_seed(seed, "env") % 2**32
    starts = []
    for task in tasks:
        try:
            starts.append(book.explore(task, seed))
        except (UserError, KeyboardInterrupt):
            raise
        except Exception as error:
            raise raised(type(env).__name__, task, error) from error
    groups = tuple(env.group(task) for task in tasks)
    world = _merged(book, starts, tuple(tasks), groups)
    _compare(env, world, seed)
    return world


class _Book:
    """The states found so far.

    Attributes:
        seen: for each state the number of its observation.
        edges: for each state the next state and the outcome of every action, one after another.
    """

    def __init__(self, env: TextEnv, most: int) -> None:
        self.env, self.most = env, most
        self.observations, self.outcomes = Numbered(), Numbered()
        self.seen: list[int] = []
        self.edges: list[list[int]] = []

    def explore(self, task: Task, seed: int) -> int:
        """Explore all states of a task, breadth first. Return the number of its start."""
        env, numbers = self.env, dict[Any, int]()
        env.reset(seed=seed, options={"task": task})
        start = self._number(numbers, task, False)
        queue = deque([(start, env.save(), env.observe().actions)])
        while queue:
            state, snapshot, actions = queue.popleft()
            if snapshot.elapsed >= env.horizon:
                continue
            for action, text in enumerate(actions):
                env.restore(snapshot)
                _, reward, terminated, truncated, info = env.step(action)
                cut_off = truncated and env.elapsed < env.horizon
                if env.np_random.bit_generator.state != snapshot.rng:
                    raise UserError(
                        f"{type(env).__name__} leaves to chance what follows {text!r} in task {task.id!r}, but a table"
                        " holds one consequence of each action; choose arguments that make it deterministic, or watch"
                        " it with `reflectrl play`"
                    )
                state_count = len(self.seen)
                next_state = self._number(numbers, task, terminated or cut_off)
                outcome = (reward, terminated, bool(info["success"]), tuple(info["events"]), *([True] * cut_off))
                self.edges[state] += [next_state, self.outcomes[outcome]]
                if next_state == state_count and not terminated and not cut_off:
                    queue.append((next_state, replace(env.save(), success=False), info["observation"].actions))
        return start

    def _number(self, numbers: dict[Any, int], task: Task, over: bool) -> int:
        """Return the number of the environment's current state."""
        observation = self.env.observe()
        key = (observation, over, fingerprint(self.env))
        if key not in numbers:
            if len(self.seen) >= self.most:
                raise UserError(
                    f"{type(self.env).__name__} has more than {self.most} states that can be reached (task {task.id!r}"
                    " was being explored); name fewer tasks (--tasks), allow more states (--states), or watch it with"
                    " `reflectrl play`"
                )
            numbers[key] = len(self.seen)
            self.seen.append(self.observations[observation])
            self.edges.append([])
        return numbers[key]


class _Pickler(pickle.Pickler):
    """Pickle all random generators as equal. Playing shows whether chance matters."""

    def persistent_id(self, item: Any) -> str | None:
        return "rng" if isinstance(item, np.random.Generator) else None


def fingerprint(env: TextEnv) -> bytes:
    """Return bytes that are equal if the environment is in the same state. They are made from `get_state`, or from all
    attributes if its author left `get_state` to the base class.

    Raises:
        UserError: the state cannot be pickled.
    """
    has_own_state = type(env).get_state is not TextEnv.get_state
    state = (
        env.get_state() if has_own_state else {key: value for key, value in vars(env).items() if key not in NOT_STATE}
    )
    written = io.BytesIO()
    try:
        _Pickler(written).dump(state)
    except Exception as error:  # pickling runs the code of whatever is pickled
        raise UserError(
            f"the state of {type(env).__name__} cannot be compared ({one_line(error)}); let its get_state return, and"
            " set_state take, plain values"
        ) from error
    return written.getvalue()


def _merged(book: _Book, starts: list[int], tasks: tuple[Task, ...], groups: tuple[str | None, ...]) -> World:
    """Return the smallest equivalent table (Moore's partition refinement).

    States with equal observations merge if every sequence of actions from them gives equal observations and outcomes.
    """
    widest = max(map(len, book.edges))
    edges = np.full((len(book.edges), widest), -1)
    for row, state_edges in zip(edges, book.edges, strict=True):
        row[: len(state_edges)] = state_edges
    next_state, outcomes = edges[:, ::2], edges[:, 1::2]
    # Split kinds of states by where their actions lead, until a round splits none.
    kinds, count = np.zeros(len(edges), np.int64), 0
    while True:
        next_kinds = np.where(next_state >= 0, kinds[next_state], -1)
        rows = np.column_stack([np.array(book.seen), kinds, outcomes, next_kinds])
        _, first, kinds = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        kinds = kinds.reshape(-1)
        if len(first) == count:
            break
        count = len(first)
    states = []
    for state in first:
        state_edges = book.edges[state]
        steps = [
            entry
            for next_state, outcome in zip(state_edges[::2], state_edges[1::2], strict=True)
            for entry in (int(kinds[next_state]), outcome)
        ]
        states.append((book.seen[state], *steps))
    return World(
        tuple(book.observations),
        tuple(book.outcomes),
        tuple(states),
        tuple(int(kinds[start]) for start in starts),
        tasks,
        groups,
        book.env.horizon,
    )


def _compare(env: TextEnv, world: World, seed: int) -> None:
    """Play random actions in the environment and in the table side by side. Raise UserError if they differ."""
    rng = np.random.default_rng(named_seed("table"))
    for task, start in [*zip(world.tasks, world.starts, strict=True)] * -(-TRIALS // len(world.tasks)):
        env.reset(seed=seed, options={"task": task})
        state, agrees = world.states[start], True
        while agrees and not env.done:
            action = int(rng.integers(len(env.observe().actions)))
            won = env.success
            _, reward, terminated, truncated, info = env.step(action)
            _, *steps = state
            state, outcome = world.states[steps[2 * action]], world.outcomes[steps[2 * action + 1]]
            observed = (reward, terminated, bool(info["success"]), tuple(info["events"]))
            agrees = observed == (*outcome[:2], won or outcome[2], outcome[3])
            agrees &= env.elapsed == env.horizon or truncated == (len(outcome) > 4)
            agrees &= world.observations[state[0]] == info["observation"]
        if not agrees:
            raise UserError(
                f"{type(env).__name__} cannot be written as a table: step {env.elapsed} of task {task.id!r} had another"
                " effect than in the same state before, by chance or through something that get_state leaves out (the"
                " number of steps, say); watch it with `reflectrl play`"
            )
