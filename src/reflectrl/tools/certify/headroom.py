"""Check of headroom: tasks can be won, but neither by chance nor by a player that reads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from reflectrl.core.statistics import wilson
from reflectrl.core.types import Episode
from reflectrl.tools.certify.degenerate import Play
from reflectrl.tools.certify.graph import StateGraph
from reflectrl.tools.certify.verdict import Finding
from reflectrl.tools.certify.wins import Win

CONFIDENCE = 0.95
NO_HEADROOM = 0.8
"""Success rate, relative to the best known player, at which chance or a player that reads nothing is too good."""
LEAST_SHARE = 0.1
"""Share of the tasks that must be impossible before it counts as a fault."""


def check_headroom(
    episodes: Sequence[Episode],
    expert: Sequence[Episode],
    wins: Sequence[Win],
    searched: int,
    graphs: Sequence[StateGraph],
    plays: Mapping[str, Sequence[Play]],
    luck: bool,
) -> Finding:
    """Compare chance and players that read nothing with the best known player.

    Args:
        episodes: random play.
        expert: play by the teacher's expert; empty if there is none.
        wins, searched: known wins, and the number of tasks in which they were looked for.
        graphs: explored graphs of some tasks; none where luck decides.
        plays: results of players that read nothing.
        luck: True if the environment's own randomness changes the effects of actions.
    """
    figures: dict[str, object] = {"random": share([episode.success for episode in episodes])}
    figures["random_return"] = round(fmean(episode.total_reward for episode in episodes), 4)
    if expert:
        figures["expert"] = share([episode.success for episode in expert])
    figures["won_in_hindsight"] = [len(wins), searched]
    best = fmean(episode.success for episode in expert) if expert else len(wins) / max(1, searched)
    if luck and not expert:
        best = 1.0
    constant, name = max(((fmean(p.success for p in results), n) for n, results in plays.items()), default=(0.0, ""))
    figures["reads_nothing"] = [name, round(constant, 4)]
    chance = fmean(episode.success for episode in episodes)
    impossible = [graph for graph in graphs if graph.is_complete and graph.distances()[0] == float("inf")]
    words = f"random play wins {percent(figures['random'])}"
    words += f", the expert {percent(figures['expert'])}" if expert else ""
    words += f"; a win was found in {len(wins)} of {searched} tasks"
    words += f"; {name} wins {constant:.0%}" if constant else ""
    if len(impossible) > LEAST_SHARE * max(1, len(graphs)):
        about = f"{len(impossible)} of {len(graphs)} tasks cannot be won: everything was tried within the horizon"
        return Finding("headroom", "fault", about, figures)
    if not wins and not chance and not any(episode.success for episode in expert):
        about = f"no win was found by chance or by a search in {searched} tasks"
        return Finding("headroom", "fault", f"{about}: nothing shows that a task can be won", figures)
    if best and chance >= NO_HEADROOM * best:
        return Finding("headroom", "fault", f"{words}: chance is as good as skill", figures)
    if best and constant >= NO_HEADROOM * best:
        about = f"{name} wins {constant:.0%}: nothing has to be read"
        return Finding("headroom", "fault", about, figures)
    return Finding("headroom", "ok", words, figures)


def share(won: Sequence[bool]) -> list[float]:
    """Return a success rate and its interval."""
    low, high = wilson(sum(won), len(won), CONFIDENCE)
    return [round(sum(won) / max(1, len(won)), 4), round(low, 4), round(high, 4)]


def percent(rate: object) -> str:
    """Return a rate with its interval in words."""
    assert isinstance(rate, list)
    return f"{rate[0]:.0%} [{100 * rate[1]:.0f}, {100 * rate[2]:.0f}]"
