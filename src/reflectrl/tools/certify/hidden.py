"""Check of the text: does it tell apart the states that need different actions?

A policy that reads the text takes the same action wherever the same text stands. So for a text and each of its actions
we ask in which tasks a win is left if this action is always taken there. A text hides what matters if no action leaves
a win in one task, or in two tasks together. Texts by which the difference can be found out, as in a guessing game with
answers, pass: there, some action leaves a win in both.
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
        return Finding("text", "unknown", "luck decides a part of what actions do, so states cannot be compared")
    winnable = [graph for graph in graphs if graph.distances()[0] < math.inf]
    if not winnable:
        return Finding("text", "unknown", f"no win is known in {len(graphs)} tasks, so needs cannot be compared")
    suffering: set[int] = set()
    example, examined, forgotten = "", 0, False
    for text in suspects(winnable):
        if examined >= MOST_TEXTS or now() > deadline:
            break
        examined += 1
        harmed, is_single = harmed_by(text, winnable)
        if harmed - suffering and not example:
            example, forgotten = text, is_single
        suffering |= harmed
    figures = {"tasks": len(winnable), "states": sum(len(graph.states) for graph in winnable), "texts": examined}
    if len(suffering) > LEAST_SHARE * len(winnable):
        state = example.split("\x1f")[0].strip().splitlines()
        reason = (
            "in one task, two states that need different actions" if forgotten else "tasks that need different actions"
        )
        words = f"{reason} show the same text ({len(suffering)} of {len(winnable)} tasks), such as {state[-1]!r:.80}"
        return Finding("text", "fault", words, figures | {"tasks_harmed": len(suffering)})
    explored = sum(graph.is_complete for graph in winnable)
    words = f"{figures['states']} states of {len(winnable)} tasks ({explored} of them explored to the end), no conflict"
    return Finding("text", "ok", words, figures)


def suspects(graphs: Sequence[StateGraph]) -> list[str]:
    """Return the texts of states that have no shortest way in common, the most frequent ones first."""
    good: dict[str, list[set[str]]] = defaultdict(list)
    for graph in graphs:
        left = graph.distances()
        for state, steps in zip(graph.states, left, strict=True):
            if steps == math.inf:
                continue
            best = {
                action
                for action, edge in state.edges.items()
                if (steps == 1 and edge.success) or (edge.state is not None and left[edge.state] == steps - 1)
            }
            good[state.text].append(best)
    conflicting = [text for text, sets in good.items() if len(sets) > 1 and not set.intersection(*sets)]
    return sorted(conflicting, key=lambda text: -len(good[text]))


def harmed_by(text: str, graphs: Sequence[StateGraph]) -> tuple[set[int], bool]:
    """Return the tasks in which a text leads astray, and whether a task alone shows it.

    A task is harmed if no action at this text leaves it a win, or if it and another task have no such action in common.
    """
    leaves: dict[int, frozenset[str]] = {}
    for number, graph in enumerate(graphs):
        legal = next((state.legal for state in graph.states if state.text == text), None)
        if legal is not None:
            leaves[number] = frozenset(action for action in legal if graph.can_win({text: action}))
    alone = {number for number, actions in leaves.items() if not actions}
    kinds: Mapping[frozenset[str], list[int]] = _by_value({n: a for n, a in leaves.items() if a})
    together: set[int] = set()
    for first, second in combinations(kinds, 2):
        if not first & second:
            together |= {*kinds[first], *kinds[second]}
    return alone | together, bool(alone)


def _by_value(table: Mapping[int, frozenset[str]]) -> dict[frozenset[str], list[int]]:
    grouped: dict[frozenset[str], list[int]] = defaultdict(list)
    for key, value in table.items():
        grouped[value].append(key)
    return grouped
