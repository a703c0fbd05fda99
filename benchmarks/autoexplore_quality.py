"""Share of questions with the right file found: AutoExplore's players beside search and chance on the same questions.

    python -m benchmarks.autoexplore_quality RUN ... [--library DIR] [--json]

Reads the evaluation episodes of run folders. Prints a row per arm, seeds pooled, for every split, source of questions
("dominant" ones also by themselves) and depth of the file:

success     a right file was identified within the horizon
acc@k       a right file is among the first k of the ranking: the identified file, then those that could have been
            identified in the last step, by the policy's own probability of that, then the others in the order of search
MRR         mean of 1 / rank of the first right file
steps       per question
tokens      of the command outputs that the player was shown, per question. Words, numbers and other single characters
            count as one token each. The paper's listings are state, not output, and are not counted.
seconds     per question in evaluation (`timings.jsonl`; many episodes in lock-step), for a whole split only

Intervals are Wilson's with one seed and two-stage bootstraps (seeds, then questions) with several; those of MRR are
always bootstraps. A second table has the differences to each search, question by question, with two-stage bootstraps.
An interval without 0 shows a difference on these questions. "a file at random" is computed, not played.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.intervals import cluster_bootstrap
from reflectrl.core.statistics import wilson
from reflectrl.core.types import UserError, named_seed

from .autoexplore_answers import CHANCE, SEARCHES, Answer, Timing, by_search, figures, named

CONFIDENCE = 0.95
RATES = ("success", "acc@1", "acc@5")
Row = dict[str, Any]
BySeed = dict[int, list[Answer]]


def answers_of(folders: Sequence[Path], library: str = "") -> tuple[list[Answer], list[Timing]]:
    """Return all answers of the runs' arms, of search and of chance; the expert plays where no run has its episodes."""
    runs = named(folders, library)
    answers = [answer for run in runs for answer in run.answers()]
    if not answers:
        raise UserError(f"{', '.join(map(str, folders))}: no evaluation episodes there (run the recipe until eval)")
    for run in runs:
        played = [answer.asked for answer in answers if answer.arm.startswith(run.prefix)]
        if not any(answer.arm == f"{run.prefix}expert" for answer in answers):
            answers += run.expert(played)
    for library_of in {id(run.library): run.library for run in runs}.values():
        mine = [run.prefix for run in runs if run.library is library_of]
        questions = {answer.asked: None for answer in answers if any(map(answer.arm.startswith, mine))}
        answers += by_search(library_of, questions)
    return answers, [timing for run in runs for timing in run.timings()]


def rows(answers: Sequence[Answer], timings: Sequence[Timing]) -> list[Row]:
    """Return one row per split, group of questions, sampling and arm."""
    return [
        {"split": split, "questions": group, "arm": arm, "sampling": sampling}
        | _row(by_seed)
        | {"seconds": _seconds(timings, arm, split, sampling) if group == "all" else None}
        for (split, group, arm, sampling), by_seed in _sorted(answers).items()
    ]


def differences(answers: Sequence[Answer]) -> list[Row]:
    """Return one row per split, group, arm and search: the arm's lead over the search on the same questions."""
    table = _sorted(answers)
    return [
        {"split": split, "questions": group, "arm": arm, "sampling": sampling, "minus": search}
        | _difference(by_seed, table[split, group, search, "greedy"][0])
        for (split, group, arm, sampling), by_seed in table.items()
        if arm not in (*SEARCHES, CHANCE)
        for search in SEARCHES
    ]


def _sorted(answers: Iterable[Answer]) -> dict[tuple[str, str, str, str], BySeed]:
    """Sort answers as (split, group, arm, sampling) → seed → answers; in a split by source, then depth, then "all"."""
    grouped: dict[tuple[str, str, str, str], BySeed] = defaultdict(lambda: defaultdict(list))
    for answer in answers:
        for group in answer.asked.groups:
            grouped[answer.asked.split, group, answer.arm, answer.sampling][answer.seed].append(answer)

    def sort_key(key: tuple[str, str, str, str]) -> tuple[str, int, str]:
        split, group, _, _ = key
        return split, (group == "all") * 2 + (group.startswith("dep") or group == "deeper"), group

    return {key: grouped[key] for key in sorted(grouped, key=sort_key)}


