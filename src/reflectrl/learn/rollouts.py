"""Training batches for online RL of agents: episodes, flattened into steps, and the policy's pass over these steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reflectrl.core import distributed
from reflectrl.core.config import RLConfig
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.episodes import from_line, to_line
from reflectrl.core.players.base import Player
from reflectrl.core.rollout import Job, Start, rollout
from reflectrl.core.types import Episode, Observation, Sampling, Task, named_seed
from reflectrl.learn import examples
from reflectrl.learn.advantages import ADVANTAGES, COMPARING, imitate_gains, with_signal
from reflectrl.learn.batch import Batch, Rollouts
from reflectrl.learn.curriculum import (
    Curriculum,
    ReverseCurriculum,
    SuccessRates,
    draw_tasks,
    growing_horizon,
    replayed,
)
from reflectrl.learn.exploration import Pay
from reflectrl.learn.losses import restricted_log_softmax, rewards_to_go, root_mean_square
from reflectrl.learn.replay import ReplayBuffer
from reflectrl.learn.validation import evaluate_policy, evenly, mean_return, success_rate
from reflectrl.learn.value import ValueHead
from reflectrl.models.players import Policy, Question
from reflectrl.models.sharing import Ids


class EpisodeRollouts(Rollouts):
    """Source of batches from episodes that a policy plays, with curriculum, replay buffer and exploration rewards.

    Args:
        policy: the policy. It samples at `config.temperature`, whatever its own setting is.
        reflector: frozen reflector, which is a part of the environment for the policy.
        logged: episodes of an offline log. Each update learns from `config.replay_log` of the successful ones.
        shown: further episodes, such as demonstrations. Nothing is learned from them, but new episodes may begin
            part-way into the won ones (`config.reverse`). The same holds for wins of the log and of the policy itself.

    Attributes:
        judge: function that maps fresh episodes, group by group, to the episodes to learn from; None for all as played.

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
    ) -> None:
        super().__init__(policy.lm, config, seed)
        self.policy, self.reflector = policy.with_sampling(Sampling(config.temperature)), reflector
        self.make_env, self.env = make_env, make_env()
        self.reference_policy: Policy | None = None
        if self.reference is not None:
            self.reference_policy = Policy(self.reference, self.policy.sampling, scoring=policy.scoring)
        self.curriculum = Curriculum(self.env.stages, config.curriculum, config.updates, config.gate)
        self.buffer, self.log = ReplayBuffer(config.replay), ReplayBuffer(len(logged), logged)
        self.reverse = ReverseCurriculum(config.reverse, config.reverse_gate, config.reverse_step)
        self.reverse.add(sorted((*logged, *shown), key=lambda episode: len(episode.steps)), self.env)
        self.pay = Pay(config, self.env)
        self.paid = self.pay if config.milestone_coef or config.count_coef else None
        self.fresh: list[Episode] = []
        self.learned: list[Episode] = []  # the fresh episodes that the update learns from
        self.played = {"episodes": 0, "env_steps": 0}
        self.rates = SuccessRates() if config.draw == "by-success" else None
        self.judge: Callable[[Sequence[Episode]], list[Episode]] | None = None

    def about(self) -> dict[str, object]:
        return {"stage": self.curriculum.stage}

    def evaluate(self) -> dict[str, float]:
        config = self.config
        tasks = evenly(self.env.tasks("validation"), config.eval_episodes)
        return evaluate_policy(self.policy, self.reflector, self.make_env, tasks, config.eval_sampling, self.seed)

    def collect(self, update: int, critic: ValueHead | None) -> Batch:
        config = self.config
        self.rng = np.random.default_rng(named_seed(self.seed, "update", update))
        horizon = growing_horizon(config, self.env.horizon, update) if config.first_horizon else 0
        self.fresh, learned, drawn, wanted = [], [], 0, config.episodes // config.group
        for _ in range(1 + config.refills):
            groups = self.groups(wanted)
            jobs = [
                Job(task, named_seed(self.seed, "rollout", update, i, k), about, start, horizon)
                for i, (task, about, start) in enumerate(groups, drawn)
                for k in range(config.group)
            ]
            order = {job.seed: i for i, job in enumerate(jobs)}
            batch, reflecting = config.episodes, config.reflect_probability
            played = rollout(jobs, self.make_env, self.policy, self.reflector, batch, reflecting)
            ordered = sorted(played, key=lambda episode: order[episode.seed])
            if self.judge is not None:
                ordered = self.judge(ordered)
            self.fresh, drawn = [*self.fresh, *ordered], drawn + len(groups)
            learned += with_signal(ordered, config.group, self.pay) if config.refills else ordered
            wanted = config.episodes // config.group - len(learned) // config.group
            if not wanted:
                break
        if config.count_coef:
            self.pay.counts.add(self.fresh)
        self.learned = learned = learned or self.fresh  # no group has a signal: all advantages are zero
        steps = flatten(self.policy, learned, config.gamma, self.paid)
        self.baseline = {False: float(steps.returns_N.mean())}
        if config.reverse:
            near_N = begun_near(learned)
            self.baseline = {near: float(steps.returns_N[near_N == near].mean()) for near in set(near_N.tolist())}
        expected = self.expected(learned) if config.reverse else self.baseline[False]
        batch = prepare(self.policy, self.reference_policy, critic, steps, config, expected, self.rng)
        self.scale = root_mean_square(batch.advantages_N)
        return batch

    def groups(self, count: int) -> list[tuple[Task, Mapping[str, Any], Start | None]]:
        """Draw the tasks of an update, as (task, provenance for its episodes, starting point or None)."""
        config, stage = self.config, self.curriculum.stage
        tasks = draw_tasks(self.env, self.curriculum, count, config.rehearsal, self.rng, self.rates)
        begun = self.reverse.draw(stage, sum(task.stage == stage for task in tasks), self.rng)
        near = [(task, {"started_from": start.seed}, start) for task, start in begun]
        return [*near, *((task, {}, None) for task in tasks[len(near) :])]

    def replay(self, critic: ValueHead | None) -> Batch | None:
        config = self.config
        self.buffer.add(self.fresh)
        places = self.buffer.draw(config.replay_episodes, self.rng, by_priority=config.self_imitation)
        past = [self.buffer.episodes[place] for place in places] + self.log.sample(config.replay_log, self.rng)
        if not past:
            return None
        steps = flatten(self.policy, past, config.gamma, self.paid)
        expected = self.expected(past) if config.reverse else self.baseline[False]
        # Past wins cannot be compared within their group, because the group's other episodes were not kept.
        judged = replace(config, baseline="mean") if config.baseline in COMPARING else config
        batch = prepare(self.policy, self.reference_policy, critic, steps, judged, expected)
        # Past wins soon hold nothing new. In the unit of the fresh episodes' advantages, they then count for little.
        batch.scale = self.scale
        if config.self_imitation:
            batch.returns_N = steps.returns_N  # gains are over what the past episode really returned
            gains = imitate_gains(batch, steps.spans())
            self.buffer.set_priorities(places, gains[: len(places)])
        return batch

    def expected(self, episodes: Sequence[Episode]) -> float | Tensor:
        """Return the value that baseline "mean" subtracts: the update's mean return.

        Episodes that begin near a win have their own mean. The result is then a tensor (N,), otherwise a number.
        """
        # Starts near a win have higher returns: with a common mean, all other episodes would look bad.
        near_N, at_first = begun_near(episodes), self.baseline[False]
        return torch.where(near_N, self.baseline.get(True, at_first), at_first) if near_N.any() else at_first

    def end_update(self) -> dict[str, float]:
        self.policy.clear_cache()
        current = [episode for episode in self.fresh if episode.task.stage == self.curriculum.stage]
        near = [episode for episode in current if replayed(episode)]
        current = [episode for episode in current if not replayed(episode)]
        success, length = success_rate(current), float(np.mean([len(episode.steps) for episode in current]))
        metrics = {"success": success, "return": mean_return(current), "steps": length}
        self.played["episodes"] += len(self.fresh)
        self.played["env_steps"] += sum(len(episode.steps) for episode in self.fresh)
        chosen = {step.observation.actions[step.action] for episode in self.fresh for step in episode.steps}
        metrics |= self.played | {"distinct_actions": len(chosen)}
        if self.config.group > 1:
            signal = with_signal(self.fresh, self.config.group, self.pay)
            metrics["groups_with_signal"] = len(signal) / len(self.fresh)
        if self.rates is not None:
            self.rates.add(episode for episode in self.fresh if not replayed(episode))
        metrics |= self.pay.metrics(current)
        if near:
            metrics |= {"reverse_success": success_rate(near), "reverse_distance": float(self.reverse.distance)}
            self.reverse.advance(success_rate(near))
        self.reverse.add(self.fresh, self.env)
        if self.curriculum.advance(success):
            self.buffer.clear()
            self.reverse.restart()
        return metrics

    def state(self) -> dict[str, Any]:
        saved = {
            "curriculum": self.curriculum.state(),
            "replay": [to_line(episode) for episode in self.buffer.episodes],
            "priorities": list(self.buffer.priorities),
            "played": dict(self.played),
            "rates": self.rates.state() if self.rates is not None else {},
        }
        return saved | {"reverse": self.reverse.state(), "counts": self.pay.counts.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.curriculum.load(state["curriculum"])
        self.buffer.add(map(from_line, state["replay"]), state["priorities"])
        self.played = dict(state["played"])
        self.reverse.load(state["reverse"])
        self.pay.counts.load(state["counts"])
        if self.rates is not None:
            self.rates.load(state["rates"])


# ---- from episodes to batches ----------------------------------------------------------------------------------------


@dataclass
class Steps:
    """Steps of some episodes, flattened to N steps.

    Attributes:
        prompts: token ids of each step's policy prompt.
        actions: legal actions at each step.
        labels_N: index of the chosen action in the order in which the actions were listed.
        old_logp_N: log-probability of the choice when it was sampled; NaN if no model sampled it.
        rewards_N: the learner's reward for each step.
        returns_N: discounted reward-to-go (environment units).
        ends: index after the last step of each episode.
        task_ids: task of each episode, plus its starting point if that is not the beginning. Episodes with the same
            value can be compared.
        observations: observation at each step.
    """

    prompts: list[Ids]
    actions: list[tuple[str, ...]]
    labels_N: Tensor
    old_logp_N: Tensor
    rewards_N: Tensor
    returns_N: Tensor
    ends: list[int]
    task_ids: list[str]
    observations: list[Observation] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.prompts)

    def spans(self) -> list[slice]:
        """Return the slice of steps of each episode."""
        return [slice(start, end) for start, end in zip([0, *self.ends[:-1]], self.ends, strict=True)]


