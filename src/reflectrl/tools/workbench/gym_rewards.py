"""Rule of success for a gymnasium environment, inferred from the rewards of random play.

Gymnasium says that an episode has ended, but not whether it is won. An end on its own tells nothing: -1 is the price of
the last step in CliffWalking, and a collision in a world whose other steps cost nothing. So ends are compared with the
steps that end nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

from reflectrl.core.envs.adapter import is_out_of_time

EPISODES, STEPS = 30, 100
"""Random play that is examined: number of episodes, and their largest number of steps."""
SUCCESS_KEYS = ("is_success", "success")
"""Keys of `info` by which environments say themselves whether an episode is won."""


@dataclass
class Rewards:
    """Rewards of random play.

    Attributes:
        steps: rewards of steps after which the episode went on.
        ends: rewards of the last steps of episodes that terminated.
        lengths: numbers of steps of these episodes.
        success_key: key of `info` that says whether an episode is won; "" if there is none.
    """

    steps: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    success_key: str = ""

    @property
    def are_out_of_time(self) -> bool:
        """True if all episodes terminated after the same number of steps: probably a limit of time."""
        return len(self.lengths) > 1 and self.lengths[0] > 1 and len(set(self.lengths)) == 1

    def in_words(self) -> str:
        """Describe the rewards in a sentence."""
        steps = _range(self.steps) if self.steps else "there were none"
        ends = f"{len(self.ends)} ends paid {_range(self.ends)}" if self.ends else "no episode ended by itself"
        return f"In {EPISODES} episodes of random play, steps paid {steps}, and {ends}."


@dataclass(frozen=True)
class SuccessRule:
    """Rule by which an episode that has just terminated counts as won.

    Attributes:
        code: the rule as an expression of `reward` and `info`.
        words: the rule in words.
        lasting: True if an episode also counts as won when time runs out.
    """

    code: str
    words: str
    lasting: bool = False


ABOVE_ZERO = SuccessRule("reward > 0", "the episode ends with a reward above 0")


def play_at_random(env: gym.Env[Any, Any]) -> Rewards:
    """Play an environment at random, and return what was paid."""
    env.action_space.seed(0)
    rewards = Rewards()
    for seed in range(EPISODES):
        env.reset(seed=seed)
        for step in range(1, STEPS + 1):
            _, reward, terminated, truncated, info = env.step(env.action_space.sample())
            terminated = terminated and not is_out_of_time(info)
            if terminated:
                rewards.ends.append(float(reward))
                rewards.lengths.append(step)
                rewards.success_key = next((key for key in SUCCESS_KEYS if key in info), rewards.success_key)
            elif not truncated:
                rewards.steps.append(float(reward))
            if terminated or truncated or is_out_of_time(info):
                break
    return rewards


def success_rule(rewards: Rewards) -> SuccessRule:
    """Infer which ends are won. An end that pays less than other steps never counts as won."""
    if rewards.success_key:
        key = rewards.success_key
        return SuccessRule(f'bool(info["{key}"])', f"the environment says so in info[{key!r}]")
    best_end = max(rewards.ends, default=None)
    if rewards.steps and max(rewards.steps) < 0:
        # Every step costs, and so may the last step of a win. If some end pays more than that, wins are known to pay
        # more. At a limit of time, the last step costs as much as any other.
        best_step = max(rewards.steps)
        if best_end is not None and best_end > 0:
            return ABOVE_ZERO
        if rewards.are_out_of_time or (best_end is not None and best_end > best_step):
            return SuccessRule(f"reward > {best_step!r}", f"the episode ends with a reward above {best_step:g}")
        return SuccessRule(f"reward >= {best_step!r}", f"the episode ends with a reward of at least {best_step:g}")
    if rewards.steps and min(rewards.steps) > 0:
        # Every step pays, so an end that pays no more than a step is a loss.
        best_step = max(rewards.steps)
        words = f"the episode ends with a reward above {best_step:g}"
        lasting = best_end is not None and best_end <= best_step
        if lasting:
            words += ", or lasts until the horizon"
        return SuccessRule(f"reward > {best_step!r}", words, lasting)
    return ABOVE_ZERO


def _range(rewards: list[float]) -> str:
    least, most = min(rewards), max(rewards)
    return f"{least:g}" if least == most else f"{least:g} to {most:g}"
