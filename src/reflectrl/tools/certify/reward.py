"""Check of the reward: is winning what pays, or can a player earn as much by idling, looping and repeating?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from reflectrl.core.envs.base import TextEnv
from reflectrl.core.types import Episode
from reflectrl.learn.reward_check import Signal
from reflectrl.tools.certify.budget import now
from reflectrl.tools.certify.degenerate import Play, best_loop
from reflectrl.tools.certify.graph import StateGraph
from reflectrl.tools.certify.verdict import Finding
from reflectrl.tools.certify.wins import Win

LOOP_SHARE, PLAYER_SHARE = 0.5, 0.9
"""Shares of a win's return that make a fault: for a loop that pays for ever, and for a player that reads nothing."""
LASTS = 0.9
"""Share of the horizon. If a shortest win takes that long, surviving is the task, and a reward per step is no fault."""
MOST_EPISODES = 40
"""Number of rewarded episodes whose stretches are repeated."""
MOST_CELLS = 1_500_000
"""Largest number of effects times steps for which the best play of a graph is computed."""


def check_reward(
    env: TextEnv,
    wins: Sequence[Win],
    graphs: Sequence[StateGraph],
    plays: Mapping[str, Sequence[Play]],
    episodes: Sequence[Episode],
    signal: Signal,
    deadline: float,
) -> Finding:
    """Compare the return of wins with the return of play that does not win.

    Args:
        env: environment of this process.
        wins: known wins of some tasks.
        graphs: explored graphs of some tasks; none where luck decides.
        plays: results of players that read nothing.
        episodes: random play.
        deadline: time on the clock of `budget` at which to end.
    """
    lost = [episode.total_reward for episode in episodes if not episode.success]
    figures = {"loss_by_chance": round(fmean(lost), 4)} if lost else {}
    if not wins:
        if signal.unmarked:
            words = (
                f"{signal.unmarked} episodes of random play ended with a reward above 0, but none counts as a success"
            )
            return Finding("reward", "fault", words, figures)
        if signal.problem:
            return Finding("reward", "fault", f"reward says nothing: {signal.problem}", figures)
        return Finding("reward", "unknown", "no win is known to compare with", figures)
    earned = fmean(win.earned for win in wins)
    figures["win"] = round(earned, 4)
    if signal.problem and signal.won:
        return Finding("reward", "fault", f"reward says nothing: {signal.problem}", figures)
    if lost and earned <= fmean(lost) + 1e-9:
        words = f"a win earns {earned:g}, no more than random play that does not win ({fmean(lost):g})"
        return Finding("reward", "fault", words, figures)
    problem = (
        _players(plays, earned, figures)
        or _graphs(graphs, env.horizon, deadline)
        or _loops(env, episodes, wins, deadline, figures)
    )
    if problem:
        return Finding("reward", "fault", problem, figures)
    words = f"a win earns {earned:g}"
    words += f", random play that does not win {fmean(lost):g}" if lost else ""
    if "best_player" in figures:
        words += f"; of {len(plays)} players that read nothing the best earns {figures['best_player']:g}"
    return Finding("reward", "ok", words, figures)


def _players(plays: Mapping[str, Sequence[Play]], earned: float, figures: dict[str, float]) -> str:
    """Compare with players that read nothing, in their episodes without success."""
    problem = ""
    best = -math.inf
    for name, results in plays.items():
        lost = [play.earned for play in results if not play.success]
        if len(lost) < max(1, len(results) // 2):
            continue  # it wins, which `check_headroom` judges
        mean = fmean(lost)
        if mean > best:
            best = mean
            figures["best_player"] = round(mean, 4)
            if mean >= (PLAYER_SHARE * earned if earned > 0 else earned):
                problem = f"{name} earns {mean:g} without winning, a win {earned:g}"
    return problem


def _graphs(graphs: Sequence[StateGraph], horizon: int, deadline: float) -> str:
    """Compute the best play without a win, and look for loops that pay for ever."""
    better, looping, compared = 0, 0, 0
    example = (0.0, 0.0)
    for graph in graphs:
        size = sum(len(state.edges) for state in graph.states) * horizon
        if size > MOST_CELLS or now() > deadline or (win := graph.shortest_win()) is None:
            continue
        compared += 1
        without = graph.best_without_win(horizon)
        best = graph.best_win(horizon)
        grows = graph.best_without_win(2 * horizon) > without + 1e-9
        is_better = without >= best - 1e-9
        is_loop = grows and len(win[0]) < LASTS * horizon and win[1] > 0 and without >= LOOP_SHARE * win[1]
        better, looping = better + is_better, looping + is_loop
        if is_better or is_loop:
            example = without, best if is_better else win[1]
    if compared and 2 * better >= compared:
        return f"never winning can earn {example[0]:g}, the best win {example[1]:g} ({better} of {compared} tasks)"
    if compared and 2 * looping >= compared:
        return (
            f"a loop pays for ever: {example[0]:g} in {horizon} steps without a win; a win pays {example[1]:g}"
            f" ({looping} of {compared} tasks)"
        )
    return ""


def _loops(
    env: TextEnv, episodes: Sequence[Episode], wins: Sequence[Win], deadline: float, figures: dict[str, float]
) -> str:
    """Repeat the stretches that led to a reward in random play and on the way to wins."""
    earned = fmean(win.earned for win in wins)
    if earned <= 0 or fmean(len(win.actions) for win in wins) >= LASTS * env.horizon:
        return ""
    rewarded = [episode for episode in episodes if any(step.reward > 0 for step in episode.steps[:-1])]
    rewarded = [win.episode for win in wins] + rewarded[:MOST_EPISODES]
    best, words, tried = -math.inf, "", 0
    for episode in rewarded:
        result = best_loop(env, episode, deadline)
        tried += result is not None
        if result is not None and result[0].earned > best:
            best, words = result[0].earned, result[1]
    if not words:
        return ""
    figures["best_loop"] = round(best, 4)
    if best >= PLAYER_SHARE * earned:
        return f"repeating {words} earns {best:g} without winning, a win {earned:g}"
    return ""
