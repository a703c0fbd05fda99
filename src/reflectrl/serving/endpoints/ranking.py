"""Ranking of a group by a judge: texts, or episodes of the same task, meet in pairs, and each gets a standing.

A judge may prefer the text that it reads first, or second. So every pair is shown in both orders and averaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

from reflectrl.core.prompts.messages import comparison
from reflectrl.core.types import Episode, UserError
from reflectrl.serving.endpoints.client import Ask, Endpoint
from reflectrl.serving.endpoints.local import LocalModel
from reflectrl.serving.endpoints.parsing import PREFERENCE, read_verdict

ENOUGH_VERDICTS = 8
"""Number of verdicts from which a judge is given up if most of them cannot be read."""
VERDICTS, UNREAD = "verdicts", "unread_verdicts"
"""Names of the numbers of a judge's verdicts so far, and of those among them that cannot be read."""


def require_readable(counts: Mapping[str, int], remedy: str) -> None:
    """Raise UserError if most of a judge's verdicts cannot be read, so that its ranking would be chance.

    Args:
        counts: numbers of verdicts, by `VERDICTS` and `UNREAD`.
        remedy: advice that ends the message.
    """
    asked, unread = counts.get(VERDICTS, 0), counts.get(UNREAD, 0)
    if asked >= ENOUGH_VERDICTS and 2 * unread > asked:
        raise UserError(
            f"judge: {unread} of {asked} verdicts cannot be read as A, B or TIE; {remedy}; answers are kept"
        )


def standings(texts: Sequence[str], preference: Callable[[str, str], float | None]) -> Mapping[str, float]:
    """Return the score of each text in a tournament of different texts.

    Args:
        preference: degree to which the judge prefers the text shown first to the second, in [0, 1]; None if its
            verdict cannot be read.

    Returns:
        By text, the mean over all others of (preference when shown first + 1 - the other's when shown first) / 2. If
        only one of the two verdicts can be read, it counts alone; if neither can, the pair is left out. A text without
        any comparison gets 0.5.
    """
    points, compared = dict.fromkeys(texts, 0.0), dict.fromkeys(texts, 0)
    for left, right in combinations(texts, 2):
        as_first, as_second = preference(left, right), preference(right, left)
        readable = [] if as_first is None else [as_first]
        readable += [] if as_second is None else [1 - as_second]
        if readable:
            share = sum(readable) / len(readable)
            points[left] += share
            points[right] += 1 - share
            compared[left], compared[right] = compared[left] + 1, compared[right] + 1
    return {text: points[text] / compared[text] if compared[text] else 0.5 for text in texts}


def both_ways(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return all pairs of different texts, in both orders."""
    pairs = []
    for first, second in combinations(texts, 2):
        pairs += [(first, second), (second, first)]
    return pairs


def rank_episodes(
    groups: Sequence[Sequence[Episode]],
    judge: Endpoint | LocalModel,
    longest: int,
    max_tokens: int,
    counts: Counter[str] | None = None,
) -> list[list[float]]:
    """Return the standing of each episode in its group, in [0, 1]: 1 beats all others, 0.5 is a tie or the only
    episode.

    Episodes with the same observations and actions count as one. An answer that names neither episode is left out. All
    pairs of all groups are asked about side by side.

    Args:
        groups: groups of episodes, each of the same task.
        longest: largest number of characters of an episode that the judge reads: its beginning and its end.
        max_tokens: longest answer.
        counts: numbers of verdicts and of unreadable ones, to which the new ones are added.
    """
    transcripts, distinct = [], []
    for group in groups:
        transcripts.append([transcript(episode, longest) for episode in group])
        distinct.append(list(dict.fromkeys(transcripts[-1])))
    # Two groups of one task may hold the same pair, and the judge is asked about it once.
    pairs = list(dict.fromkeys(pair for texts in distinct for pair in both_ways(texts)))
    answers = judge.complete_all([Ask(comparison(*pair), max_tokens) for pair in pairs])
    preferred = {}
    for pair, answer in zip(pairs, answers, strict=True):
        preferred[pair] = PREFERENCE[read_verdict(answer, cut=answer.ending == "cut")]
    if counts is not None:
        counts[VERDICTS] += len(pairs)
        counts[UNREAD] += sum(preference is None for preference in preferred.values())
    ranks = []
    for texts, different in zip(transcripts, distinct, strict=True):
        standing = standings(different, lambda *pair: preferred[pair])
        ranks.append([standing[text] for text in texts])
    return ranks


def transcript(episode: Episode, longest: int) -> str:
    """Describe the observations, actions and end of an episode. A long description is cut in the middle."""
    lines = [episode.steps[0].observation.history] if episode.steps else []
    for step in episode.steps:
        lines.append(f"{step.observation.state.rstrip()}\n> {step.observation.actions[step.action]}\n")
    text, ended = "".join(lines), "reached" if episode.success else "not reached"
    if len(text) > longest:
        text = f"{text[: longest // 2]}\n[...]\n{text[-longest // 2 :]}"
    return f"{text}(The goal was {ended}.)"
