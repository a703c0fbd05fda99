"""Training data of the reflector: an update's reflections as tokens, with the credit of each.

Policy and environment together are the reflector's environment. Its action is a whole reflection, which earns the
episode's return. So `learn/advantages.py` applies, with a critic that reads the reflector's prompt. The critic must not
read the reflection itself, or the credit would cancel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from reflectrl.core.config import RLConfig
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.types import Observation, Reflection, Step
from reflectrl.learn.curriculum import replayed
from reflectrl.learn.examples import Example, passes
from reflectrl.learn.minibatches import compute_advantages
from reflectrl.learn.rollouts import Collected, EpisodeRollouts
from reflectrl.learn.steps import Steps, flatten
from reflectrl.learn.validation import evaluate_policy, evenly
from reflectrl.learn.value import ValueHead
from reflectrl.methods.shared.features import choice_table
from reflectrl.methods.shared.reflecting import ReflectingConfig
from reflectrl.methods.shared.sampled_reflector import SampledReflector, forget
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import Policy, Reflector
from reflectrl.models.sharing import Ids


@dataclass
class Reflections:
    """R reflections that were drawn in play.

    Attributes:
        rows: prompt and reflection as tokens, with end-of-text if it was drawn.
        old_logp: log-probabilities of each reflection's tokens when it was drawn.
        advantages_R: advantages, not yet normalised.
        returns_R: the critic's targets, its lambda-returns; without a critic the discounted rewards-to-go.
        minibatches: for each optimiser step of an epoch, the slices of reflections that share a forward pass.
        metrics: further metrics of the reflections.
    """

    rows: list[Example]
    old_logp: list[tuple[float, ...]]
    advantages_R: Tensor
    returns_R: Tensor
    minibatches: list[list[list[int]]]
    metrics: dict[str, float]


class ReflectionRollouts(EpisodeRollouts):
    """Episodes with sampled reflections, and the training data that they give the reflector.

    Args:
        policy: reads the reflections and samples actions at `config.temperature`.
        speaker: the reflector that learns, with the sampling of evaluation. In play it samples at
            `settings.temperature`.
        both: True if the policy learns as well. Otherwise no training data is computed for it.

    Attributes:
        reflector_reference: frozen reference model of the reflector's KL penalty; None if `settings.kl_coef` is 0.
    """

    def __init__(
        self,
        policy: Policy,
        speaker: Reflector,
        make_env: Callable[[], TextEnv],
        config: RLConfig,
        settings: ReflectingConfig,
        seed: int,
        both: bool = False,
    ) -> None:
        self.drawing = SampledReflector(speaker, settings.temperature)
        own = config if both else replace(config, baseline="none")
        super().__init__(policy, self.drawing, make_env, own, seed)
        self.speaker, self.settings, self.baseline_config = speaker, settings, config
        name = "reflector_reference"
        self.reflector_reference = speaker.lm.frozen_copy(name) if settings.kl_coef else None

    def evaluate(self) -> dict[str, float]:
        forget(self.speaker)
        tasks = evenly(self.env.tasks("validation"), self.config.eval_episodes)
        return evaluate_policy(self.policy, self.speaker, self.make_env, tasks, self.config.eval_sampling, self.seed)

    def play(self, update: int) -> Collected:
        forget(self.drawing)
        return super().play(update)

    @torch.no_grad()
    def reflections(self, critic: ValueHead | None) -> Reflections:
        """Return the reflections of the latest episodes, with advantages under the current critic and policy.

        Args:
            critic: critic of the reflector; None if `config.baseline` does not need one.
        """
        config, lm, latest = self.config, self.drawing.lm, self.latest
        steps = flatten(self.policy, latest.learned, config.gamma, self.shaping)
        played: list[Step] = []
        for episode in latest.learned:
            played += episode.steps[replayed(episode) :]
        prompts = reflector_prompts(self.drawing, played)
        values_N = None
        if critic is not None:
            values_N = critic_values(lm, critic, prompts, config.minibatch)
        baseline = latest.baseline(latest.learned)
        advantages_N = compute_advantages(steps, self.baseline_config, baseline, values_N)
        targets_N = steps.returns_N if values_N is None else values_N + advantages_N
        if self.settings.signal == "choice":
            advantages_N = choice_gains(self.policy, played, steps, advantages_N)
        turns = {n: turn for n, step in enumerate(played) if (turn := reflection_of(step)) is not None}
        rows = [Example((*prompts[n], *turn.token_ids), len(prompts[n])) for n, turn in turns.items()]
        texts, step_R = [turn.text for turn in turns.values()], torch.tensor(list(turns), dtype=torch.long)
        metrics = {
            "reflections": float(len(rows)),
            "distinct_reflections": float(len(set(texts))),
            "reflection_length": float(np.mean([len(row.ids) - row.start for row in rows])) if rows else 0.0,
        }
        old = [turn.logprobs for turn in turns.values()]
        minibatches = assign_reflections(lm, rows, config, latest.rng)
        return Reflections(rows, old, advantages_N[step_R], targets_N[step_R], minibatches, metrics)

    def end_update(self) -> dict[str, float]:
        self.drawing.clear_cache()
        return super().end_update()


def reflection_of(step: Step) -> Reflection | None:
    """Return the turn in which a reflection was drawn at a step, or None."""
    return next((turn for turn in step.turns if isinstance(turn, Reflection) and turn.token_ids), None)


def reflector_prompts(reflector: Reflector, steps: Sequence[Step]) -> list[Ids]:
    """Return the reflector's prompt at each step, as token ids.

    At a step with a reflection, this is the prompt that it read. A critic needs the prompts of the other steps, too.
    """
    prompts: dict[Observation, Ids] = {}
    for step in steps:
        turn = reflection_of(step)
        if turn is not None and turn.prompt_ids:
            prompts[step.observation] = turn.prompt_ids
    for step in steps:
        if step.observation not in prompts:
            prompts[step.observation] = reflector.prompt(step.observation)
    return [prompts[step.observation] for step in steps]


def critic_values(lm: LanguageModel, critic: ValueHead, prompts: Sequence[Ids], most: int) -> Tensor:
    """Return a critic's values at the end of each prompt, (N,). A pass reads at most `most` distinct prompts."""
    distinct = sorted(set(prompts))
    parts = passes(lm, distinct, [1] * len(distinct), most)
    values = torch.cat([critic(lm.backend.read(distinct[part])).cpu() for part in parts]).tolist()
    value_of = dict(zip(distinct, values, strict=True))
    return torch.tensor([value_of[ids] for ids in prompts])


