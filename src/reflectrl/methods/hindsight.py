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
from typing import TYPE_CHECKING, Any, Literal, cast

from reflectrl.core.config.rules import Count, Natural, NonNegative
from reflectrl.core.types import Episode, UserError, named_seed
from reflectrl.runs.arms import Arm, policy, reflector
from reflectrl.runs.artifact import CHECKPOINT, PLAYED, Artifact, Build, Kind, Plan, Source, artifact

if TYPE_CHECKING:  # these bring torch, which a dry run does without
    from torch import Tensor

    from reflectrl.core.config import Recipe, RLConfig
    from reflectrl.core.envs.base import TextEnv
    from reflectrl.learn.batch import Batch
    from reflectrl.learn.rollouts import EpisodeRollouts
    from reflectrl.learn.steps import Steps
    from reflectrl.models.lm import LanguageModel
    from reflectrl.models.players import Policy, Reflector
    from reflectrl.serving.endpoints.client import Ask, Endpoint
    from reflectrl.serving.endpoints.config import TeacherConfig
    from reflectrl.serving.endpoints.local import LocalModel

SIDE_BY_SIDE = 8
"""Continuations that are played at the same time."""
Texts = list[str | None]
"""A text for each step of some episodes, in order; None for steps about which there is nothing to say."""
Writer = Callable[[Sequence[Episode]], Texts]
"""Model that writes about finished episodes: a reflector, or a model behind an endpoint."""


@dataclass(frozen=True)
class HindsightConfig:
    """Reflection in hindsight, in the arms "hindsight" and "hindsight-only" ([hindsight.md](hindsight.md)). Settings of
    episodes, advantages and evaluation are in [rl].
    """

    text: Literal["analyst", "continuations", "outcome", "observation", "reflector", "endpoint"] = "analyst"
    """Text that the teacher reads. "analyst": the environment's analysis of the state. "continuations": how often each
    action won when the policy tried it and played on, which needs no expert. "outcome": the action taken and how the
    episode ended. "observation": the action taken and the next observation. "reflector": what the reflector after SFT
    writes about the state. "endpoint": what the model of [endpoint] writes about it, told what followed."""
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


def reflector_texts(reflector: Reflector, episodes: Sequence[Episode]) -> Texts:
    """Let a reflector write about each state of some episodes, as it would have written at play.

    States are written about in a single batch, equal ones once. If they build on earlier ones (a history, or a
    reflection that is carried), each batch holds one state of every episode instead, as at play.
    """
    import numpy as np

    from reflectrl.core.players.base import LiveEpisode

    batches: list[list[tuple[int, int]]] = [[]]  # of (episode, step)
    by_step = reflector.carries or any(step.observation.history for episode in episodes for step in episode.steps)
    if by_step:
        batches = [[] for _ in range(max(len(episode.steps) for episode in episodes))]
    for k, episode in enumerate(episodes):
        for i in range(len(episode.steps)):
            batches[i if by_step else 0].append((k, i))

    live: dict[int, LiveEpisode] = {}
    written: dict[tuple[int, int], str] = {}
    for states in batches:
        reading = []
        for k, i in states:
            episode = episodes[k]
            seen = episode.steps[i].observation
            if reflector.carries and i:
                seen = seen.after(live[k].observation, written[k, i - 1])
            # A reader that goes on with its episode keeps its KV cache of the history.
            if k not in live or not by_step:
                no_env = cast("TextEnv", None)  # a reflector reads only the observation
                rng = np.random.default_rng(named_seed(episode.seed, "players"))
                live[k] = LiveEpisode(no_env, episode.task, episode.seed, rng, seen)
            live[k].observation = seen
            reading.append(live[k])
        for state, turn in zip(states, reflector.turns(reading), strict=True):
            written[state] = turn.text
    return [written[k, i] for k, episode in enumerate(episodes) for i in range(len(episode.steps))]


def endpoint_asks(episodes: Sequence[Episode], config: TeacherConfig) -> list[Ask]:
    """Return the question about each step: the state, the action taken, what followed, and how the episode ended."""
    from reflectrl.core.prompts.messages import conversation
    from reflectrl.serving.endpoints.client import Ask

    asks = []
    for episode in episodes:
        actions = taken(episode)
        for i, step in enumerate(episode.steps):
            seen, followed = step.observation, ""
            if i + 1 < len(episode.steps):
                after = episode.steps[i + 1].observation
                followed = after.history.removeprefix(seen.history) + after.state
            details = (actions[i], followed.rstrip(), ending(episode), len(actions) - i)
            asks.append(Ask(conversation("teacher", "hindsight", seen, config.history, *details), config.max_tokens))
    return asks


def endpoint_texts(
    endpoint: Endpoint | LocalModel, config: TeacherConfig, policy: Policy, episodes: Sequence[Episode]
) -> Texts:
    """Ask a model behind an endpoint about each step of some episodes. Equal questions are asked once.

    An answer is cut to `config.longest` characters, and to what the policy's context holds beside the state. Steps with
    an empty answer get no text.

    Raises:
        UserError: the endpoint does not answer, or the budget is spent.
    """
    from reflectrl.serving.endpoints.contestants import fitting
    from reflectrl.serving.endpoints.parsing import read_reflection

    answers = endpoint.complete_all(endpoint_asks(episodes, config))
    steps = [step for episode in episodes for step in episode.steps]
    texts = Texts()
    for step, answer in zip(steps, answers, strict=True):
        text = read_reflection(answer)[: config.longest].rstrip()
        texts.append(fitting(policy, step.observation, text) or None)
    return texts


