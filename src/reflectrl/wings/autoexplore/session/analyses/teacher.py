"""Teacher of the analyses: read until the column or the input is known, then take the question's next step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reflectrl.core.envs.teacher import Teacher
from reflectrl.wings.autoexplore.session.analyses.making import CHART, Query

if TYPE_CHECKING:
    from reflectrl.wings.autoexplore.session.analyses.env import AnalysesEnv


class AnalysesTeacher(Teacher):
    """Teacher that uses only files that it has read, and their paths."""

    def expert_action(self, env: AnalysesEnv) -> int:
        action, _ = next_step(env)
        return list(env.legal_actions()).index(action)

    def analyse(self, env: AnalysesEnv) -> str:
        """Name what the request's words are called in the files, as far as they were read, and the next step."""
        action, reason = next_step(env)
        return f"{reason} Now {action}."


def next_step(env: AnalysesEnv) -> tuple[str, str]:
    """Return the best next action, and a sentence that says why."""
    changes, query = env.changes(), env.project.query
    if changes not in ({}, env.project.changes):
        return "undo", "The change is wrong."
    if env.is_prepared():
        return _last_step(env)
    if query is None:
        return _step_of_chart(env)
    if query.calculation == "run":
        return _step_of_model(env)
    return _step_of_table(env, query)


def _last_step(env: AnalysesEnv) -> tuple[str, str]:
    task, result = env.project, env.result
    if task.query is None or result is None:
        return "finish", "The map is as asked."
    if result.order != task.order:
        return f"sort {task.order}", f"The {'highest' if task.order == 'down' else 'lowest'} has to come first."
    if task.order:
        return f"answer {task.answer}", f"First comes {task.answer}."
    return f"answer {task.answer}", f"The result of {task.label} is {task.answer}."


def _step_of_chart(env: AnalysesEnv) -> tuple[str, str]:
    task = env.project
    if CHART not in env.seen:
        return f"read {CHART}", "The map is to be changed."
    if task.path not in env.seen or env.opened not in (CHART, task.path):
        return f"read {task.path}", "The map shows this file."
    return task.edit, f"The {task.subject} is {task.name}."


def _step_of_model(env: AnalysesEnv) -> tuple[str, str]:
    task = env.project
    if env.opened != task.path:
        return f"read {task.path}", "The inputs of the model are asked for."
    if not env.changes():
        return task.edit, f"The input is {task.name}."
    return "run", "The input is changed."


def _step_of_table(env: AnalysesEnv, query: Query) -> tuple[str, str]:
    task = env.project
    if task.path not in env.seen:
        unread = next(path for path in env.tables() if path not in env.seen)
        return f"read {unread}", f"The {task.subject} may be there."
    if env.opened != task.path:
        return f"read {task.path}", f"The {task.subject} is there."
    called = f"The {task.subject} is {task.name}."
    if query.calculation == "missing":
        return "missing", called
    if (env.where and not query.where) or (env.grouping and not query.group):
        return "reset", "The selection is wrong."
    if env.where != query.where:
        return f"where {' '.join(query.where)}", called
    if env.grouping != query.group:
        return f"group {query.group}", called
    return f"{query.calculation} {query.column}", called
