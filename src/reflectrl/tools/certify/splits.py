"""Check of the splits: is a test task one of the training tasks under another name?

Tasks are compared by what a player sees: the first text, and what the same walks lead to. Ids and payloads are compared
by the checks of promises.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from reflectrl.core.envs.base import TextEnv
from reflectrl.core.types import Task
from reflectrl.learn.validation import evenly
from reflectrl.tools.certify.budget import now
from reflectrl.tools.certify.courses import Walk, course, digest
from reflectrl.tools.certify.verdict import Finding

WALKS = 6
MOST_TRAINING, MOST_TEST, MOST_SIMILAR = 2000, 200, 300
"""Largest number of tasks that are compared."""
LARGE_SHARE, LEAST_TASKS = 0.2, 3
"""Share of the test tasks, or number of them where training tasks are all different, that makes a fault."""


def check_splits(env: TextEnv, luck: bool, deadline: float) -> Finding:
    """Compare test tasks and validation tasks with training tasks.

    Args:
        env: environment of this process.
        luck: True if the environment's own randomness changes the effects of actions.
        deadline: time on the clock of `budget` at which to end.
    """
    training = evenly(env.tasks("train"), MOST_TRAINING)
    starts: dict[str, list[Task]] = defaultdict(list)
    for task in training:
        starts[first_text(env, task)].append(task)
        if now() > deadline:
            break
    repeated: dict[str, int] = {}
    tested: dict[str, int] = {}
    different: set[str] = set()
    count = Counter[str]()
    for split in ("validation", "test"):
        tasks = evenly(env.tasks(split), MOST_TEST)
        repeated[split] = tested[split] = 0
        for task in tasks:
            if now() > deadline:
                break
            tested[split] += 1
            similar = starts.pop(first, None) if (first := first_text(env, task)) in starts else None
            if similar is not None:  # the walks of these training tasks, taken once
                for other in evenly(similar, MOST_SIMILAR):
                    mark = signature_of(env, other)
                    count[mark] += 1
                    different.add(mark)
            if signature_of(env, task) in different:
                repeated[split] += 1
    figures = {f"{split}_repeated": repeated[split] for split in repeated} | {f"{s}_tasks": tested[s] for s in tested}
    return _judged(repeated, tested, count, len(starts), luck, figures)


def _judged(
    repeated: dict[str, int],
    tested: dict[str, int],
    count: Counter[str],
    others: int,
    luck: bool,
    figures: dict[str, int],
) -> Finding:
    """Judge the numbers of repeated tasks.

    Args:
        count: training tasks that look alike, for each look that was compared.
        others: number of first texts of training tasks that no other split shows.
    """
    split, share = max(((s, repeated[s] / max(1, tested[s])) for s in repeated), key=lambda pair: pair[1])
    if not share:
        return Finding("splits", "ok", f"none of {sum(tested.values())} other tasks is a training task", figures)
    words = f"{repeated[split]} of {tested[split]} {split} tasks play as a training task does"
    if len(count) == 1 and not others:
        about = "all tasks are the same world: success on test tasks says how reliably it is played, not how it carries over"
        return Finding("splits", "note", about, figures)
    are_distinct = max(count.values()) == 1
    if luck and not are_distinct:
        return Finding("splits", "note", f"{words}; only luck differs", figures)
    if share > LARGE_SHARE or (are_distinct and repeated[split] >= LEAST_TASKS):
        return Finding("splits", "fault", f"{words}: test tasks are not new", figures)
    return Finding("splits", "note", f"{words}, by chance perhaps", figures)


def first_text(env: TextEnv, task: Task) -> str:
    """Return a digest of the text and the actions with which a task begins."""
    text, info = env.reset(seed=0, options={"task": task})
    return digest(text, info["actions"])


def signature_of(env: TextEnv, task: Task) -> str:
    """Return a digest of what some walks through a task lead to."""
    courses: Sequence[list[str]] = [list(course(env, task, Walk(task.split, 0, seed))) for seed in range(WALKS)]
    return digest(*courses)
