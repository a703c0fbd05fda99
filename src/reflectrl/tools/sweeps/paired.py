"""Paired differences of success between arms of runs, on the tasks that both have played.

A difference on the same tasks says more than two separate intervals, since luck with the tasks cancels out. The
interval covers both an interval over tasks and an interval over seeds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from reflectrl.core.episodes import read_episodes
from reflectrl.core.evaluation import is_unread
from reflectrl.core.statistics import mean_interval
from reflectrl.runs.evaluation import attempt_of
from reflectrl.runs.folder import RunFolder
from reflectrl.runs.report.data import REFERENCES, Run, Score

CONFIDENCE = 0.95

Wins = Mapping[int, Mapping[tuple[str, int], bool]]
"""Success by seed, and by task and attempt."""
Rates = Mapping[tuple[str, int], float]
"""Success rate by task and attempt."""


@dataclass(frozen=True)
class Contestant:
    """Arm of a run."""

    run: str
    folder: Path
    arm: str

    @property
    def title(self) -> str:
        """Name in tables."""
        return f"{self.run} · {self.arm}"


@dataclass(frozen=True)
class Difference:
    """Difference of success between two arms, first minus second.

    Attributes:
        first, second: names of the arms.
        split, sampling: split and decoding of the episodes.
        mean: mean difference over tasks and seeds.
        low, high: its interval.
        tasks, seeds: number of tasks that both played, and of pairs of seeds.
    """

    first: str
    second: str
    split: str
    sampling: str
    mean: float
    low: float
    high: float
    tasks: int
    seeds: int

    @property
    def verdict(self) -> str:
        """Verdict in words."""
        if self.low <= 0 <= self.high:
            return "cannot be told apart"
        return f"{self.first if self.mean > 0 else self.second} is better"


def difference(first: Wins, second: Wins) -> tuple[float, float, float, int, int] | None:
    """Compute the mean difference of success, its interval, and the numbers of tasks and seeds.

    Seeds that both have are paired; if there are none, the means over each side's seeds are compared. Returns None if
    no task was played by both.
    """
    seeds = sorted(first.keys() & second.keys())
    pairs: list[tuple[Rates, Rates]]
    if seeds:
        pairs = [(first[seed], second[seed]) for seed in seeds]
    else:
        pairs = [(_mean_over_seeds(first), _mean_over_seeds(second))]
    by_task: dict[tuple[str, int], list[float]] = defaultdict(list)
    by_seed = []
    for first_rates, second_rates in pairs:
        common = first_rates.keys() & second_rates.keys()
        if common:
            by_seed.append(fmean(float(first_rates[key]) - float(second_rates[key]) for key in common))
        for key in common:
            by_task[key].append(float(first_rates[key]) - float(second_rates[key]))
    if not by_task:
        return None
    means = [fmean(values) for values in by_task.values()]
    low, high = over_tasks(means)
    over_seeds = mean_interval(by_seed, CONFIDENCE)
    if over_seeds is not None:
        low, high = min(low, over_seeds[0]), max(high, over_seeds[1])
    return fmean(by_seed), max(-1.0, low), min(1.0, high), len(means), len(by_seed)


def over_tasks(differences: Sequence[float]) -> tuple[float, float]:
    """Compute an interval of the mean of paired differences, each from -1 to 1.

    Two pseudo-tasks are added, half a task for each of the four outcomes of a pair, so that the interval keeps its
    width if all differences are equal (Agresti and Min 2005, for matched pairs). Student's t allows for few tasks.
    """
    from scipy.stats import t

    count = len(differences) + 2
    mean = sum(differences) / count
    variance = (sum(value**2 for value in differences) + 1) / count - mean**2
    half = t.ppf((1 + CONFIDENCE) / 2, max(1, len(differences) - 1)) * np.sqrt(variance / count)
    return float(mean - half), float(mean + half)


def _mean_over_seeds(wins: Wins) -> Mapping[tuple[str, int], float]:
    values: dict[tuple[str, int], list[float]] = defaultdict(list)
    for played in wins.values():
        for key, won in played.items():
            values[key].append(float(won))
    return {key: fmean(won) for key, won in values.items()}


# ---- of run folders --------------------------------------------------------------------------------------------------


def differences(runs: Sequence[Run], folders: Sequence[Path], called: Sequence[str]) -> list[Difference]:
    """Compare the learned arms of runs in pairs, on the last stage of each split.

    Arms of the same name are compared across runs, each with the first run that has it. Where two runs share no learned
    arm, their best ones are compared. Within a run, each learned arm is compared with random play.
    """
    gaps = []
    for split, sampling in _kinds(runs):
        arms = [_learned(run, split, sampling) for run in runs]
        contestants = [
            [Contestant(name, folder, arm) for arm in arms_of_run]
            for name, folder, arms_of_run in zip(called, folders, arms, strict=True)
        ]
        for first, second in _pairs(runs, contestants, split, sampling):
            stage = _last_stage(runs, split, sampling)
            result = difference(wins_of(first, split, stage, sampling), wins_of(second, split, stage, sampling))
            if result is not None:
                gaps.append(Difference(first.title, second.title, split, sampling, *result))
    return gaps


def wins_of(contestant: Contestant, split: str, stage: str, sampling: str) -> Wins:
    """Read the success of an arm's evaluation episodes; empty if there are none."""
    pattern = RunFolder(contestant.folder).evaluation(contestant.arm, 0, split, stage, sampling).name
    wins: dict[int, dict[tuple[str, int], bool]] = {}
    for path in sorted((contestant.folder / "episodes").glob(pattern.replace("-seed0-", "-seed*-"))):
        seed = path.name.removeprefix(f"eval-{contestant.arm}-seed").partition("-")[0]
        if seed.isdigit():
            counted = (episode for episode in read_episodes(path) if not is_unread(episode))
            wins[int(seed)] = {attempt_of(episode): episode.success for episode in counted}
    return wins


