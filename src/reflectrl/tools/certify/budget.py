"""The clock of the checks: seconds of work, so that verdicts do not depend on how busy the machine is."""

from __future__ import annotations

import time
from pathlib import Path

SCHEDULE = Path("/proc/self/schedstat")
"""File on Linux: nanoseconds that this process has computed, and nanoseconds that it has waited for a processor."""
STARVED = 4.0
"""Divisor of wall-clock time on other systems, for environments that wait for a server."""
_BEGAN = time.monotonic()


def now() -> float:
    """Return the seconds of work so far: computing, or waiting for other programs, but not for a processor."""
    elapsed = time.monotonic() - _BEGAN
    try:
        return elapsed - int(SCHEDULE.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return max(time.process_time(), elapsed / STARVED)
