"""Findings of the checks, and the certificate that they make up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["ok", "fault", "note", "unknown"]

CHECKS = {
    "promises": "the promises on which players and learners rely are kept",
    "deterministic": "the same task, seed and actions give the same texts, in every process",
    "isolated": "an episode does not depend on what else is played, before it or beside it",
    "splits": "no test task is a training task",
    "text": "the text tells apart what needs different actions",
    "reward": "winning pays more than idling, loops and repetition",
    "headroom": "tasks can be won, and not without reading",
    "learnable": "a small model learns it from reward alone",
}
"""Checks by name, with the property that each one tests."""


@dataclass(frozen=True)
class Finding:
    """Result of a check.

    Attributes:
        check: name of the check, a key of `CHECKS`.
        state: "ok"; "fault"; "note" for something to know that is no fault; "unknown" if it could not be tested.
        words: the reason, in one line.
        figures: measured numbers by name.
    """

    check: str
    state: State
    words: str
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Certificate:
    """Verdict on an environment.

    Attributes:
        env: name of the environment, as it was typed.
        settings: its arguments.
        findings: results of all checks.
    """

    env: str
    settings: Mapping[str, Any]
    findings: Sequence[Finding]

    @property
    def faults(self) -> list[str]:
        """Names of the checks that found a fault."""
        return list(dict.fromkeys(finding.check for finding in self.findings if finding.state == "fault"))

    @property
    def is_sound(self) -> bool:
        """True if no check found a fault."""
        return not self.faults

    def report(self) -> dict[str, Any]:
        """Return the certificate as JSON values."""
        checks = [
            {"check": finding.check, "state": finding.state, "words": finding.words, "figures": dict(finding.figures)}
            for finding in self.findings
        ]
        verdict = "sound" if self.is_sound else "faulty"
        return {
            "env": self.env,
            "settings": dict(self.settings),
            "verdict": verdict,
            "faults": self.faults,
            "checks": checks,
        }
