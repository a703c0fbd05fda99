"""How a broken rule is reported."""

from __future__ import annotations


class EnvCheckError(AssertionError):
    """A rule is broken; the message is one line that names it."""


def require(condition: object, rule: str) -> None:
    """Raise `EnvCheckError` with the rule, on one line, unless the condition holds."""
    if not condition:
        raise EnvCheckError(" ".join(rule.split()))