# ---- the episodes ----------------------------------------------------------------------------------------------------


class HindsightTexts:
    """Supplement of batches (`EpisodeRollouts`): the loss of texts about the episodes that were just played.

    Args:
        make_env: makes the environments of this process, in which episodes are played again.
        reward: learn from reward as well. Otherwise advantages only open gates.
        writer: writes the texts "reflector" and "endpoint".

    Attributes:
        reader: frozen policy that reads the texts; None if the policy itself does.

    Raises:
        ValueError: the settings need a writer, and there is none.
    """

    def __init__(
        self,
        make_env: Callable[[], TextEnv],
        settings: HindsightConfig,
        seed: int,
        reward: bool = True,
        writer: Writer | None = None,
    ) -> None:
        if writer is None and settings.text in ("reflector", "endpoint"):
            raise ValueError(f"text {settings.text!r} needs a writer")
        self.settings, self.seed, self.reward, self.writer = settings, seed, reward, writer
        self.envs = [make_env() for _ in range(SIDE_BY_SIDE if settings.text == "continuations" else 1)]
        self.reader: Policy | None = None

    def __call__(self, rollouts: EpisodeRollouts, batch: Batch) -> None:
        """Add the loss of the texts to a batch of fresh episodes."""
        texts = self.texts(rollouts.policy, rollouts.latest.learned)
        teacher_NA, gates_N, metrics = self.taught(rollouts, batch, texts)
        batch.auxiliary = partial(self.auxiliary, teacher_NA, gates_N)
        batch.metrics |= metrics
        if not self.reward:
            batch.advantages_N = batch.advantages_N.new_zeros(len(batch.advantages_N))

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()

    def texts(self, policy: Policy, episodes: Sequence[Episode]) -> Texts:
        """Return the texts about some episodes."""
        if self.writer is not None:
            return self.writer(episodes)
        texts = Texts()
        for episode in episodes:
            texts += self._texts_of(policy, episode)
        return texts

    def _texts_of(self, policy: Policy, episode: Episode) -> Sequence[str | None]:
        """Return the texts about an episode that need no model, or only the policy."""
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
            the mean gain of the actions taken, and the share of steps that have a text.
        """
        import torch

        from reflectrl.learn.steps import flatten

        policy, learned, config = rollouts.policy, rollouts.latest.learned, rollouts.config
        steps = flatten(policy, learned, config.gamma, rollouts.shaping)
        without_NA = scored(policy, steps, config.minibatch)
        informed = with_texts(policy, steps, texts, label_orders(learned))
        teacher_NA = scored(self.reader or policy, informed, config.minibatch)
        chosen_N1 = steps.labels_N[:, None]
        gains_N = (teacher_NA.gather(1, chosen_N1) - without_NA.gather(1, chosen_N1))[:, 0]
        won_N = torch.tensor([float(episode.success) for episode in learned for _ in episode.steps])
        written_N = torch.tensor([float(text is not None) for text in texts])
        gates_N = written_N * GATES[self.settings.gate](gains_N, batch.advantages_N, won_N)
        gain = float((gains_N * written_N).sum() / written_N.sum().clamp(min=1))
        metrics = {"hindsight_share": float(gates_N.mean()), "hindsight_gain": gain}
        return teacher_NA, gates_N, metrics | {"hindsight_written": float(written_N.mean())}

    def auxiliary(self, teacher_NA: Tensor, gates_N: Tensor, logp_NA: Tensor, index: Sequence[int]) -> Tensor:
        """Return the weighted loss of some steps, given the policy's log-probabilities [n, A] for them."""
        teacher_nA, gates_n = teacher_NA[index, : logp_NA.shape[1]], gates_N[index]
        return self.settings.coef * hindsight_loss(logp_NA, teacher_nA.to(logp_NA.device), gates_n.to(logp_NA.device))


def label_orders(episodes: Sequence[Episode]) -> list[tuple[int, ...]]:
    """Return, for each step of some episodes, the order in which its prompt lists the actions; () for the usual one."""
    orders = list[tuple[int, ...]]()
    for episode in episodes:
        for step in episode.steps:
            orders.append(step.choice.order if step.choice else ())
    return orders


def with_texts(policy: Policy, steps: Steps, texts: Sequence[str | None], orders: Sequence[tuple[int, ...]]) -> Steps:
    """Return the same steps with a text in the place of each reflection. Steps without a text keep their prompt."""
    prompts = list(steps.prompts)
    for index, (text, order) in enumerate(zip(texts, orders, strict=True)):
        if text is not None:
            prompts[index] = policy.prompt(steps.observations[index], text, order)
    return replace(steps, prompts=prompts)


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
def taught_in_hindsight(build: Build, *, policy: Source, reflector: Source | None = None, reward: bool) -> None:
    """Train a policy on texts about its own episodes.

    Args:
        policy: the initial policy, which has learned to read reflections.
        reflector: the reflector that writes the texts; None for other texts.
        reward: learn from reward as well; False learns from the texts alone.
    """
    _train(build, policy, texts=True, reward=reward, reflector=reflector)


