"""Wins of some training tasks: by the teacher's expert, on explored graphs, and by a search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from reflectrl.core.envs.base import TextEnv
from reflectrl.core.players import ExpertPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Episode, Task, named_seed
from reflectrl.learn.own_wins import Search, episode_of
from reflectrl.learn.validation import evenly
from reflectrl.tools.certify.budget import now
from reflectrl.tools.certify.fingerprint import Fingerprints
from reflectrl.tools.certify.graph import StateGraph
from reflectrl.tools.certify.splits import first_text

MOST_TASKS = 12
"""Number of training tasks that are explored."""
MOST_STATES, MOST_STEPS = 3000, 60_000
"""Largest number of states of a task, and of steps that exploring it may take."""
SEARCH_STEPS = 100_000
"""Largest number of steps of the search for a win of a task."""


@dataclass(frozen=True)
class Win:
    """Win of a task: its actions, its return, and its episode."""

    task: Task
    actions: tuple[str, ...]
    earned: float
    episode: Episode


def sample_of(env: TextEnv, tasks: Sequence[Task], most: int = MOST_TASKS) -> list[Task]:
    """Choose tasks to explore: up to half share their first text with other tasks, and the rest are spread evenly."""
    groups: dict[str, list[Task]] = {}
    for task in evenly(tasks, 400):
        groups.setdefault(first_text(env, task), []).append(task)
    crowded = sorted((group for group in groups.values() if len(group) > 1), key=len, reverse=True)
    sample: dict[str, Task] = {}
    for group in crowded[: max(1, most // 4)]:
        for task in evenly(group, max(2, most // (2 * min(len(crowded), most // 4)))):
            sample.setdefault(task.id, task)
    for task in evenly(tasks, most):
        if len(sample) < most:
            sample.setdefault(task.id, task)
    return list(sample.values())[:most]


def explored(make_env: Callable[[], TextEnv], tasks: Sequence[Task], deadline: float) -> list[StateGraph]:
    """Explore the graphs of tasks, for about the same time each."""
    graphs, fingerprint = [], Fingerprints()
    for index, task in enumerate(tasks):
        seconds_left = deadline - now()
        if seconds_left <= 0:
            break
        graph = StateGraph(make_env(), task, named_seed("certify", task.id), fingerprint)
        graph.explore(MOST_STATES, MOST_STEPS, now() + seconds_left / (len(tasks) - index))
        graphs.append(graph)
    return graphs


def find_wins(
    make_env: Callable[[], TextEnv], tasks: Sequence[Task], graphs: Sequence[StateGraph], deadline: float
) -> list[Win]:
    """Return a short win of each task that has a known one. Searched wins are added to the graphs."""
    by_task = {graph.task.id: graph for graph in graphs}
    wins = []
    with closing(make_env()) as env:
        for index, task in enumerate(tasks):
            graph = by_task.get(task.id)
            if graph is not None and (shortest := graph.shortest_win()) is not None:
                wins.append(win_of(env, task, graph.seed, shortest[0]))
                continue
            seconds_left = deadline - now()
            if seconds_left <= 0 or (graph is not None and graph.is_complete):
                continue
            search = Search(env, task, named_seed("certify", task.id))
            actions = None
            task_deadline = now() + seconds_left / (len(tasks) - index)
            while actions is None and search.steps < SEARCH_STEPS and now() < task_deadline:
                actions = search.find(search.steps + 2000)
            if actions is not None:
                wins.append(win_of(env, task, search.seed, actions))
                if graph is not None:
                    graph.follow(actions)
    return wins


def win_of(env: TextEnv, task: Task, seed: int, actions: tuple[str, ...]) -> Win:
    """Play a win again."""
    episode = episode_of(env, task, seed, actions)
    return Win(task, actions, episode.total_reward, episode)


def expert_play(make_env: Callable[[], TextEnv], tasks: Sequence[Task]) -> list[Episode]:
    """Play tasks by the teacher's expert."""
    jobs = [Job(task, named_seed("certify", "expert", task.id)) for task in tasks]
    return list(rollout(jobs, make_env, ExpertPlayer(), None, 16))
