"""BeelineBench's own program, which makes its boards of Rush Hour in seconds instead of half an hour.

    python -m benchmarks.beeline_client run --chooser ours --domain rush_hour

Arguments and files are those of `beelinebench`. The program rejects many easy boards of Rush Hour for each trial.
`reflectrl.wings.planning` rejects the same boards some 30 times as fast, so its trials are the same (a test compares
them).
"""

from __future__ import annotations

import beelinebench.__main__ as program
from beelinebench.domains import rush_hour

from reflectrl.wings.planning import trials


def make_rush_hour(trial: int, *, heuristic: str, vehicles: int, min_moves: int) -> object:
    """Make a trial of Rush Hour, in place of the program's function of these arguments."""
    rush_hour.check_heuristic("rush_hour", heuristic, ("blocking_cars",))
    return trials.make_rush_hour(trial, vehicles, min_moves)


if __name__ == "__main__":
    rush_hour.problem = make_rush_hour
    program.main()
