"""Reflection in hindsight: texts about its own finished episodes teach a policy, and nothing is written at play.

After an episode, a text h is made for each of its states s. The policy is scored in these states once without h, and
once with h in the place of a reflection. It learns the difference, in addition to (or instead of) the policy gradient:

    loss = coef * mean_n g_n KL(pi(.|s_n, h_n) || pi(.|s_n))

The divergence is exact, since the listed actions are few. The teacher is the same policy, before the update or before
all training (`hindsight.teacher`), without gradient. Gates g_n in {0, 1} choose the steps (`GATES`). The policy must
have learned to read such texts, so it starts from the SFT policy of a pair. With `sft.reflection_dropout`, that policy
can also choose without any text.

Sources: on-policy self-distillation from privileged context (SDPG, arXiv 2606.04036; SDAR, arXiv 2605.15155); direction
by the reward (SERL, arXiv 2605.19447); failures only (RESD, arXiv 2605.12741); the next observation as the text (HERO,
arXiv 2606.11559). The formulas are our own reading, for exact probabilities of actions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from reflectrl.core.config.rules import Count, Natural, NonNegative
from reflectrl.core.types import Episode, UserError, named_seed
from reflectrl.runs.arms import Arm, policy
from reflectrl.runs.artifact import CHECKPOINT, PLAYED, Artifact, Build, Kind, Plan, Source, artifact

if TYPE_CHECKING:  # these bring torch, which a dry run does without
    from torch import Tensor

    from reflectrl.core.config import RLConfig
    from reflectrl.core.envs.base import TextEnv
    from reflectrl.learn.batch import Batch
    from reflectrl.learn.rollouts import EpisodeRollouts
    from reflectrl.learn.steps import Steps
    from reflectrl.models.players import Policy

SIDE_BY_SIDE = 8
"""Continuations that are played at the same time."""


@dataclass(frozen=True)
class HindsightConfig:
    """Reflection in hindsight, in the arms "hindsight" and "hindsight-only" ([hindsight.md](hindsight.md)). Settings of
    episodes, advantages and evaluation are in [rl].
    """

    text: Literal["analyst", "continuations", "outcome", "observation"] = "analyst"
    """Text that the teacher reads. "analyst": the environment's analysis of the state. "continuations": how often each
    action won when the policy tried it and played on, which needs no expert. "outcome": the action taken and how the
    episode ended. "observation": the action taken and the next observation."""
    gate: Literal["all", "agree", "lost"] = "agree"
    """Steps whose texts are learned from. "all": every step. "agree": steps in which the text moves the probability of
    the action taken in the direction of its advantage. "lost": steps of lost episodes."""
    teacher: Literal["current", "initial"] = "current"
    """Policy that reads the text. "current": the policy itself, before the update. "initial": the policy with which the
    training began. It costs a copy of the model, but the current policy plays without texts and may forget to read."""
    coef: NonNegative = 1.0
    """Weight of the divergence between the policy with and without the text, in the loss."""
    continuations: Count = 2
    """Number of times that each action is tried in a state ("continuations")."""
    actions: Natural = 4
    """Largest number of actions tried in a state: the one taken, and the most probable ones. 0 tries all."""


SECTIONS = {"hindsight": HindsightConfig}


# ---- the loss --------------------------------------------------------------------------------------------------------


def hindsight_loss(logp_NA: Tensor, teacher_NA: Tensor, gates_N: Tensor) -> Tensor:
    """Compute mean_n g_n KL(teacher_n || policy_n) in nats, exactly (summed over the actions).

    Args:
        logp_NA: [N, A] log-probabilities of the policy, with gradient; -inf for illegal actions.
        teacher_NA: [N, A] log-probabilities of the teacher over the same legal actions, taken as constants.
        gates_N: [N] weights of the steps; 0 leaves a step out.
    """
    from reflectrl.learn.losses import categorical_kl

    return (gates_N * categorical_kl(teacher_NA.detach(), logp_NA)).mean()


Gate = Callable[["Tensor", "Tensor", "Tensor"], "Tensor"]

GATES: dict[str, Gate] = {
    "all": lambda gains_N, advantages_N, won_N: gains_N.new_ones(len(gains_N)),
    "agree": lambda gains_N, advantages_N, won_N: (gains_N * advantages_N > 0).to(gains_N.dtype),
    "lost": lambda gains_N, advantages_N, won_N: 1.0 - won_N,
}
"""Gates by values of `hindsight.gate`. Arguments are, for each step, how much the text raises the log-probability of
the action taken, the advantage of that action, and 1.0 if the episode was won. The result is 0 or 1 per step."""


# ---- the texts -------------------------------------------------------------------------------------------------------


def ending(episode: Episode) -> str:
    """Name the end of an episode in a word or two."""
    if episode.success:
        return "won"
    return "cut off" if episode.truncated else "lost"


def taken(episode: Episode) -> list[str]:
    """Return the actions taken, as texts."""
    return [step.observation.actions[step.action] for step in episode.steps]


def outcome_texts(episode: Episode) -> list[str]:
    """Write, for each step, the action taken and how the episode ended after it."""
    actions = taken(episode)
    return [f"{action}: {ending(episode)} {len(actions) - i} steps later" for i, action in enumerate(actions)]


def observation_texts(episode: Episode) -> list[str]:
    """Write, for each step, the action taken and the state that followed, on one line."""
    states = [" ".join(step.observation.state.split()) for step in episode.steps[1:]]
    return [f"{action}: {text}" for action, text in zip(taken(episode), [*states, ending(episode)], strict=True)]


def analyst_texts(episode: Episode, env: TextEnv) -> list[str]:
    """Play an episode again in an environment whose teacher is an analyst. Return the analysis of each state.

    Raises:
        UserError: the environment has no analyst, or an analysis is invalid.
    """
    from reflectrl.core.envs.teacher import ask
    from reflectrl.core.rollout import advance

    texts = []
    advance(env, episode.task, None, named_seed(episode.seed, "env") % 2**32)
    for step in episode.steps:
        try:
            texts.append(ask(env, episode.task, "analyse", len(step.observation.actions)))
        except NotImplementedError as error:
            raise UserError(f"hindsight.text is 'analyst', but {error}; 'continuations' needs no analyst") from error
        advance(env, episode.task, step.action)
    return texts


def continuation_texts(
    episode: Episode, envs: Sequence[TextEnv], policy: Policy, settings: HindsightConfig, seed: int
) -> list[str | None]:
    """Try the actions of each state, and write how often each won. States in which no action won get no text."""
    from reflectrl.core.teach.outcomes import best_of, outcome_text, outcomes

    steps = range(len(episode.steps))
    tried = outcomes(episode, steps, envs, policy, settings.continuations, settings.actions, seed)
    texts: list[str | None] = []
    for i, step in enumerate(episode.steps):
        won = any(action.won for action in tried[i])
        texts.append(outcome_text(step.observation.actions, tried[i], best_of(tried[i])) if won else None)
    return texts


# ---- the episodes ----------------------------------------------------------------------------------------------------


class HindsightTexts:
    """Supplement of batches (`EpisodeRollouts`): the loss of texts about the episodes that were just played.

    Args:
        make_env: makes the environments of this process, in which episodes are played again.
        reward: learn from reward as well. Otherwise advantages only open gates.

    Attributes:
        reader: frozen policy that reads the texts; None if the policy itself does.
    """

    def __init__(
        self, make_env: Callable[[], TextEnv], settings: HindsightConfig, seed: int, reward: bool = True
    ) -> None:
        self.settings, self.seed, self.reward = settings, seed, reward
        self.envs = [make_env() for _ in range(SIDE_BY_SIDE if settings.text == "continuations" else 1)]
        self.reader: Policy | None = None

    def __call__(self, rollouts: EpisodeRollouts, batch: Batch) -> None:
        """Add the loss of the texts to a batch of fresh episodes."""
        texts = [text for episode in rollouts.latest.learned for text in self.texts(rollouts.policy, episode)]
        teacher_NA, gates_N, metrics = self.taught(rollouts, batch, texts)
        batch.auxiliary = partial(self.auxiliary, teacher_NA, gates_N)
        batch.metrics |= metrics
        if not self.reward:
            batch.advantages_N = batch.advantages_N.new_zeros(len(batch.advantages_N))

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()

    def texts(self, policy: Policy, episode: Episode) -> Sequence[str | None]:
        """Return a text for each step of an episode; None for steps about which there is nothing to say."""
        settings = self.settings
        if settings.text == "analyst":
            return analyst_texts(episode, self.envs[0])
        if settings.text == "continuations":
            return continuation_texts(episode, self.envs, policy, settings, named_seed(self.seed, episode.seed))
        return outcome_texts(episode) if settings.text == "outcome" else observation_texts(episode)

    def taught(
        self, rollouts: EpisodeRollouts, batch: Batch, texts: Sequence[str | None]
    ) -> tuple[Tensor, Tensor, dict[str, float]]:
        """Score the steps with and without their texts.

        Returns:
            The teacher's log-probabilities [N, A], the gates [N], and metrics: the share of steps with an open gate,
            and the mean gain of the actions taken.
        """
        import torch

        from reflectrl.learn.steps import flatten

        policy, learned, config = rollouts.policy, rollouts.latest.learned, rollouts.config
        steps = flatten(policy, learned, config.gamma, rollouts.shaping)
        orders = [step.choice.order if step.choice else () for episode in learned for step in episode.steps]
        informed = [
            policy.prompt(seen, text, order) if text is not None else prompt
            for seen, text, order, prompt in zip(steps.observations, texts, orders, steps.prompts, strict=True)
        ]
        without_NA = scored(policy, steps, config.minibatch)
        teacher_NA = scored(self.reader or policy, replace(steps, prompts=informed), config.minibatch)
        chosen_N1 = steps.labels_N[:, None]
        gains_N = (teacher_NA.gather(1, chosen_N1) - without_NA.gather(1, chosen_N1))[:, 0]
        won_N = torch.tensor([float(episode.success) for episode in learned for _ in episode.steps])
        written_N = torch.tensor([float(text is not None) for text in texts])
        gates_N = written_N * GATES[self.settings.gate](gains_N, batch.advantages_N, won_N)
        gain = float((gains_N * written_N).sum() / written_N.sum().clamp(min=1))
        return teacher_NA, gates_N, {"hindsight_share": float(gates_N.mean()), "hindsight_gain": gain}

    def auxiliary(self, teacher_NA: Tensor, gates_N: Tensor, logp_NA: Tensor, index: Sequence[int]) -> Tensor:
        """Return the weighted loss of some steps, given the policy's log-probabilities [n, A] for them."""
        teacher_nA, gates_n = teacher_NA[index, : logp_NA.shape[1]], gates_N[index]
        return self.settings.coef * hindsight_loss(logp_NA, teacher_nA.to(logp_NA.device), gates_n.to(logp_NA.device))


