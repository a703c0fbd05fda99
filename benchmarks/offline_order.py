"""Differences in success between the arms of a run, task by task and seed by seed: is one arm better than another?

    python -m benchmarks.offline_order RUN [--against offline-nll] [--split test] [--stage full] [--arms ARM ...]

Both arms played the same tasks with the same seeds, so tasks that are hard for both do not blur the difference. Two
intervals of 95 % are shown beside the mean. Student's t over the seeds' differences generalises to new trainings, and
is wide with few seeds. A two-stage bootstrap (seeds, then tasks) is too narrow with few seeds. An order is safe if the
first interval excludes 0, and doubtful if the second includes 0.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reflectrl.core.episodes import read_episodes
from reflectrl.core.statistics import mean_interval
from reflectrl.core.types import UserError, named_seed
from reflectrl.wings.text.generation.bootstrap import mean_bootstrap

CONFIDENCE = 0.95
Interval = tuple[float, float]
Outcomes = Mapping[int, Mapping[str, bool]]
"""Outcomes as seed → task → True if it was won."""


@dataclass(frozen=True)
class Difference:
    """An arm's success minus another's, as a share of the tasks from -1 to 1.

    Attributes:
        mean: over the tasks of all seeds that both played.
        student: interval over the seeds' means; None with one seed.
        bootstrap: two-stage bootstrap interval.
    """

    arm: str
    sampling: str
    seeds: int
    mean: float
    student: Interval | None
    bootstrap: Interval


def outcomes(run: Path, split: str, stage: str) -> dict[tuple[str, str], Outcomes]:
    """Return (arm, "greedy" or "sampled") → outcomes, for all evaluations of a run."""
    found: dict[tuple[str, str], dict[int, dict[str, bool]]] = defaultdict(lambda: defaultdict(dict))
    for path in sorted((run / "episodes").glob("eval-*.jsonl")):
        for episode in read_episodes(path):
            about, task = episode.provenance, episode.task
            if (task.split, task.stage) == (split, stage):
                found[about["arm"], about["sampling"]][about["seed"]][task.id] = episode.success
    return dict(found)


def difference(own: Outcomes, other: Outcomes, arm: str, sampling: str) -> Difference | None:
    """Return the difference of two arms, or None if they have no task of a seed in common."""
    both = {seed: [task for task in own[seed] if task in other[seed]] for seed in own if seed in other}
    seeds = [[float(own[seed][t]) - float(other[seed][t]) for t in tasks] for seed, tasks in both.items() if tasks]
    if not seeds:
        return None
    rng = np.random.default_rng(named_seed("offline_order", arm, sampling))
    student = mean_interval([float(np.mean(each)) for each in seeds], CONFIDENCE)
    mean = float(np.mean(np.concatenate(seeds)))
    return Difference(arm, sampling, len(seeds), mean, student, mean_bootstrap(seeds, CONFIDENCE, rng, 2_000))


def differences(run: Path, against: str, split: str, stage: str, arms: Sequence[str]) -> Iterator[Difference]:
    """Yield the differences of all arms but `against` (or of the given arms), greedy and sampled, if they were played.

    Raises:
        UserError: if `against` or a given arm has no evaluation.
    """
    played = outcomes(run, split, stage)
    known = dict.fromkeys(arm for arm, _ in played)
    for arm in (against, *arms):
        if arm not in known:
            raise UserError(f"{run}: no evaluation of {arm!r} on {split}, stage {stage} ({', '.join(known) or 'none'})")
    for sampling in ("greedy", "sampled"):
        for arm in arms or [arm for arm in known if arm != against]:
            found = difference(played.get((arm, sampling), {}), played.get((against, sampling), {}), arm, sampling)
            if found is not None:
                yield found


def main() -> int:
    """Print a row per arm and sampling, in percentage points."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument("--against", default="offline-nll", help="arm that is subtracted")
    parser.add_argument("--split", default="test")
    parser.add_argument("--stage", default="full")
    parser.add_argument("--arms", nargs="*", default=[], help="arms to compare; all if not given")
    options = parser.parse_args()
    try:
        found = list(differences(options.run, options.against, options.split, options.stage, options.arms))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"success minus that of {options.against}, points   seeds    mean  Student's t      bootstrap")
    for one in found:
        student = "" if one.student is None else _shown(one.student)
        name = f"{one.arm}, {one.sampling}"
        print(f"{name:48} {one.seeds:6} {100 * one.mean:+7.1f}  {student:16} {_shown(one.bootstrap)}")
    return 0


def _shown(interval: Interval) -> str:
    return f"[{100 * interval[0]:+.1f}, {100 * interval[1]:+.1f}]"


if __name__ == "__main__":
    sys.exit(main())