@artifact("hindsight", "rl", CHECKPOINT, settings=(*PLAYED, "rl"))
def taught_by_reward(build: Build, *, policy: Source) -> None:
    """Train the same policy by reward alone, as the control: the same start, seed and optimiser."""
    _train(build, policy, texts=False, reward=True)


def _train(build: Build, policy: Source, texts: bool, reward: bool, reflector: Source | None = None) -> None:
    from reflectrl.core.envs.pool import pool_of
    from reflectrl.learn.checkpoint import drop_state, write_folder
    from reflectrl.learn.online import train_online
    from reflectrl.learn.rollouts import EpisodeRollouts
    from reflectrl.runs.players import load_pair, make_policy
    from reflectrl.runs.training import metrics_log

    recipe, seed = build.recipe, build.seed
    lm, reflector_lm = load_pair(recipe, seed, policy, reflector)
    assert lm is not None
    acting, config = make_policy(recipe, lm), replace(recipe.rl, replay_log=0)
    # The arms share a seed, so that the texts are the only difference between them.
    rl_seed = named_seed(seed, "hindsight")
    with pool_of(recipe) as envs, metrics_log(build, config.updates) as note:
        if texts:
            settings, writer = recipe.sections["hindsight"], writer_of(build, acting, reflector_lm)
            with closing(HindsightTexts(envs, settings, rl_seed, reward, writer)) as supplement:
                rollouts = hindsight_rollouts(acting, envs, config, supplement)
                train_online(rollouts, config, rl_seed, note, build.learner)
        else:
            rollouts = EpisodeRollouts(acting, None, envs, config, rl_seed)
            train_online(rollouts, config, rl_seed, note, build.learner)
    write_folder(build.out, partial(lm.save, artifact=build.name, seed=seed))
    drop_state(build.learner)


def writer_of(build: Build, policy: Policy, reflector_lm: LanguageModel | None) -> Writer | None:
    """Return the model that writes the texts of a run; None for texts that need none."""
    from reflectrl.runs.players import make_reflector

    recipe = build.recipe
    if reflector_lm is not None:
        greedy = replace(recipe, play=replace(recipe.play, reflection_temperature=0.0))
        return partial(reflector_texts, make_reflector(greedy, reflector_lm))
    if recipe.sections["hindsight"].text == "endpoint":
        return endpoint_writer(build, policy)
    return None


def endpoint_writer(build: Build, policy: Policy) -> Writer:
    """Return the model of [endpoint] as the writer of a run's texts, and print how many requests it may take."""
    from reflectrl.core.envs import make
    from reflectrl.core.terminal import console
    from reflectrl.serving.endpoints.config import endpoint_settings, teacher_settings
    from reflectrl.serving.endpoints.contestants import asked_by

    recipe = build.recipe
    endpoint = asked_by(endpoint_settings(recipe), recipe, build.context.run.path)
    with closing(make(recipe.env)) as env:
        most = recipe.rl.updates * (1 + recipe.rl.refills) * recipe.rl.episodes * env.horizon
    console(120).print(f"texts in hindsight by {endpoint.where}: at most {most} requests", soft_wrap=True)
    return partial(endpoint_texts, endpoint, teacher_settings(recipe), policy)


def planned_with_texts(name: str, reward: bool, plan: Plan) -> Artifact:
    """Plan the SFT policy of a pair, whatever writes the texts, and the training.

    Only the text "reflector" has the reflector as an input, so that work with other texts keeps its fingerprint.

    Raises:
        UserError: as in `planned`, or [endpoint] names no model to ask.
    """
    text, more = plan.recipe.sections["hindsight"].text, dict[str, Any]()
    if text == "reflector":
        more["reflector"] = reflector(plan)
    elif text == "endpoint":
        more["settings"] = endpoint_keys(plan.recipe)
    return planned(taught_in_hindsight, name, plan, reward=reward, **more)


def endpoint_keys(recipe: Recipe) -> tuple[str, ...]:
    """Return the keys on which texts of an endpoint depend.

    Raises:
        UserError: [endpoint] names no model to ask.
    """
    from reflectrl.serving.endpoints.config import ASKED, endpoint_settings, require_address

    require_address(endpoint_settings(recipe), "endpoint")
    asked = [f"endpoint.{key}" for key in ASKED]
    return (*asked, "teacher.history", "teacher.longest", "teacher.max_tokens")


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
        partial(planned_with_texts, "hindsight", True),
    ),
    "hindsight-only": Arm(
        "SFT, then texts in hindsight instead of RL, without a reflector",
        partial(planned_with_texts, "hindsight-only", False),
    ),
    "no-hindsight": Arm(
        "SFT + RL from the same policy as hindsight, without any texts",
        partial(planned, taught_by_reward, "no-hindsight"),
    ),
}
