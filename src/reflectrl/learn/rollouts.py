"""Training batches for online RL of agents, from episodes that the policy plays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reflectrl.core.config import RLConfig
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.episodes import from_line, to_line
from reflectrl.core.players.base import Player
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Episode, named_seed
from reflectrl.learn.advantages import COMPARING, imitate_gains, with_signal
from reflectrl.learn.batch import Batch, Rollouts
from reflectrl.learn.critic_batches import CriticBatches
from reflectrl.learn.exploration import RewardShaping
from reflectrl.learn.losses import root_mean_square
from reflectrl.learn.minibatches import make_batch
from reflectrl.learn.replay import ReplayBuffer
from reflectrl.learn.starts import Group, Starts, by_start
from reflectrl.learn.steps import begun_near_win, flatten
from reflectrl.learn.validation import evaluate_policy, evenly, mean_return, success_rate
from reflectrl.learn.value import ValueHead
from reflectrl.models.players import Policy


@dataclass
class Collected:
    """Episodes of an update, with what `replay` and `end_update` need to know about them.

    Attributes:
        played: all episodes, group by group.
        learned: the episodes that the update learns from.
        rng: random generator of the update, from which `replay` draws too.
        mean_return: mean reward-to-go of the learned episodes' steps, over those that began at the beginning.
        mean_near_win: the same for episodes that began near a win; None if there were none.
        scale: root mean square of the learned steps' advantages.
    """

    played: list[Episode]
    learned: list[Episode]
    rng: np.random.Generator
    mean_return: float = 0.0
    mean_near_win: float | None = None
    scale: float = 0.0

    def baseline(self, episodes: Sequence[Episode]) -> float | Tensor:
        """Return the value that baseline "mean" subtracts: the update's mean return.

        Episodes that begin near a win have their own mean. The result is then a tensor (N,), otherwise a number.
        """
        # Starts near a win have higher returns: with a common mean, all other episodes would look bad.
        near_N = begun_near_win(episodes)
        if self.mean_near_win is None or not near_N.any():
            return self.mean_return
        return torch.where(near_N, self.mean_near_win, self.mean_return)


class EpisodeRollouts(Rollouts):
    """Source of batches from episodes that a policy plays, with curriculum, replay buffer and exploration rewards.

    Args:
        policy: the policy. It samples at `config.temperature`, whatever its own setting is.
        reflector: frozen reflector, which is a part of the environment for the policy.
        logged: episodes of an offline log. Each update learns from `config.replay_log` of the successful ones.
        shown: further episodes, such as demonstrations. Nothing is learned from them, but new episodes may begin
            part-way into the won ones (`config.reverse`). The same holds for wins of the log and of the policy itself.
        supplement: called with these rollouts and each batch of fresh episodes, before the batch is learned from. May
            add a loss and metrics to it.

    Attributes:
        starts: draws the tasks of an update, and the points where its episodes begin.
        shaping: the learner's rewards.
        buffer: the policy's latest wins.
        log: the wins of the offline log.
        latest: the episodes of the latest update.
        totals: numbers of episodes and steps that were played so far.

    Raises:
        UserError: the environment's stages or milestones do not fit the recipe.
    """

    def __init__(
        self,
        policy: Policy,
        reflector: Player | None,
        make_env: Callable[[], TextEnv],
        config: RLConfig,
        seed: int,
        logged: Sequence[Episode] = (),
        shown: Sequence[Episode] = (),
        supplement: Callable[[EpisodeRollouts, Batch], None] | None = None,
    ) -> None:
        super().__init__(policy.lm, config, seed)
        sampling = replace(policy.sampling, temperature=config.temperature)
        self.policy, self.reflector = policy.with_sampling(sampling), reflector
        self.reference_policy: Policy | None = None
        if self.reference is not None:
            self.reference_policy = Policy(self.reference, self.policy.sampling, scoring=policy.scoring)
        self.make_env, self.env, self.supplement = make_env, make_env(), supplement
        self.starts = Starts(config, self.env, (*logged, *shown))
        self.shaping = RewardShaping(config, self.env)
        self.buffer, self.log = ReplayBuffer(config.replay), ReplayBuffer(len(logged), logged)
        self.latest = Collected([], [], np.random.default_rng(0))
        self.totals = {"episodes": 0, "env_steps": 0}
        if config.baseline == "critic" and config.critic_epochs:
            self.waiting = CriticBatches(self.policy)

    # ---- what a loop calls, in this order ----------------------------------------------------------------------------

    def about(self) -> dict[str, object]:
        return {"stage": self.starts.stage}

    def evaluate(self) -> dict[str, float]:
        config = self.config
        tasks = evenly(self.env.tasks("validation"), config.eval_episodes)
        return evaluate_policy(self.policy, self.reflector, self.make_env, tasks, config.eval_sampling, self.seed)

    def collect(self, update: int, critic: ValueHead | None) -> Batch:
        config = self.config
        self.latest = latest = self.play(update)
        self.shaping.count(latest.played)
        steps = flatten(self.policy, latest.learned, config.gamma, self.shaping)
        # The means are of the policy's own fresh episodes, which say what it earns now; replayed wins never enter.
        latest.mean_return = float(steps.returns_N.mean())
        near_N = begun_near_win(latest.learned)
        if config.reverse and near_N.any():
            latest.mean_near_win = float(steps.returns_N[near_N].mean())
            if not near_N.all():
                latest.mean_return = float(steps.returns_N[~near_N].mean())
        baseline = latest.baseline(latest.learned)
        reference = self.reference_policy if self.compares else None
        batch = make_batch(self.policy, reference, critic, steps, config, baseline, latest.rng, self.team)
        latest.scale = root_mean_square(batch.advantages_N)
        if self.supplement is not None:
            self.supplement(self, batch)
        return batch

    def replay(self, critic: ValueHead | None) -> Batch | None:
        config, rng = self.config, self.latest.rng
        self.buffer.add(self.latest.played)
        drawn = self.buffer.draw(config.replay_episodes, rng, config.self_imitation, config.replay_repeats)
        past = [self.buffer.episodes[i] for i in drawn] + self.log.sample(config.replay_log, rng)
        if not past:
            return None
        if config.baseline in COMPARING:
            # Past wins cannot be compared within their group, because the group's other episodes were not kept.
            config = replace(config, baseline="mean")
        steps = flatten(self.policy, past, config.gamma, self.shaping)
        reference = self.reference_policy if self.compares else None
        baseline = self.latest.baseline(past)
        batch = make_batch(self.policy, reference, critic, steps, config, baseline, None, self.team)
        # Past wins soon hold nothing new. In the unit of the fresh episodes' advantages, they then count for little.
        batch.scale = self.latest.scale
        batch.won_N = None  # wins alone would teach that every choice is right
        if config.self_imitation:
            batch.returns_N = steps.returns_N  # gains are measured from what the past episode really returned
            gains = imitate_gains(batch, steps.spans())
            self.buffer.set_priorities(drawn, gains[: len(drawn)])
        return batch

    def end_update(self) -> dict[str, Any]:
        self.policy.clear_cache()  # the weights have changed
        played, stage, group = self.latest.played, self.starts.stage, self.config.group
        self.totals["episodes"] += len(played)
        self.totals["env_steps"] += sum(len(episode.steps) for episode in played)
        current, _ = by_start(played, stage)
        length = float(np.mean([len(episode.steps) for episode in current]))
        metrics: dict[str, Any] = {"success": success_rate(current), "return": mean_return(current), "steps": length}
        metrics |= self.totals
        actions = Counter[str]()
        for episode in played:
            actions.update(step.observation.actions[step.action] for step in episode.steps)
        metrics["distinct_actions"] = len(actions)
        metrics["main_action"], count = actions.most_common(1)[0]
        metrics["main_share"] = count / actions.total()
        if group > 1:
            metrics["groups_with_signal"] = len(with_signal(played, group, self.shaping)) / len(played)
        metrics |= self.shaping.metrics(current) | self.starts.end_update(played)
        if self.starts.stage != stage:
            self.buffer.clear()  # its wins belong to an easier stage
        return metrics

    # ---- parts that subclasses replace -------------------------------------------------------------------------------

    def play(self, update: int) -> Collected:
        """Play the episodes of an update, and further ones for groups without a signal (`config.refills`)."""
        config = self.config
        rng = np.random.default_rng(named_seed(self.seed, "update", update))
        played, learned = list[Episode](), list[Episode]()
        drawn, missing = 0, config.episodes // config.group
        for _ in range(1 + config.refills):
            fresh = self.judged(self.play_groups(update, drawn, self.groups(missing, rng)))
            played, drawn = played + fresh, drawn + missing
            # A group with equal returns has no advantages, so another group is played in its place.
            if config.refills:
                fresh = with_signal(fresh, config.group, self.shaping)
            learned += fresh
            missing = config.episodes // config.group - len(learned) // config.group
            if not missing:
                break
        return Collected(played, learned or played, rng)  # if no group has a signal, all advantages are 0

    def groups(self, count: int, rng: np.random.Generator) -> list[Group]:
        """Draw the tasks and starting points of `count` groups of episodes."""
        return self.starts.draw(count, rng)

    def play_groups(self, update: int, drawn: int, groups: Sequence[Group]) -> list[Episode]:
        """Play `config.group` episodes of each group. Return them group by group.

        Args:
            drawn: number of groups of the update that were played before. No two groups of it share a seed.
        """
        config, horizon = self.config, self.starts.horizon(update)
        jobs: list[Job] = []
        for i, (task, provenance, start) in enumerate(groups, drawn):
            for k in range(config.group):
                seed = named_seed(self.seed, "rollout", update, i, k)
                jobs.append(Job(task, seed, provenance, start, horizon))
        order = {job.seed: index for index, job in enumerate(jobs)}
        batch, reflecting = config.episodes, config.reflect_probability
        # Only a critic asks what would have followed a time limit, and it reads what the policy reads.
        estimated = config.baseline == "critic"
        played = rollout(jobs, self.make_env, self.policy, self.reflector, batch, reflecting, estimated)
        return sorted(played, key=lambda episode: order[episode.seed])

    def judged(self, episodes: list[Episode]) -> list[Episode]:
        """Return fresh episodes, given group by group, in the form to learn from. By default, they are unchanged."""
        return episodes

    # ---- saved and loaded --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        state = {
            **self.starts.state(),
            "replay": [to_line(episode) for episode in self.buffer.episodes],
            "priorities": list(self.buffer.priorities),
            "played": dict(self.totals),
            "counts": self.shaping.counts.state(),
        }
        if self.waiting is not None:
            state["critic_batches"] = self.waiting.state()
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        self.starts.load(state)
        self.buffer.add(map(from_line, state["replay"]), state["priorities"])
        self.totals = dict(state["played"])
        self.shaping.counts.load(state["counts"])
        if self.waiting is not None:
            self.waiting.load(state["critic_batches"])
