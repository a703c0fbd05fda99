"""Arms that learn from texts in hindsight: their settings, the section [hindsight], their models and the builder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from reflectrl.core.config.rules import Count, Natural, NonNegative
from reflectrl.core.types import UserError, named_seed
from reflectrl.runs.arms import PLAYED, Arm, chosen
from reflectrl.runs.graph import Plan

if TYPE_CHECKING:
    from reflectrl.core.config import Recipe
    from reflectrl.runs.artifacts import Artifact
    from reflectrl.runs.folder import Context
    from reflectrl.runs.progress import Tick


@dataclass(frozen=True)
class HindsightConfig:
    """Reflection in hindsight, in the arms "hindsight" and "hindsight-only" ([hindsight.md](hindsight.md)). Settings of
    episodes, advantages and evaluation stand in [rl].
    """

    text: Literal["analyst", "continuations", "outcome", "observation"] = "analyst"
    """Text that the teacher reads. "analyst": the environment's analysis of the state. "continuations": how often each
    action won when the policy tried it and played on, which needs no expert. "outcome": the action taken and how the
    episode ended. "observation": the action taken and the next observation."""
    gate: Literal["all", "agree", "lost"] = "agree"
    """Steps that learn from their text. "all": every step. "agree": steps in which the text moves the probability of
    the action taken in the direction of its advantage. "lost": steps of lost episodes."""
    coef: NonNegative = 1.0
    """Weight of the divergence between the policy with and without the text, in the loss."""
    continuations: Count = 2
    """Number of times that each action is tried in a state ("continuations")."""
    actions: Natural = 4
    """Largest number of actions tried in a state: the one taken, and the most probable ones. 0 tries all."""


def hindsight_settings(recipe: Recipe) -> HindsightConfig:
    """Return the section [hindsight] of a recipe."""
    settings: HindsightConfig = recipe.sections["hindsight"]
    return settings


@dataclass(frozen=True)
class Hindsight:
    """A policy that learns from texts in hindsight.

    Attributes:
        policy: name of the initial policy, which has learned to read reflections.
        reward: learn from reward as well; False learns from the texts alone.
        texts: learn from the texts. False is the control: the same start, episodes and optimiser.
    """

    policy: str = "policy"
    reward: bool = True
    texts: bool = True

    def artifacts(self, plan: Plan, name: str) -> list[str]:
        """Plan the initial policy and the training; return the training's key.

        Raises:
            UserError: `rl.reverse` is set. Episodes that begin part-way into others cannot be played again from the
                start.
        """
        if plan.recipe.rl.reverse:
            raise UserError(f"arm {name!r} plays whole episodes again to write about them; set rl.reverse to 0")
        settings = (*PLAYED, "rl", "hindsight") if self.texts else (*PLAYED, "rl")
        build, inputs = "reflectrl.methods.hindsight.arms:train", plan.model(self.policy)
        return [plan.add("hindsight", name, "rl", build, plan.checkpoint(name), inputs, *settings)]


MODELS = {
    "hindsight": Hindsight(),
    "hindsight-only": Hindsight(reward=False),
    "no-hindsight": Hindsight(texts=False),
}
ARMS = {
    "hindsight": Arm("SFT + RL without a reflector; texts in hindsight teach as well", "hindsight"),
    "hindsight-only": Arm("SFT, then texts in hindsight instead of RL, without a reflector", "hindsight-only"),
    "no-hindsight": Arm("SFT + RL from the same policy as hindsight, without any texts", "no-hindsight"),
}


def train(context: Context, artifact: Artifact, tick: Tick) -> None:
    """Builder: online RL of the policy, with texts in hindsight unless the arm is the control."""
    from reflectrl.core.envs import make
    from reflectrl.core.envs.pool import EnvPool
    from reflectrl.learn.checkpoint import drop_state, write_folder
    from reflectrl.learn.online import train_online
    from reflectrl.learn.rollouts import EpisodeRollouts
    from reflectrl.methods.hindsight.learn import HindsightRollouts
    from reflectrl.runs.players import load_pair, make_policy
    from reflectrl.runs.training import metrics_log

    recipe, run, seed, name = context.recipe, context.run, artifact.seed, artifact.name
    row, settings = MODELS[name], hindsight_settings(recipe)
    lm, _ = load_pair(recipe, run, seed, replace(chosen([name])[name], policy=row.policy), row.policy)
    config = replace(recipe.rl, replay_log=0)
    # The arms share a seed, so that the texts are the only difference between them.
    learner, rl_seed = run.learner(seed, name), named_seed(seed, "hindsight")
    with (
        EnvPool(partial(make, recipe.env), recipe.env_workers, recipe.engine) as envs,
        metrics_log(context, artifact, name, config.updates, tick) as note,
    ):
        policy = make_policy(recipe, lm)
        rollouts = EpisodeRollouts(policy, None, envs, config, rl_seed)
        if row.texts:
            rollouts = HindsightRollouts(policy, envs, config, settings, rl_seed, row.reward)
        train_online(rollouts, config, rl_seed, note, learner)
    write_folder(run.checkpoint(seed, name), lm.saver(artifact=name, seed=seed))
    drop_state(learner)
