"""The evaluation episodes on the page: a small, balanced sample, as plain JSON values for the viewer."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectrl.core.episodes import read_episodes
from reflectrl.core.types import Episode, Step, named_seed
from reflectrl.runs.report.data import in_page_order

PER_OUTCOME = 8
"""Largest number of successes per arm on the page, and of failures."""


@dataclass(frozen=True)
class Sample:
    """The episodes for the viewer, and the number of episodes they were drawn from."""

    episodes: tuple[Episode, ...]
    total: int


def sample_run(folder: Path, per_outcome: int = PER_OUTCOME) -> Sample:
    """Return a balanced sample of the evaluation episodes (`eval-*.jsonl`) in a folder of episodes.

    Raises:
        UserError: a file contains something that is not an episode.
    """
    files = sorted(folder.glob("eval-*.jsonl"))
    return sample((episode for path in files for episode in read_episodes(path)), per_outcome)


def sample(episodes: Iterable[Episode], per_outcome: int = PER_OUTCOME) -> Sample:
    """Return at most `per_outcome` successes and failures of each arm, spread over its seeds, splits and samplings.

    Tasks are preferred in a fixed, arbitrary order, so that different arms tend to show the same tasks.
    """
    cells: dict[tuple[str, bool], dict[str, list[Episode]]] = defaultdict(dict)
    total = 0
    for episode in episodes:
        total += 1
        arm, seed, split, sampling = _who(episode)
        cell = cells[arm, episode.success].setdefault(f"{split} {sampling} {seed}", [])
        cell.append(episode)
        if len(cell) > per_outcome:  # never more in memory than may be shown
            cell.sort(key=_preference)
            cell.pop()
    episodes_shown: list[Episode] = []
    for arm in in_page_order([arm for arm, _ in cells]):
        for success in (True, False):
            lists = [sorted(cell, key=_preference) for _, cell in sorted(cells[arm, success].items())]
            in_turn = (episode for row in itertools.zip_longest(*lists) for episode in row if episode is not None)
            episodes_shown += itertools.islice(in_turn, per_outcome)
    return Sample(tuple(episodes_shown), total)


def _who(episode: Episode) -> tuple[str, int, str, str]:
    provenance = episode.provenance
    seed = int(provenance.get("seed", episode.seed))
    return (
        str(provenance.get("arm", "?")),
        seed,
        str(provenance.get("split", episode.task.split)),
        str(provenance.get("sampling", "")),
    )


def _preference(episode: Episode) -> int:
    return named_seed("report", episode.task.id)


def to_json(episodes: Iterable[Episode]) -> dict[str, Any]:
    """Return the episodes in the form that the page's script reads.

    Lists of legal actions repeat, so each distinct list is written once, under "actions", and steps refer to it by
    index. A history only grows, so an episode holds the final one, and each step how long it was at that time.
    """
    menus: dict[tuple[str, ...], int] = {}
    plain = [_plain_episode(episode, menus) for episode in episodes]
    return {"actions": [list(menu) for menu in menus], "episodes": plain}


def _plain_episode(episode: Episode, menus: dict[tuple[str, ...], int]) -> dict[str, Any]:
    arm, seed, split, sampling = _who(episode)
    return {
        "arm": arm,
        "seed": seed,
        "split": split,
        "sampling": sampling,
        "task": episode.task.id,
        "stage": episode.task.stage,
        "success": episode.success,
        "truncated": episode.truncated,
        "return": _finite(episode.total_reward),
        "history": episode.steps[-1].observation.history if episode.steps else "",
        "steps": [_plain_step(step, menus) for step in episode.steps],
    }


def _plain_step(step: Step, menus: dict[tuple[str, ...], int]) -> dict[str, Any]:
    choice = step.choice
    return {
        "state": step.observation.state,
        # Scripts count in UTF-16 units, Python in characters.
        "history": len(step.observation.history.encode("utf-16-le", "surrogatepass")) // 2,
        "actions": menus.setdefault(step.observation.actions, len(menus)),
        "action": step.action,
        "player": choice.player if choice else "",
        "order": list(choice.order) if choice else [],
        "probs": [_finite(p) for p in choice.probs] if choice else [],
        "target": step.target,
        "reflection": step.reflection,
        "reward": _finite(step.reward),
        "events": list(step.events),
    }


def _finite(value: float) -> float | None:
    """Round a number; None if it is not finite, since JSON has no NaN."""
    return round(value, 5) if math.isfinite(value) else None