def scored(policy: Policy, steps: Steps, size: int) -> Tensor:
    """Return log-probabilities [N, A] of all steps without gradient, computed in passes of `size` steps."""
    import torch

    from reflectrl.learn.steps import policy_pass

    width = max(map(len, steps.actions))
    logp_NA = torch.full((len(steps), width), -torch.inf)
    with torch.no_grad():
        for start in range(0, len(steps), size):
            part = list(range(start, min(start + size, len(steps))))
            part_NA = policy_pass(policy, steps, part)[0].cpu()
            logp_NA[part, : part_NA.shape[1]] = part_NA
    return logp_NA


def hindsight_rollouts(
    policy: Policy, make_env: Callable[[], TextEnv], config: RLConfig, texts: HindsightTexts
) -> EpisodeRollouts:
    """Return episodes of a policy without a reflector, whose batches also hold the loss of the texts.

    Args:
        policy: must have learned to read reflections.
    """
    from reflectrl.learn.rollouts import EpisodeRollouts
    from reflectrl.models.players import Policy

    if texts.settings.teacher == "initial":
        texts.reader = Policy(policy.lm.frozen_copy("teacher"), policy.sampling, scoring=policy.scoring)
    if not texts.reward:
        config = replace(config, replay=0)  # without reward there is nothing to replay: past wins have no texts
    return EpisodeRollouts(policy, None, make_env, config, texts.seed, supplement=texts)