def assign_reflections(
    lm: LanguageModel, rows: Sequence[Example], config: RLConfig, rng: np.random.Generator
) -> list[list[list[int]]]:
    """Assign reflections at random to `config.steps_per_epoch` minibatches, and split each into slices for one pass.

    Within a minibatch, reflections with equal prompts are neighbours, so that the shared prompt is encoded once.
    """
    minibatches, count = [], max(1, min(config.steps_per_epoch, len(rows)))
    for share_R in np.array_split(rng.permutation(len(rows)), count):
        part = sorted(share_R.tolist(), key=lambda r: rows[r].ids)
        scored = [len(rows[r].ids) - rows[r].start for r in part]
        slices = passes(lm, [rows[r].ids for r in part], scored, config.minibatch)
        minibatches.append([part[cut] for cut in slices])
    return minibatches


def choice_gains(policy: Policy, played: Sequence[Step], steps: Steps, advantages_N: Tensor) -> Tensor:
    """Return, for each reflection, its gain in log-probability of the better action minus the mean gain, (N,).

    The gain of a reflection is log pi(a* | s, reflection) − log pi(a* | s) under the current policy. The better action
    a* of a state has the largest mean advantage over all steps with an equal observation, if that mean is above 0.
    Where no action turned out better than expected, the result is 0.
    """
    best = better_actions(played, advantages_N)
    compared = [n for n, step in enumerate(played) if step.observation in best and step.reflection is not None]
    if not compared:
        return torch.zeros_like(advantages_N)
    labels, questions = [], []
    for n in compared:
        step, action = played[n], best[played[n].observation]
        order = step.choice.order if step.choice is not None else ()
        labels.append(order.index(action) if order else action)
        questions.append((policy.prompt(step.observation, None, order), step.observation.actions))
    width = max(len(actions) for _, actions in questions)
    with_reflection = choice_table(policy, [(steps.prompts[n], steps.actions[n]) for n in compared], width)
    without = choice_table(policy, questions, width)
    gains = (with_reflection - without).gather(1, torch.tensor(labels)[:, None])[:, 0]
    result_N = torch.zeros_like(advantages_N)
    result_N[compared] = (gains - gains.mean()).to(result_N)
    return result_N


def better_actions(played: Sequence[Step], advantages_N: Tensor) -> dict[Observation, int]:
    """Map each observation to its action of largest mean advantage; leave it out if no mean advantage is positive."""
    earned: dict[Observation, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for step, advantage in zip(played, advantages_N.tolist(), strict=True):
        earned[step.observation][step.action].append(advantage)
    best: dict[Observation, int] = {}
    for observation, actions in earned.items():
        means = {action: sum(advantages) / len(advantages) for action, advantages in actions.items()}
        action = max(means, key=lambda a: means[a])
        if means[action] > 0:
            best[observation] = action
    return best