def flatten(
    policy: Policy,
    episodes: Sequence[Episode],
    gamma: float,
    pay: Callable[[Episode], Tensor] | None = None,
) -> Steps:
    """Flatten episodes of the policy, or of a log, into steps. Prompts are rendered as they are in play.

    Steps that were only repeated to reach an episode's starting point are left out.

    Args:
        pay: returns the rewards [T] of all steps of an episode; None takes the environment's.
    """
    prompts, actions, labels, old, rewards, returns, ends, tasks = [], [], [], [], [], [], [], []
    seen: list[Observation] = []
    rendered: dict[Hashable, Ids] = {}
    for episode in episodes:
        first = replayed(episode) if "started_from" in episode.provenance else 0
        for step in episode.steps[first:]:
            reflections = [turn.text for turn in step.turns if turn.choice is None]
            turn = next(turn for turn in step.turns if turn.choice is not None)
            asked = (step.observation, reflections[0] if reflections else None, turn.order)
            if asked not in rendered:
                rendered[asked] = policy.prompt(*asked)
            prompts.append(rendered[asked])
            actions.append(step.observation.actions)
            labels.append(turn.order.index(step.action) if turn.order else step.action)
            old.append(turn.logprobs[0] if turn.logprobs else torch.nan)
            seen.append(step.observation)
        rewards_T = pay(episode)[first:] if pay else torch.tensor([step.reward for step in episode.steps[first:]])
        rewards.append(rewards_T)
        returns.append(rewards_to_go(rewards_T, gamma))
        ends.append(len(prompts))
        tasks.append(f"{episode.task.id} from step {first}" if first else episode.task.id)
    labels_N, old_logp_N = torch.tensor(labels), torch.tensor(old)
    rewards_N, returns_N = torch.cat(rewards), torch.cat(returns)
    return Steps(prompts, actions, labels_N, old_logp_N, rewards_N, returns_N, ends, tasks, seen)


