"""The rules of tasks: stable, self-describing, distinct within a split and across splits."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Sequence

from reflectrl.envs.base import TextEnv
from reflectrl.envs.check.rules import EnvCheckError, require
from reflectrl.envs.splits import SPLITS
from reflectrl.plugins import one_line
from reflectrl.types import Task, UserError


def check_tasks(env: TextEnv, twin: TextEnv) -> None:
    """Tasks are stable, self-describing, distinct within a split and across splits."""
    require(env.stages, "stages are not empty")
    require(env.tasks("train"), "there is at least one training task")
    for stage in env.stages:
        seen: dict[str, str] = {}
        for split in SPLITS:
            tasks = list(env.tasks(split, stage))
            again, other = list(env.tasks(split, stage)), list(twin.tasks(split, stage))
            require(tasks == again, f"tasks are stable: a second call for {split}/{stage} gave another list")
            require(tasks == other, f"tasks are stable: a second instance gave another list for {split}/{stage}")
            for task in tasks:
                _check_task(task, split, stage)
            ids = [task.id for task in tasks]
            require(len(set(ids)) == len(ids), f"task ids are unique: {split}/{stage} has {_twice(ids)!r} twice")
            for task in tasks:
                for what, mark in (("id", f"id {task.id}"), ("payload", json.dumps(task.payload, sort_keys=True))):
                    elsewhere = seen.setdefault(mark, split)
                    require(elsewhere == split, f"splits are disjoint: {what} of {task.id} is also in {elsewhere}")
        require(env.tasks("train", env.stages[-1]) == env.tasks("train"), "stage None means the last stage")
    for arguments in (("no such split", None), ("train", "no such stage")):
        try:
            env.tasks(*arguments)
        except UserError:
            continue
        raise EnvCheckError(f"an unknown split or stage raises UserError: tasks{arguments} did not")


def _check_task(task: Task, split: str, stage: str) -> None:
    require(isinstance(task, Task), f"tasks are Task objects, not {type(task).__name__}")
    require((task.split, task.stage) == (split, stage), f"a task knows its split and stage: {task.id} does not")
    try:
        same = json.loads(json.dumps(dict(task.payload))) == dict(task.payload)
    except (TypeError, ValueError) as error:
        raise EnvCheckError(f"a payload holds JSON values only: {task.id}: {one_line(error)}") from error
    require(same, f"a payload holds JSON values only (lists, not tuples; text keys): {task.id} does not")


def _twice(ids: Sequence[str]) -> str:
    return max(ids, key=Counter(ids).__getitem__, default="")


def warn_of_one_start(env: TextEnv) -> None:
    """Splits mean little when all tasks look alike; not an error, since the tasks may differ in their luck."""
    some = [task for split in SPLITS for task in env.tasks(split)[:20]]
    starts = {env.reset(options={"task": task})[0] for task in some}
    if len(starts) == 1 and len(some) > 1:
        warnings.warn(f"all tasks begin with the same text; is {some[-1].split} really unseen?", stacklevel=3)
