"""Parser of PDDL problems as ALFWorld writes them: facts, and a goal of conjunctions and existential quantifiers."""

from __future__ import annotations

import re
from typing import NamedTuple

Expression = str | list["Expression"]

Fact = tuple[str, ...]
"""A predicate and its arguments, in lower case: ("inreceptacle", "mug_bar_1", "desk_bar_2")."""

TOKEN = re.compile(r"[()]|[^\s();]+|;[^\n]*")


class PddlError(ValueError):
    """The text is not a PDDL problem. The message says what is wrong."""


class Problem(NamedTuple):
    """The initial facts, and every literal of the goal without its quantifiers and connectives."""

    facts: tuple[Fact, ...]
    goal: frozenset[Fact]


def parse_problem(text: str) -> Problem:
    """Read a problem.

    Raises:
        PddlError: brackets do not match (a truncated file, say), or a part is missing or unknown.
    """
    sections = {_head(part): part for part in _brackets(text)[1:] if isinstance(part, list)}
    for name in (":init", ":goal"):
        if name not in sections:
            raise PddlError(f"there is no ({name} ...)")
    facts = tuple(_fact(part) for part in sections[":init"][1:])
    return Problem(tuple(fact for fact in facts if fact[0] != "="), frozenset(_literals(sections[":goal"][1:])))


def _brackets(text: str) -> list[Expression]:
    """Parse the text as one nested list."""
    stack: list[list[Expression]] = [[]]
    for token in TOKEN.findall(text.lower()):
        if token == "(":
            stack.append([])
        elif token == ")":
            if len(stack) == 1:
                raise PddlError("a bracket is closed that was never opened")
            bracket = stack.pop()
            stack[-1].append(bracket)
        elif not token.startswith(";"):
            stack[-1].append(token)
    if len(stack) > 1:
        raise PddlError("a bracket is never closed: the file is cut off")
    if len(stack[0]) != 1 or not isinstance(stack[0][0], list) or _head(stack[0][0]) != "define":
        raise PddlError("it does not begin with (define (problem ...")
    return stack[0][0]


def _head(part: Expression) -> str:
    return part[0] if isinstance(part, list) and part and isinstance(part[0], str) else ""


def _fact(part: Expression) -> Fact:
    """Return a fact. Assignments such as (= (distance a b) 3) become ("=",)."""
    if _head(part) == "=":
        return ("=",)
    if not isinstance(part, list) or not part or not all(isinstance(word, str) for word in part):
        raise PddlError(f"{_shown(part)} is not a fact")
    return tuple(str(word) for word in part)


def _literals(parts: list[Expression]) -> list[Fact]:
    literals: list[Fact] = []
    for part in parts:
        head = _head(part)
        if not isinstance(part, list) or head in ("or", "forall", "when", "imply"):
            raise PddlError(f"the goal has {_shown(part)}, which no task type of ALFWorld needs")
        if head == "and":
            literals += _literals(part[1:])
        elif head == "exists":
            literals += _literals(part[2:])
        elif head == "not":
            literals += [("not", *literal) for literal in _literals(part[1:])]
        else:
            literals.append(tuple(str(word) for word in part))
    return literals


def _shown(part: Expression) -> str:
    text = part if isinstance(part, str) else f"({' '.join(map(_shown, part))})"
    return text if len(text) <= 60 else text[:57] + "..."