def begun_near(episodes: Sequence[Episode]) -> Tensor:
    """Return a boolean tensor (N,): True for steps of episodes that began part-way into an earlier episode."""
    firsts = [replayed(episode) for episode in episodes]
    lengths = [len(episode.steps) - first for episode, first in zip(episodes, firsts, strict=True)]
    return (torch.tensor(firsts) > 0).repeat_interleave(torch.tensor(lengths))


def deal(prompt_N: np.ndarray, config: RLConfig, rng: np.random.Generator) -> list[np.ndarray]:
    """Assign N steps at random to the minibatches of an epoch: one by one, or all steps with the same prompt together.

    Args:
        prompt_N: number of each step's prompt, from 0 on.

    Returns:
        Indices of the steps of each minibatch. Minibatches are about equally large, and none is empty.
    """
    count = min(config.steps_per_epoch, len(prompt_N))
    if config.deal == "steps":
        return np.array_split(rng.permutation(len(prompt_N)), count)
    places_N = rng.permutation(prompt_N.max() + 1)[prompt_N]  # prompts in a new order
    steps_P = np.bincount(places_N)
    minibatch_P = (steps_P.cumsum() - steps_P) * count // len(prompt_N)  # in which the first step of a prompt falls
    return [np.flatnonzero(minibatch_P[places_N] == k) for k in np.unique(minibatch_P)]


