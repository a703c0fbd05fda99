"""A judge in online RL: a language model ranks the episodes of each task, and their standing is a reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from reflectrl import distributed
from reflectrl.endpoints.client import Endpoint
from reflectrl.endpoints.config import JudgeConfig, endpoint_settings, require_address
from reflectrl.endpoints.contestants import asked_by
from reflectrl.endpoints.local import LocalModel
from reflectrl.endpoints.ranking import rank_episodes
from reflectrl.learn.exploration import Pay
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.pipeline.artifacts import Artifact
from reflectrl.pipeline.folder import Context
from reflectrl.terminal import console
from reflectrl.types import Episode, UserError

STANDING = "standing"
"""Where an episode's provenance holds what the judge made of it, so that it is found again in the replay buffer."""


def judged_rollouts(context: Context, artifact: Artifact, *given: Any) -> JudgedRollouts:
    """The rollouts of a recipe with `judge.coef`; `given` are the arguments of `EpisodeRollouts`."""
    if distributed.team is not None:
        raise UserError("judge.coef: a judge cannot be asked by several processes that train together")
    recipe = context.recipe
    judge = asked_by(require_address(endpoint_settings(recipe), "endpoint"), recipe, context.run.path)
    settings: JudgeConfig = recipe.sections["judge"]
    rl = given[3]
    most = rl.updates * (1 + rl.refills) * rl.episodes * (rl.group - 1)
    tokens = most * (2 * settings.longest // 4 + settings.max_tokens)
    console(120).print(f"a judge at {judge.where}: at most {most} requests and about {tokens} tokens", soft_wrap=True)
    return JudgedRollouts(settings, judge, *given)


class JudgedPay(Pay):
    """Pays an episode's standing at its last step, beside or instead of what the environment gives."""

    def __init__(self, settings: JudgeConfig, *given: Any) -> None:
        super().__init__(*given)
        self.settings = settings

    def __call__(self, episode: Episode) -> Tensor:
        """[T] rewards; an episode that was not judged counts as one in the middle."""
        rewards_T = super().__call__(episode)
        if self.settings.instead:
            rewards_T = rewards_T * 0.0
        rewards_T[-1] += self.settings.coef * float(episode.provenance.get(STANDING, 0.5))
        return rewards_T


class JudgedRollouts(EpisodeRollouts):
    """As `EpisodeRollouts`, but a judge ranks the episodes of each group. What is reported stays the environment's.

    Args:
        given: the arguments of `EpisodeRollouts`.
    """

    def __init__(self, settings: JudgeConfig, judge: Endpoint | LocalModel, *given: Any) -> None:
        super().__init__(*given)
        self.settings, self.judge = settings, judge
        self.pay = self.paid = JudgedPay(settings, self.config, self.env)

    def judged(self, episodes: Sequence[Episode]) -> list[Episode]:
        """The episodes with their standings."""
        size = self.config.group
        groups = [episodes[start : start + size] for start in range(0, len(episodes), size)]
        ranked = rank_episodes(groups, self.judge, self.settings.longest, self.settings.max_tokens)
        return [
            replace(episode, provenance={**episode.provenance, STANDING: standing})
            for group, standings in zip(groups, ranked, strict=True)
            for episode, standing in zip(group, standings, strict=True)
        ]
