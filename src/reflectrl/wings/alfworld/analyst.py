"""What a good reflector would say about a household, from nothing but the text that was shown."""

from __future__ import annotations

from reflectrl.wings.alfworld.notes import Notes
from reflectrl.wings.alfworld.search import Advice


def analyse(notes: Notes, advice: Advice, command: str, last: str) -> str:
    """One line: whether the last command was any use, what is known that matters now, what to do next.

    Args:
        advice: what one who searches would do, and why.
        command: what is done next; where it is something else, the reasons are not named.
        last: the last command; "" at the start.
    """
    wasted = f"The last command, {last}, brought nothing. " if last and not notes.fresh else ""
    reasons = advice.because if command == advice.command else advice.because.partition(" Left:")[0]
    return f"{wasted}{reasons} Next: {command}"
