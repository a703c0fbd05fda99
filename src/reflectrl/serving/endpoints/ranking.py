"""Ranking of a group by a judge: texts, or episodes of the same task, meet in pairs, and each gets a standing.

A judge may prefer the text that it reads first, or second. So every pair is shown in both orders and averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

from reflectrl.core.prompts.messages import comparison
from reflectrl.core.types import Episode
from reflectrl.serving.endpoints.client import Ask, Endpoint
from reflectrl.serving.endpoints.local import LocalModel
from reflectrl.serving.endpoints.parsing import PREFERENCE, read_verdict


def standings(texts: Sequence[str], preference: Callable[[str, str], float]) -> Mapping[str, float]:
    """Return the score of each text in a tournament of different texts.

    Args:
        preference: degree to which the judge prefers the text shown first to the second, in [0, 1].

    Returns:
        By text, the mean over all others of (preference when shown first + 1 - the other's when shown first) / 2. A
        single text gets 0.5.
    """
    points = dict.fromkeys(texts, 0.0)
    for left, right in combinations(texts, 2):
        share = (preference(left, right) + 1 - preference(right, left)) / 2
        points[left] += share
        points[right] += 1 - share
    return {text: points[text] / (len(texts) - 1) if len(texts) > 1 else 0.5 for text in texts}


def both_ways(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return all pairs of different texts, in both orders."""
    pairs = []
    for first, second in combinations(texts, 2):
        pairs += [(first, second), (second, first)]
    return pairs


def rank_episodes(
    groups: Sequence[Sequence[Episode]], judge: Endpoint | LocalModel, longest: int, max_tokens: int
) -> list[list[float]]:
    """Return the standing of each episode in its group, in [0, 1]: 1 beats all others, 0.5 is a tie or the only
    episode.

    Episodes with the same observations and actions count as one. An answer that names neither episode is a tie. All
    pairs of all groups are asked about side by side.

    Args:
        groups: groups of episodes, each of the same task.
        longest: largest number of characters of an episode that the judge reads: its beginning and its end.
        max_tokens: longest answer.
    """
    transcripts, distinct = [], []
    for group in groups:
        transcripts.append([transcript(episode, longest) for episode in group])
        distinct.append(list(dict.fromkeys(transcripts[-1])))
    # Two groups of one task may hold the same pair, and the judge is asked about it once.
    pairs = list(dict.fromkeys(pair for texts in distinct for pair in both_ways(texts)))
    answers = judge.complete_all([Ask(comparison(*pair), max_tokens) for pair in pairs])
    preferred = {pair: PREFERENCE[read_verdict(answer)] for pair, answer in zip(pairs, answers, strict=True)}
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
