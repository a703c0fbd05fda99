"""Results of evaluation episodes, with confidence intervals.

A row belongs to one arm, split, stage, sampling and seed. Its interval is Wilson's, over its episodes. A summary pools
the seeds: its success is the mean over seeds, and its interval spans both Student's t over the seeds' success rates and
Wilson's over all episodes. So it hides neither the spread between trainings nor the spread between episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import comb
from typing import Any

from reflectrl.core.envs.base import TextEnv
from reflectrl.core.statistics import mean_interval, wilson
from reflectrl.core.types import Episode

Row = dict[str, Any]
KEYS = ("arm", "env", "split", "stage", "sampling")
Attempt = tuple[str, bool]
"""Answer of an attempt at a task, and whether it won."""
ATTEMPTS = ("pass@", "maj@")
"""Beginnings of the names of shares that only several attempts at a task have."""


def rows_of(episodes: Sequence[Episode], env: TextEnv, confidence: float) -> list[Row]:
    """Compute the result rows of episodes that share arm, split, stage, sampling and seed.

    Episodes that a model's server has cut short may be left out (`Turn.ended` is "unread"); rows name their share.

    There is a row for the stage of the episodes. If that is the environment's last stage, there is also a row for each
    milestone, whose success means that its event happened, and for each group of tasks that the environment names.
    Intervals count a task once, however often it was attempted, and also tasks that the environment counts as one.
    Without episodes there are no rows.
    """
    everything = episodes
    episodes = [episode for episode in everything if not is_unread(episode)]
    if not episodes:
        return []
    first = episodes[0]
    shared = {**first.provenance, "env": first.task.env, "split": first.task.split}
    stage = first.task.stage
    wins = {stage: [episode.success for episode in episodes]}
    if stage == env.stages[-1]:
        for event, milestone in env.milestones.items():
            wins[milestone] = [event in episode.events for episode in episodes]
    ordered = sorted(wins, key=lambda name: env.stages.index(name) if name in env.stages else -1)
    rows = [_row(shared, name, wins[name], episodes, env, confidence) for name in ordered]
    groups: dict[str, list[Episode]] = {}
    for episode in episodes if stage == env.stages[-1] else ():
        if (name := env.group(episode.task)) is not None:
            groups.setdefault(name, []).append(episode)
    for name, group in groups.items():
        rows.insert(-1, _row(shared, name, [episode.success for episode in group], group, env, confidence))
    if unread := len(everything) - len(episodes):
        for row in rows:
            row["unread"] = unread / len(everything)
    return rows


def is_unread(episode: Episode) -> bool:
    """Return whether an episode is to be left out of results, since a model's server has refused its question."""
    return bool(episode.steps) and any(turn.ended == "unread" for turn in episode.steps[-1].turns)


def _row(
    shared: Mapping[str, Any],
    stage: str,
    won: list[bool],
    episodes: Sequence[Episode],
    env: TextEnv,
    confidence: float,
) -> Row:
    tasks: dict[str, list[Attempt]] = {}
    for episode, win in zip(episodes, won, strict=True):
        tasks.setdefault(episode.task.id, []).append((answer_of(episode), win))
    independent = len({env.counted_as(episode.task) for episode in episodes})
    share = independent / max(1, len(won))  # neither attempts at a task are independent, nor tasks counted as one
    low, high = wilson(round(sum(won) * share), round(len(won) * share), confidence)
    return {
        **{key: shared[key] for key in ("arm", "env", "split")},
        "stage": stage,
        "sampling": shared["sampling"],
        "seed": shared["seed"],
        "episodes": len(won),
        "success": sum(won) / len(won),
        "low": low,
        "high": high,
        "return": _mean(episode.total_reward for episode in episodes),
        "steps": _mean(len(episode.steps) for episode in episodes),
        "steps_to_success": _mean(len(episode.steps) for episode, w in zip(episodes, won, strict=True) if w),
        **({"tasks": independent} if independent < len(won) else {}),
        **_attempts(list(tasks.values())),
        **_incomplete(episodes),
        **_penalised([episode for episode, win in zip(episodes, won, strict=True) if win], len(won)),
    }


def _attempts(tasks: Sequence[Sequence[Attempt]]) -> dict[str, float]:
    """Compute pass@k and maj@k for k = 2, 4, ... up to all attempts. Empty if each task was played once."""
    most_attempts = min(map(len, tasks), default=1)
    if most_attempts < 2:
        return {}
    return rates_at(attempt_counts(most_attempts)[1:], tasks)  # pass@1 is the success


def attempt_counts(most: int) -> list[int]:
    """Return the numbers of attempts k for which results are given: 1, 2, 4, ... and `most` itself."""
    return sorted({2**i for i in range(most.bit_length())} | {most})


def rates_at(counts: Iterable[int], tasks: Sequence[Sequence[Attempt]]) -> dict[str, float]:
    """Compute pass@k, then maj@k, for each k, averaged over tasks.

    Args:
        counts: values of k. No task may have fewer attempts.
    """
    rates: dict[str, float] = {}
    listed = list(counts)
    for k in listed:
        rates[f"pass@{k}"] = _mean(pass_at(k, len(attempts), wins_of(attempts)) for attempts in tasks) or 0.0
    for k in listed:
        rates[f"maj@{k}"] = _mean(majority_at(k, attempts) for attempts in tasks) or 0.0
    return rates