# ---- the arms --------------------------------------------------------------------------------------------------------


@artifact("hindsight", "rl", CHECKPOINT, settings=(*PLAYED, "rl", "hindsight"))
def taught_in_hindsight(build: Build, *, policy: Source, reward: bool) -> None:
    """Train a policy on texts about its own episodes.

    Args:
        policy: the initial policy, which has learned to read reflections.
        reward: learn from reward as well; False learns from the texts alone.
    """
    _train(build, policy, texts=True, reward=reward)


@artifact("hindsight", "rl", CHECKPOINT, settings=(*PLAYED, "rl"))
def taught_by_reward(build: Build, *, policy: Source) -> None:
    """Train the same policy by reward alone, as the control: the same start, seed and optimiser."""
    _train(build, policy, texts=False, reward=True)


def _train(build: Build, policy: Source, texts: bool, reward: bool) -> None:
    from reflectrl.core.envs.pool import pool_of
    from reflectrl.learn.checkpoint import drop_state, write_folder
    from reflectrl.learn.online import train_online
    from reflectrl.learn.rollouts import EpisodeRollouts
    from reflectrl.runs.players import load_pair, make_policy
    from reflectrl.runs.training import metrics_log

    recipe, seed = build.recipe, build.seed
    lm, _ = load_pair(recipe, seed, policy, None)
    assert lm is not None
    acting, config = make_policy(recipe, lm), replace(recipe.rl, replay_log=0)
    # The arms share a seed, so that the texts are the only difference between them.
    rl_seed = named_seed(seed, "hindsight")
    with pool_of(recipe) as envs, metrics_log(build, config.updates) as note:
        if texts:
            with closing(HindsightTexts(envs, recipe.sections["hindsight"], rl_seed, reward)) as supplement:
                rollouts = hindsight_rollouts(acting, envs, config, supplement)
                train_online(rollouts, config, rl_seed, note, build.learner)
        else:
            rollouts = EpisodeRollouts(acting, None, envs, config, rl_seed)
            train_online(rollouts, config, rl_seed, note, build.learner)
    write_folder(build.out, partial(lm.save, artifact=build.name, seed=seed))
    drop_state(build.learner)


def planned(kind: Kind, name: str, plan: Plan, **how: Any) -> Artifact:
    """Plan the SFT policy of a pair, and its training.

    Raises:
        UserError: `rl.reverse` is set. Episodes that begin part-way into others cannot be played again from the start.
    """
    if plan.recipe.rl.reverse:
        raise UserError(f"arm {name!r} plays whole episodes again to write about them; set rl.reverse to 0")
    return kind(plan, name, policy=policy(plan), **how)


ARMS = {
    "hindsight": Arm(
        "SFT + RL without a reflector; texts in hindsight teach as well",
        partial(planned, taught_in_hindsight, "hindsight", reward=True),
    ),
    "hindsight-only": Arm(
        "SFT, then texts in hindsight instead of RL, without a reflector",
        partial(planned, taught_in_hindsight, "hindsight-only", reward=False),
    ),
    "no-hindsight": Arm(
        "SFT + RL from the same policy as hindsight, without any texts",
        partial(planned, taught_by_reward, "no-hindsight"),
    ),
}