def _row(by_seed: BySeed) -> Row:
    row: Row = {"seeds": len(by_seed), "n": len({answer.asked for each in by_seed.values() for answer in each})}
    for name in (*RATES, "MRR"):
        seeds = _values(by_seed, name)
        row[name] = None if seeds is None else _mean(seeds)
        row[f"{name} 95 %"] = None if seeds is None else _interval(name, seeds)
    for name in ("steps", "tokens"):
        seeds = _values(by_seed, name)
        row[name] = None if seeds is None else round(_mean(seeds), 2)
    return row


def _values(by_seed: BySeed, name: str) -> list[list[float]] | None:
    """Return a figure seed by seed; None if the arm does not have it."""
    seeds = [[figures(answer)[name] for answer in each] for each in by_seed.values()]
    return None if any(value is None for each in seeds for value in each) else [[float(v) for v in s] for s in seeds]


def _mean(seeds: Sequence[Sequence[float]]) -> float:
    return round(float(np.concatenate([np.asarray(each) for each in seeds]).mean()), 4)


def _interval(name: str, seeds: list[list[float]]) -> str:
    values = {value for each in seeds for value in each}
    rng = np.random.default_rng(named_seed("autoexplore_quality", name))
    if name not in RATES:
        return _shown(bootstrap(seeds, rng))
    if not values <= {0.0, 1.0}:  # expectations, not outcomes
        return ""
    if len(seeds) == 1:
        return _shown(wilson(int(sum(seeds[0])), len(seeds[0]), CONFIDENCE))
    return _shown(cluster_bootstrap([[value > 0 for value in each] for each in seeds], CONFIDENCE, rng))


def _difference(by_seed: BySeed, others: Sequence[Answer]) -> Row:
    """Return means and intervals of the differences, by figure."""
    search = {answer.asked: figures(answer) for answer in others}
    row: Row = {"n": len({answer.asked for each in by_seed.values() for answer in each})}
    for name in ("acc@1", "acc@5", "MRR"):
        seeds = [
            [float(figures(answer)[name]) - float(search[answer.asked][name]) for answer in each]
            for each in by_seed.values()
        ]
        rng = np.random.default_rng(named_seed("autoexplore_quality", "difference", name))
        row |= {name: _mean(seeds), f"{name} 95 %": _shown(bootstrap(seeds, rng))}
    return row


def bootstrap(
    seeds: Sequence[Sequence[float]], rng: np.random.Generator, resamples: int = 10_000
) -> tuple[float, float]:
    """Return a two-stage bootstrap interval, as `mean_bootstrap` of the text wing. It is fast for data with few
    distinct values, such as ranks: instead of drawing each question, it draws how often each value occurs
    (multinomial).
    """
    totals_R, sizes_R = np.zeros(resamples), np.zeros(resamples)
    tables = [np.unique(each, return_counts=True) for each in seeds]
    for _ in seeds:
        chosen_R = rng.integers(len(seeds), size=resamples)
        for seed, (values_V, counts_V) in enumerate(tables):
            mine_R, size = chosen_R == seed, counts_V.sum()
            drawn_RV = rng.multinomial(size, counts_V / size, size=int(mine_R.sum()))
            totals_R[mine_R] += drawn_RV @ values_V
            sizes_R[mine_R] += size
    low, high = np.quantile(totals_R / sizes_R, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _shown(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.3f} to {interval[1]:.3f}"


def _seconds(timings: Iterable[Timing], arm: str, split: str, sampling: str) -> float | None:
    mine = [timing for timing in timings if (timing.arm, timing.split, timing.sampling) == (arm, split, sampling)]
    episodes = sum(timing.episodes for timing in mine)
    return round(sum(timing.seconds * timing.episodes for timing in mine) / episodes, 4) if episodes else None


def main(words: Sequence[str] | None = None) -> None:
    """Read the runs, and print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders on autoexplore")
    parser.add_argument("--library", default="", metavar="DIR", help="the library, where it is not the recipe's")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    args = parser.parse_args(words)
    try:
        answers, timings = answers_of(args.runs, args.library)
    except UserError as error:
        sys.exit(f"autoexplore_quality: {error}")
    arm_rows, ahead = rows(answers, timings), differences(answers)
    if args.json:
        print(json.dumps({"rows": arm_rows, "differences": ahead}, indent=1))
        return
    from .measure import report

    print(report(arm_rows, False))
    print("Arm minus search, question by question:")
    print(report(ahead, False), end="")


if __name__ == "__main__":
    main()
