"""Check of the text: does it tell apart the states that need different actions?

A policy that reads the text takes the same action wherever the text is the same. So for a text and each of its actions,
the check finds the tasks that can still be won if this action is always taken at this text. The text hides necessary
information if no action keeps a task winnable, or if no action keeps two tasks winnable at once. A text with which a
player can find out the difference, as in a guessing game with answers, passes: some action keeps both tasks winnable.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations

from reflectrl.tools.certify.budget import now
from reflectrl.tools.certify.graph import StateGraph
from reflectrl.tools.certify.verdict import Finding

MOST_TEXTS = 150
"""Largest number of texts that are examined."""
LEAST_SHARE = 0.1
"""Share of the tasks that must suffer before it counts as a fault."""


def check_text(graphs: Sequence[StateGraph], luck: bool, deadline: float) -> Finding:
    """Look for texts that stand for states with different needs.

    Args:
        graphs: explored graphs of some tasks.
        luck: True if the environment's own randomness changes the effects of actions.
        deadline: time on the clock of `budget` at which to end.
    """
    if luck:
        return Finding("text", "unknown", "luck decides some effects of actions, so states cannot be compared")
    winnable = [graph for graph in graphs if graph.distances()[0] < math.inf]
    if not winnable:
        return Finding("text", "unknown", f"no win is known in {len(graphs)} tasks, so needs cannot be compared")
    harmed_tasks: set[int] = set()
    example, examined, in_single_task = "", 0, False
    for text in suspects(winnable):
        if examined >= MOST_TEXTS or now() > deadline:
            break
        examined += 1
        harmed, is_single = harmed_by(text, winnable)
        if harmed - harmed_tasks and not example:
            example, in_single_task = text, is_single
        harmed_tasks |= harmed
    figures = {"tasks": len(winnable), "states": sum(len(graph.states) for graph in winnable), "texts": examined}
    if len(harmed_tasks) > LEAST_SHARE * len(winnable):
        state = example.split("\x1f")[0].strip().splitlines()
        reason = (
            "in one task, two states that need different actions"
            if in_single_task
            else "tasks that need different actions"
        )
        words = f"{reason} show the same text ({len(harmed_tasks)} of {len(winnable)} tasks), such as {state[-1]!r:.80}"
        return Finding("text", "fault", words, figures | {"tasks_harmed": len(harmed_tasks)})
    explored = sum(graph.is_complete for graph in winnable)
    words = f"{figures['states']} states of {len(winnable)} tasks ({explored} of them explored to the end), no conflict"
    return Finding("text", "ok", words, figures)


def suspects(graphs: Sequence[StateGraph]) -> list[str]:
    """Return the texts of states that have no best action in common, the most frequent ones first."""
    best_actions_by_text: dict[str, list[set[str]]] = defaultdict(list)
    for graph in graphs:
        distances = graph.distances()
        for state, steps in zip(graph.states, distances, strict=True):
            if steps == math.inf:
                continue
            best = {
                action
                for action, edge in state.edges.items()
                if (steps == 1 and edge.success) or (edge.state is not None and distances[edge.state] == steps - 1)
            }
            best_actions_by_text[state.text].append(best)
    conflicting = [text for text, sets in best_actions_by_text.items() if len(sets) > 1 and not set.intersection(*sets)]
    return sorted(conflicting, key=lambda text: -len(best_actions_by_text[text]))


def harmed_by(text: str, graphs: Sequence[StateGraph]) -> tuple[set[int], bool]:
    """Return the tasks that a text harms, and whether a single task is enough to show the harm.

    A task is harmed if no action at this text leaves it a win, or if it and another task have no such action in common.
    """
    winning_actions: dict[int, frozenset[str]] = {}
    for task_index, graph in enumerate(graphs):
        legal = next((state.legal for state in graph.states if state.text == text), None)
        if legal is not None:
            winning_actions[task_index] = frozenset(action for action in legal if graph.can_win({text: action}))
    unwinnable = {task_index for task_index, actions in winning_actions.items() if not actions}
    tasks_by_actions: Mapping[frozenset[str], list[int]] = _by_value({n: a for n, a in winning_actions.items() if a})
    conflicting: set[int] = set()
    for first, second in combinations(tasks_by_actions, 2):
        if not first & second:
            conflicting |= {*tasks_by_actions[first], *tasks_by_actions[second]}
    return unwinnable | conflicting, bool(unwinnable)


def _by_value(table: Mapping[int, frozenset[str]]) -> dict[frozenset[str], list[int]]:
    grouped: dict[frozenset[str], list[int]] = defaultdict(list)
    for key, value in table.items():
        grouped[value].append(key)
    return grouped