def wins_of(attempts: Sequence[Attempt]) -> int:
    """Count the attempts that won."""
    return sum(won for _, won in attempts)


def answer_of(episode: Episode) -> str:
    """Return what an episode answers: the texts of its actions, in order."""
    return "\n".join(step.observation.actions[step.action] for step in episode.steps)


def majority_at(k: int, attempts: Sequence[Attempt]) -> float:
    """Estimate the probability that the most frequent answer among k attempts wins.

    The attempts are divided in order into groups of k; what is left over is not counted. Among answers that are equally
    frequent, one is drawn. In an environment with chance, an answer wins as often as its attempts in the group.
    """
    shares = []
    for start in range(0, len(attempts) - k + 1, k):
        wins: dict[str, list[bool]] = {}
        for answer, won in attempts[start : start + k]:
            wins.setdefault(answer, []).append(won)
        votes = max(map(len, wins.values()))
        first = [sum(won) / votes for won in wins.values() if len(won) == votes]
        shares.append(sum(first) / len(first))
    return sum(shares) / len(shares)


def pass_at(k: int, attempts: int, wins: int) -> float:
    """Estimate without bias the probability that at least one of k attempts wins (Chen et al. 2021, section 2.1).

    The estimate is 1 - C(attempts - wins, k) / C(attempts, k).
    """
    return 1.0 - comb(attempts - wins, k) / comb(attempts, k)


INCOMPLETE = ("illegal", "cut", "filtered", "declined", "refused")
"""Keys of a row about the answers of models behind endpoints. A row leaves out those that are zero."""


def _incomplete(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the shares of steps whose answer was illegal or not complete, and of episodes with a refused question.

    An answer is illegal if it is complete but names no legal action, so that a random one was taken.
    """
    steps = [step for episode in episodes for step in episode.steps]
    counts = dict.fromkeys(INCOMPLETE, 0)
    for step in steps:
        counts["illegal"] += step.choice is not None and step.choice.player == "illegal"
        for ending in {turn.ended for turn in step.turns} & {"cut", "filtered", "declined"}:
            counts[ending] += 1
    shares = {name: count / len(steps) for name, count in counts.items() if count}
    refused = 0
    for episode in episodes:
        refused += any(turn.ended == "refused" for step in episode.steps for turn in step.turns)
    return {**shares, "refused": refused / len(episodes)} if refused else shares


def _penalised(wins: Sequence[Episode], episodes: int) -> dict[str, float]:
    """Return the share of episodes that count as won although their end was penalised. Empty if zero."""
    count = sum(map(is_penalised, wins))
    return {"penalised": count / episodes} if count else {}


def is_penalised(episode: Episode) -> bool:
    """Tell whether the last step of an episode cost something, and more than some other step of it."""
    if not episode.steps:
        return False
    *others, last = [step.reward for step in episode.steps]
    return last < min(0.0, max(others, default=0.0))


def summarise(rows: Iterable[Row], confidence: float) -> list[Row]:
    """Pool rows over their seeds: one row per arm, environment, split, stage and sampling."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in KEYS), []).append(row)
    return [_pooled(key, group, confidence) for key, group in groups.items()]


def _pooled(key: tuple[Any, ...], group: list[Row], confidence: float) -> Row:
    episodes = sum(row["episodes"] for row in group)
    tasks = [int(row.get("tasks") or row["episodes"]) for row in group]  # what intervals may count as independent
    won = round(sum(row["success"] * count for row, count in zip(group, tasks, strict=True)))
    low, high = wilson(won, sum(tasks), confidence)
    over_seeds = mean_interval([row["success"] for row in group], confidence)
    if over_seeds is not None:
        low, high = max(0.0, min(low, over_seeds[0])), min(1.0, max(high, over_seeds[1]))
    means: Row = {}
    for name in ("success", "return", "steps", "steps_to_success"):
        means[name] = _mean(row[name] for row in group if row[name] is not None)
    pooled = {**dict(zip(KEYS, key, strict=True)), "seeds": len(group), "episodes": episodes}
    more = [name for name in group[0] if name.startswith(ATTEMPTS)]
    for name in (*INCOMPLETE, "penalised", "unread", "ece", "brier"):
        if any(name in row for row in group):
            more.append(name)
    for name in more:
        # A row without such steps or ends leaves them out; a row without calibration was not measured.
        counted = group if name in (*INCOMPLETE, "penalised", "unread") else [row for row in group if name in row]
        means[name] = _mean(row.get(name, 0.0) for row in counted)
    return {**pooled, "success": means["success"], "low": low, "high": high, **means}


def _mean(values: Iterable[float]) -> float | None:
    """Return the mean, or None without values. (An arm that never wins has no steps to success.)"""
    listed = list(values)
    return sum(listed) / len(listed) if listed else None
