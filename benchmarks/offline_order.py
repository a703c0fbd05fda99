"""Whether one arm of a run is better than another: differences of success, task by task and seed by seed.

    python -m benchmarks.offline_order RUN [--against offline-nll] [--split test] [--stage full] [--arms ARM ...]

Both arms played the same tasks with the same seeds, so tasks that are hard for both do not blur the difference. Two
intervals of 95 % stand beside the mean: Student's over the seeds' differences, which speaks of trainings that were not
made, and is wide with few seeds; and a two-stage bootstrap (seeds, then tasks), which is too narrow with few seeds. An
order holds safely where the first leaves out 0, and hardly at all where the second does not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reflectrl.episodes import read_episodes
from reflectrl.statistics import mean_bootstrap, mean_interval
from reflectrl.types import UserError, named_seed

CONFIDENCE = 0.95
Interval = tuple[float, float]


@dataclass(frozen=True)
class Difference:
    """By how much an arm's success is above another's.

    Attributes:
        mean: over all tasks of all seeds both played.
        student: over the seeds' means; None with one seed.
        bootstrap: two-stage.
    """

    arm: str
    sampling: str
    seeds: int
    mean: float
    student: Interval | None
    bootstrap: Interval


def outcomes(run: Path, arm: str, split: str, stage: str, sampling: str) -> dict[int, dict[str, bool]]:
    """Seed → task → whether it was won."""
    marks = f"eval-{arm}-seed", f"-{split}-{stage}-{sampling}.jsonl"
    found = {}
    for path in sorted((run / "episodes").glob(f"{marks[0]}*{marks[1]}")):
        seed = path.name.removeprefix(marks[0]).removesuffix(marks[1])
        if seed.isdigit():
            found[int(seed)] = {episode.task.id: episode.success for episode in read_episodes(path)}
    return found


def difference(run: Path, arm: str, against: str, split: str, stage: str, sampling: str) -> Difference | None:
    """None where the two have no task of a seed in common."""
    own, other = (outcomes(run, name, split, stage, sampling) for name in (arm, against))
    seeds = [
        [float(own[seed][task]) - float(other[seed][task]) for task in own[seed] if task in other[seed]]
        for seed in own
        if seed in other
    ]
    seeds = [each for each in seeds if each]
    if not seeds:
        return None
    rng = np.random.default_rng(named_seed("offline_order", arm, against, sampling))
    student = mean_interval([float(np.mean(each)) for each in seeds], CONFIDENCE)
    mean = float(np.mean(np.concatenate(seeds)))
    return Difference(arm, sampling, len(seeds), mean, student, mean_bootstrap(seeds, CONFIDENCE, rng, 2_000))


def differences(run: Path, against: str, split: str, stage: str, arms: list[str]) -> Iterator[Difference]:
    """Every arm but `against` (or those that are named), greedy and sampled, as far as they were played.

    Raises:
        UserError: nothing of `against` was played.
    """
    files = sorted((run / "episodes").glob(f"eval-*-seed*-{split}-{stage}-*.jsonl"))
    known = dict.fromkeys(path.name.removeprefix("eval-").partition("-seed")[0] for path in files)
    if against not in known:
        raise UserError(f"{run}: no evaluation of {against!r} on {split}, stage {stage} ({', '.join(known) or 'none'})")
    for sampling in ("greedy", "sampled"):
        for arm in arms or [arm for arm in known if arm != against]:
            if found := difference(run, arm, against, split, stage, sampling):
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
