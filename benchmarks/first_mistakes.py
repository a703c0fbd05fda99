"""First mistakes of lost episodes: the first action of each that the environment's expert would not have taken.

    python -m benchmarks.first_mistakes runs/analyses/episodes/eval-sft-seed0-test-full-greedy.jsonl

Prints a row for each kind of task and kind of mistake, the most frequent first: the number of episodes, the first word
of the expert's action, and the first word of the player's. Equal words mean that only the rest differed. A first
mistake need not be the one that lost: an episode may recover from it and fail at another.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from reflectrl.core.envs import make
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.episodes.log import read_episodes
from reflectrl.core.types import Episode
from reflectrl.runs.calibration import best_actions

Mistake = tuple[str, str, str]
"""Kind of task ("" if the environment has none), first word of the expert's action, first word of the player's."""


def first_mistake(env: TextEnv, episode: Episode) -> Mistake | None:
    """Return the first action of an episode that is not the expert's; None if there is none."""
    for step, best in zip(episode.steps, best_actions(env, episode), strict=True):
        if step.action not in best:
            actions = step.observation.actions
            expert, player = (actions[i].split()[0] for i in (best[0], step.action))
            return env.group(episode.task) or "", expert, player
    return None


def mistakes(env: TextEnv, episodes: Iterable[Episode]) -> Counter[Mistake | None]:
    """Count the first mistakes of the lost episodes."""
    return Counter(first_mistake(env, episode) for episode in episodes if not episode.success)


def main(arguments: Sequence[str]) -> None:
    """Count over several logs of an environment, and print the sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", type=Path)
    chosen_logs: list[Path] = parser.parse_args(arguments).logs
    counts: Counter[Mistake | None] = Counter()
    for log in chosen_logs:
        episodes = list(read_episodes(log))
        counts += mistakes(make({"name": episodes[0].task.env}), episodes)
    for mistake, count in counts.most_common():
        kind, expert, player = mistake or ("", "none", "none")
        print(f"{count:5}  {kind:10} expert: {expert:10} player: {player}")


if __name__ == "__main__":
    main(sys.argv[1:])
