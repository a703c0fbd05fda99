"""A judge in online RL: a language model ranks the episodes of each task, and their standing is a reward."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from torch import Tensor

from reflectrl.core import distributed
from reflectrl.core.terminal import console
from reflectrl.core.types import Episode, UserError
from reflectrl.learn.exploration import RewardShaping
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.runs.artifact import Build
from reflectrl.serving.endpoints.client import Endpoint
from reflectrl.serving.endpoints.config import JudgeConfig, endpoint_settings, require_address
from reflectrl.serving.endpoints.contestants import asked_by
from reflectrl.serving.endpoints.local import LocalModel
from reflectrl.serving.endpoints.ranking import UNREAD, VERDICTS, rank_episodes, require_readable

STANDING = "standing"
"""Key of an episode's provenance for its standing, so that the replay buffer keeps it."""


def judged_rollouts(build: Build, *given: Any) -> JudgedRollouts:
    """Return the rollouts of a recipe with `judge.coef`. `given` are the arguments of `EpisodeRollouts`."""
    if distributed.current().size > 1:
        raise UserError("judge.coef: a judge cannot be used when several processes train together")
    recipe = build.recipe
    judge = asked_by(require_address(endpoint_settings(recipe), "endpoint"), recipe, build.context.run.path)
    settings: JudgeConfig = recipe.sections["judge"]
    rl = given[3]
    most = rl.updates * (1 + rl.refills) * rl.episodes * (rl.group - 1)
    tokens = most * (2 * settings.longest // 4 + settings.max_tokens)
    console(120).print(f"a judge at {judge.where}: at most {most} requests and about {tokens} tokens", soft_wrap=True)
    return JudgedRollouts(settings, judge, *given)


class JudgedShaping(RewardShaping):
    """Add an episode's standing to its last reward, or use it instead of the environment's rewards."""

    def __init__(self, settings: JudgeConfig, *given: Any) -> None:
        super().__init__(*given)
        self.settings = settings

    def __call__(self, episode: Episode) -> Tensor:
        """Return [T] rewards. An episode that was not judged counts as a tie (0.5)."""
        rewards_T = super().__call__(episode)
        if self.settings.instead:
            rewards_T = rewards_T * 0.0
        rewards_T[-1] += self.settings.coef * float(episode.provenance.get(STANDING, 0.5))
        return rewards_T


class JudgedRollouts(EpisodeRollouts):
    """Rollouts in which a judge ranks the episodes of each group. Reported rewards stay the environment's.

    The numbers of verdicts so far, and of those that cannot be read, are among the metrics.

    Args:
        given: the arguments of `EpisodeRollouts`.
    """

    def __init__(self, settings: JudgeConfig, judge: Endpoint | LocalModel, *given: Any) -> None:
        super().__init__(*given)
        self.settings, self.judge = settings, judge
        self.shaping = JudgedShaping(settings, self.config, self.env)
        self.totals |= {VERDICTS: 0, UNREAD: 0}

    def judged(self, episodes: list[Episode]) -> list[Episode]:
        """Return the episodes with their standings."""
        size = self.config.group
        groups = [episodes[start : start + size] for start in range(0, len(episodes), size)]
        counts = Counter[str]()
        group_standings = rank_episodes(groups, self.judge, self.settings.longest, self.settings.max_tokens, counts)
        for name in (VERDICTS, UNREAD):  # (states of earlier versions do not have them)
            self.totals[name] = self.totals.get(name, 0) + counts[name]
        require_readable(self.totals, "raise judge.max_tokens, or name another model")
        return [
            replace(episode, provenance={**episode.provenance, STANDING: standing})
            for group, standings in zip(groups, group_standings, strict=True)
            for episode, standing in zip(group, standings, strict=True)
        ]