@torch.no_grad()
def prepare(
    policy: Policy,
    reference: Policy | None,
    critic: ValueHead | None,
    steps: Steps,
    config: RLConfig,
    baseline: float | Tensor,
    rng: np.random.Generator | None = None,
) -> Batch:
    """Make a batch of steps: advantages, slices for one pass each, and the reference's log-probabilities.

    Args:
        baseline: mean return that baseline "mean" subtracts, as a number for all steps or (N,) for each.
        rng: assigns the steps to `config.steps_per_epoch` minibatches (`deal`); None makes a single minibatch.
    """
    everything = np.arange(len(steps.prompts))
    asked = [*zip(steps.prompts, steps.actions, strict=True)]
    questions, longest = sorted(set(asked)), max(map(len, steps.prompts))
    numbers = {question: number for number, question in enumerate(questions)}
    prompt_N = np.array([numbers[question] for question in asked])
    dealt = [everything] if rng is None or config.steps_per_epoch == 1 else deal(prompt_N, config, rng)
    cut: list[list[list[int]]] = []
    team = distributed.team
    rank, ranks = (team.rank, team.size) if team is not None else (0, 1)
    for rows in (everything, *dealt):  # the steps of a prompt stay together, and so do prompts that begin alike
        number_P, place_n = np.unique(prompt_N[rows], return_inverse=True)
        most = min(config.minibatch, -(-len(number_P) // ranks))
        slice_P = np.arange(len(number_P)) // most
        if most * longest * policy.activation_bytes > examples.ACTIVATIONS / 2:  # texts of actions are read too
            slice_P = memory_slices(policy, [questions[number] for number in number_P], most)
        cut.append([rows[slice_P[place_n] == k].tolist() for k in range(slice_P[-1] + 1)])
    whole, *minibatches = cut
    values_N = None
    if critic is not None:
        values_N = torch.zeros(len(asked))
        for part in whole[rank::ranks]:
            values_N[part] = critic(policy_pass(policy, steps, part)[1]).cpu()
        if team is not None:
            team.sum(values_N)
    ref_logp: list[list[Tensor]] = []
    if reference is not None:  # it does not change, so one pass over the batch serves all minibatches and epochs
        ref_NA = torch.zeros(len(asked), max(map(len, steps.actions)), device=policy.lm.device)
        for part in whole[rank::ranks]:
            logp_NA = policy_pass(reference, steps, part)[0]
            ref_NA[part] = -torch.inf
            ref_NA[part, : logp_NA.shape[1]] = logp_NA
        if team is not None:
            team.sum(ref_NA)
        widest = [[max(len(steps.actions[i]) for i in part) for part in parts] for parts in minibatches]
        for parts, widths in zip(minibatches, widest, strict=True):
            ref_logp.append([ref_NA[part, :width] for part, width in zip(parts, widths, strict=True)])
    advantages_N = compute_advantages(steps, config, baseline, values_N)
    # The critic learns the lambda-returns that advantages are computed from: they vary less than whole returns.
    targets_N = steps.returns_N if values_N is None else values_N + advantages_N
    read = partial(policy_pass, policy, steps)
    known = (steps.labels_N, steps.old_logp_N, advantages_N, targets_N, values_N)
    return Batch([[(part, part) for part in parts] for parts in minibatches], read, *known, ref_logp)


def memory_slices(policy: Policy, questions: Sequence[Question], most: int) -> np.ndarray:
    """Return the number of each prompt's pass. A pass has at most `most` prompts, and no more than memory allows."""
    texts = [policy.action_tokens(actions) for _, actions in questions]
    rows = [ids + text for (ids, _), text in zip(questions, texts, strict=True)]
    parts = examples.passes(policy.lm, rows, [max(1, len(text)) for text in texts], most)
    return np.repeat(np.arange(len(parts)), [part.stop - part.start for part in parts])


def policy_pass(
    policy: Policy, steps: Steps, index: Sequence[int], packing: Callable[[list[Ids]], Sequence[Ids]] = list
) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities (N, A) over the listed actions, and last hidden states (N, D), of the steps in `index`.

    Steps with the same prompt and actions share a single computation, and gradients sum over them. Common prefixes of
    prompts, above all an episode's history, are encoded once. Actions beyond a step's own count are -inf. The sampling
    temperature is applied, so that ratios are 1 before the first update.

    Args:
        packing: `list` leaves packing to the backend, `apart` encodes each prompt by itself.
    """
    asked = [(steps.prompts[i], steps.actions[i]) for i in index]
    places = {question: place for place, question in enumerate(dict.fromkeys(asked))}
    same_N = torch.tensor([places[question] for question in asked], device=policy.lm.device)
    actions = [listed for _, listed in places]
    logits_PA, hidden_PD = policy.logits(packing([ids for ids, _ in places]), actions)
    counts = torch.tensor([len(listed) for listed in actions], device=policy.lm.device)
    legal_PA = torch.arange(logits_PA.shape[1], device=policy.lm.device)[None] < counts[:, None]
    logp_PA = restricted_log_softmax(logits_PA / (policy.sampling.temperature or 1.0), legal_PA)
    return logp_PA[same_N], hidden_PD[same_N]


def compute_advantages(steps: Steps, config: RLConfig, baseline: float | Tensor, values_N: Tensor | None) -> Tensor:
    """Compute the advantages (N,) of the steps, not yet normalised.

    With `config.baseline` "none" they are the rewards-to-go, and with "mean" the rewards-to-go minus `baseline`. All
    other values are in `advantages.ADVANTAGES`.
    """
    if config.baseline in ADVANTAGES:
        return ADVANTAGES[config.baseline](steps, config, values_N)
    return steps.returns_N - (baseline if config.baseline == "mean" else 0.0)
