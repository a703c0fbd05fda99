"""Checks of determinism and isolation: the same walks in fresh processes, in other orders, and side by side.

Each order of play gets a process of its own, so nothing that was played before can disturb it. A second process that
plays the same detects randomness, another hash seed detects dependence on the order of sets, and another order of play
detects state that a reset does not clear.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from reflectrl.core.json_lines import parse_json
from reflectrl.core.plugins import one_line
from reflectrl.core.types import UserError
from reflectrl.tools.certify.courses import Walk, question
from reflectrl.tools.certify.verdict import Finding, State

SECONDS = 3.0
"""Time after which the first process begins no further walk. All others take as many."""
PROGRAM = """
from reflectrl.core.open_environments import closing_environments
from reflectrl.tools.certify.courses import main
with closing_environments():
    main()
"""
Courses = list[list[str]]


class Trial(NamedTuple):
    """Process in which the walks are taken again, and the fault if their courses differ from the first ones."""

    check: str
    order: str
    hash_seed: str
    clock_ahead: bool
    fault: str


BY_HASH = "an episode depends on the process (is a set or hash() involved?)"
BY_CLOCK = "an episode depends on the clock"
TRIALS = (
    Trial("deterministic", "each fresh", "0", False, "the same walk in another process gives another episode"),
    Trial("deterministic", "each fresh", "1", True, BY_CLOCK),
    Trial("deterministic", "each fresh", "2", False, BY_HASH),
    Trial(
        "isolated", "backwards", "0", False, "an episode depends on what was played before: reset does not forget it"
    ),
    Trial(
        "isolated", "beside each other", "0", False, "environments that are played at the same time disturb each other"
    ),
)
SINGLE = "max_concurrent_envs"
"""Word in the error of an OpenEnv server that hosts a single environment at a time."""


def check_repeatable(section: dict[str, Any], walks: Sequence[Walk]) -> list[Finding]:
    """Take the walks in several processes, and compare what was seen.

    Args:
        section: `env` section of JSON values.
    """
    try:
        first = taken(section, question(section, walks, "each fresh", seconds=SECONDS), "0")
    except UserError as error:
        return [Finding("promises", "fault", one_line(error))]
    walks = walks[: len(first)]
    findings: dict[str, Finding] = {}
    for trial in TRIALS:
        faulty = [finding.check for finding in findings.values() if finding.state == "fault"]
        if trial.check in findings or (trial.check == "isolated" and faulty):
            continue
        try:
            difference = _difference(section, walks, first, trial)
            state: State = "fault"
        except UserError as error:
            difference = one_line(error)
            state = "unknown" if SINGLE in difference else "fault"
        if difference is not None:
            findings[trial.check] = Finding(trial.check, state, difference)
    if "deterministic" in findings and "isolated" not in findings:
        words = "not tested, since the same walk is not the same episode twice"
        findings["isolated"] = Finding("isolated", "unknown", words)
    steps = sum(map(len, first))
    for check in ("deterministic", "isolated"):
        words = f"{len(walks)} walks, {steps} steps, {_trials(check)}"
        findings.setdefault(check, Finding(check, "ok", words, {"walks": len(walks), "steps": steps}))
    return [findings["deterministic"], findings["isolated"]]


def _difference(section: dict[str, Any], walks: Sequence[Walk], first: Courses, trial: Trial) -> str | None:
    """Take the walks as a trial says, and describe the first difference; None if there is none.

    Raises:
        UserError: the process failed.
    """
    again = taken(section, question(section, walks, trial.order, trial.clock_ahead), trial.hash_seed)
    difference = first_difference(first, again, walks)
    if difference is None:
        return None
    fault = trial.fault
    if trial.clock_ahead:  # this process has another hash seed too: only without the clock can the two be told apart
        same_clock = taken(section, question(section, walks, trial.order), trial.hash_seed)
        fault = BY_CLOCK if same_clock == first else BY_HASH
    return f"{fault}; {difference}"


def _trials(check: str) -> str:
    if check == "deterministic":
        return "the same in four processes, with another hash seed and another clock"
    return "the same backwards in one environment, and in four beside each other"


def taken(section: dict[str, Any], asked: str, hash_seed: str) -> Courses:
    """Take walks in a process of its own, and return their courses.

    Args:
        asked: standard input of the process (see `courses.question`).
        hash_seed: seed of `hash()` there.

    Raises:
        UserError: the process failed. Its last line is in the message.
    """
    surroundings = os.environ | {"PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-c", PROGRAM]
    completed = subprocess.run(command, input=asked, capture_output=True, text=True, env=surroundings, check=False)
    if completed.returncode:
        last = (completed.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"environment {section['name']!r}, played in a process of its own: {last:.300}")
    courses: Courses = parse_json(completed.stdout.splitlines()[-1])
    return courses


def first_difference(first: Courses, again: Courses, walks: Sequence[Walk]) -> str | None:
    """Name the first step at which courses differ; None if they are the same."""
    different = 0
    location = None
    for walk, course, other_course in zip(walks, first, again, strict=True):
        if course == other_course:
            continue
        different += 1
        if location is None:
            step = sum(1 for _ in _equal_start(course, other_course))
            location = f"first at step {step} of {walk.split} task {walk.number}"
    return None if location is None else f"{different} of {len(walks)} walks differ, {location}"


def _equal_start(here: Sequence[str], there: Sequence[str]) -> list[str]:
    """Return the steps that two courses have in common at their start."""
    common = []
    for a, b in zip(here, there, strict=False):
        if a != b:
            break
        common.append(a)
    return common
