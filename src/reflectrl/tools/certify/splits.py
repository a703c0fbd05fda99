"""Check of the splits: is a test task one of the training tasks under another name?

Tasks are compared by what a player sees: the first text, what the same random walks lead to, and what the actions of a
win lead to. Ids and payloads are compared by the checks of promises.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reflectrl.core.envs.base import TextEnv
from reflectrl.core.types import Task, named_seed
from reflectrl.learn.own_wins import Search
from reflectrl.learn.validation import evenly
from reflectrl.tools.certify.budget import now
from reflectrl.tools.certify.courses import Walk, course, digest
from reflectrl.tools.certify.verdict import Finding

WALKS = 6
MOST_TRAINING, MOST_TEST, MOST_SIMILAR = 2000, 200, 300
"""Largest number of tasks that are compared, and of training tasks with the same first text."""
MOST_SEARCHED, SEARCH_STEPS = 24, 4000
"""Number of test tasks whose wins are compared as well, and the steps of the search for each."""
LARGE_SHARE, LEAST_TASKS = 0.2, 3
"""Share of the test tasks, or number of them where training tasks are all different, that makes a fault."""


@dataclass(frozen=True)
class Overlap:
    """Tasks of a split that play like training tasks.

    Attributes:
        split: name of the split.
        tasks: number of tasks that were compared.
        repeated: number of them that play like a training task, estimated if wins were compared for some of them.
        are_distinct: True if no two training tasks among those compared play alike.
    """

    split: str
    tasks: int
    repeated: int
    are_distinct: bool

    @property
    def share(self) -> float:
        """Share of the tasks that are repeated."""
        return self.repeated / max(1, self.tasks)


def check_splits(env: TextEnv, luck: bool, deadline: float) -> Finding:
    """Compare test tasks and validation tasks with training tasks.

    Args:
        env: environment of this process.
        luck: True if the environment's own randomness changes the effects of actions.
        deadline: time on the clock of `budget` at which to end.
    """
    training: dict[str, list[Task]] = defaultdict(list)
    for task in evenly(env.tasks("train"), MOST_TRAINING):
        training[first_text(env, task)].append(task)
        if now() > deadline:
            break
    overlaps = [
        overlap(env, split, training, luck, now() + (deadline - now()) / share)
        for split, share in (("test", 2), ("validation", 1))
    ]
    figures = {f"{part.split}_{key}": getattr(part, key) for part in overlaps for key in ("tasks", "repeated")}
    largest = max(overlaps, key=lambda part: part.share)
    if not largest.repeated:
        words = f"none of {sum(part.tasks for part in overlaps)} other tasks plays as a training task does"
        return Finding("splits", "ok", words, figures)
    words = f"{largest.repeated} of {largest.tasks} {largest.split} tasks play as a training task does"
    if len(training) == 1 and largest.share == 1 and is_one_world(env, next(iter(training.values()))):
        about = "all tasks are the same world: test tasks show how reliably it is played, not how well play generalises"
        return Finding("splits", "note", about, figures)
    if luck and not largest.are_distinct:
        return Finding("splits", "note", f"{words}; only luck differs", figures)
    if largest.share > LARGE_SHARE or (largest.are_distinct and largest.repeated >= LEAST_TASKS):
        return Finding("splits", "fault", f"{words}: they are not new", figures)
    return Finding("splits", "note", f"{words}, perhaps by chance", figures)


def overlap(env: TextEnv, split: str, training: dict[str, list[Task]], luck: bool, deadline: float) -> Overlap:
    """Compare the tasks of a split with training tasks.

    Args:
        training: training tasks by their first text.
        luck: True if the environment's own randomness changes the effects of actions: then wins are not compared.
        deadline: time on the clock of `budget` at which to end.
    """
    by_walks: dict[str, dict[str, list[Task]]] = {}
    tested = 0
    similar: list[tuple[Task, list[Task]]] = []
    for task in evenly(env.tasks(split), MOST_TEST):
        if now() > deadline:
            break
        tested += 1
        first = first_text(env, task)
        if first not in training:
            continue
        if first not in by_walks:
            by_walks[first] = defaultdict(list)
            for other in evenly(training[first], MOST_SIMILAR):
                by_walks[first][signature_of(env, other)].append(other)
        others = by_walks[first].get(signature_of(env, task))
        if others:
            similar.append((task, others))
    repeated = len(similar)
    if similar and not luck:
        compared = list(wins_compared(env, evenly(similar, MOST_SEARCHED), deadline))
        repeated = round(len(similar) * sum(compared) / max(1, len(compared)))
    distinct = all(len(others) == 1 for groups in by_walks.values() for others in groups.values())
    return Overlap(split, tested, repeated, distinct)


def wins_compared(env: TextEnv, pairs: Sequence[tuple[Task, list[Task]]], deadline: float) -> Iterator[bool]:
    """Yield for each task whether its win leads to the same in a training task. Tasks without a known win are left out.

    Random walks may end before the difference between two tasks shows.
    """
    for task, others in pairs:
        search = Search(env, task, named_seed("certify", "splits", task.id))
        actions = search.find(SEARCH_STEPS) if now() < deadline else None
        if actions is not None:
            walk = Walk(task.split, 0, 0, actions)
            win_course = list(course(env, task, walk))
            yield any(win_course == list(course(env, other, walk)) for other in others)


def is_one_world(env: TextEnv, tasks: Sequence[Task]) -> bool:
    """Return whether some tasks are all the same, as far as walks show."""
    return len({signature_of(env, task) for task in evenly(tasks, 50)}) == 1


def first_text(env: TextEnv, task: Task) -> str:
    """Return a digest of the text and the actions with which a task begins."""
    text, info = env.reset(seed=0, options={"task": task})
    return digest(text, info["actions"])


def signature_of(env: TextEnv, task: Task) -> str:
    """Return a digest of what some walks through a task lead to."""
    courses: Sequence[list[str]] = [list(course(env, task, Walk(task.split, 0, seed))) for seed in range(WALKS)]
    return digest(*courses)