def _pairs(
    runs: Sequence[Run], everyone: Sequence[Sequence[Contestant]], split: str, sampling: str
) -> Iterator[tuple[Contestant, Contestant]]:
    """Yield the pairs of arms to compare."""
    first_with: dict[str, Contestant] = {}
    for index, (run, contestants) in enumerate(zip(runs, everyone, strict=True)):
        common = [contestant for contestant in contestants if contestant.arm in first_with]
        for contestant in common:
            yield contestant, first_with[contestant.arm]
        if index and not common and contestants and everyone[0]:
            yield _best(run, contestants, split, sampling), _best(runs[0], everyone[0], split, sampling)
        for contestant in contestants:
            first_with.setdefault(contestant.arm, contestant)
            if any(score.arm == "random" for score in _scores(run, split, sampling)):
                yield contestant, Contestant(contestant.run, contestant.folder, "random")


def _best(run: Run, own: Sequence[Contestant], split: str, sampling: str) -> Contestant:
    success = {score.arm: score.success for score in _scores(run, split, sampling)}
    return max(own, key=lambda contestant: success[contestant.arm])


def _kinds(runs: Sequence[Run]) -> list[tuple[str, str]]:
    scores = [score for run in runs if run.results for score in run.results.summary]
    return list(dict.fromkeys((score.split, score.sampling) for score in scores))


def _last_stage(runs: Sequence[Run], split: str, sampling: str) -> str:
    return next(stages[-1] for run in runs if (stages := [score.stage for score in _scores(run, split, sampling)]))


def _scores(run: Run, split: str, sampling: str) -> list[Score]:
    """Return the scores of a run for a split and sampling, on the last stage or an earlier one."""
    summary = run.results.summary if run.results else ()
    return [score for score in summary if (score.split, score.sampling) == (split, sampling)]


def _learned(run: Run, split: str, sampling: str) -> list[str]:
    return list(dict.fromkeys(s.arm for s in _scores(run, split, sampling) if s.arm not in REFERENCES))
