"""MOReL: models of the environment learn from a log, and the policy learns by RL on the effects that all predict.

Several language models learn from the log to write what follows an action: reward, end, next state, next actions. They
differ in their random weights and in the episodes that they see. An effect that all of them predict alike counts as
known. A policy that imitates the log is then trained by online RL in this world of texts, where an unknown effect ends
the episode at a cost. The environment itself is not played before the evaluation, not even to choose the best weights.

Source: Kidambi et al. 2020, "MOReL: Model-Based Offline Reinforcement Learning" (arXiv 2005.05951). Departures: an
effect is a text, so models agree or not, and there is no threshold of distance; the world is deterministic, since each
model writes its most probable text; the policy gradient is the recipe's [rl] instead of natural policy gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectrl.core.config.rules import Count
from reflectrl.core.types import Episode, Sampling, UserError, named_seed
from reflectrl.methods.offline import load_policy, planned_log, reference
from reflectrl.methods.shared.offline.effects import (
    Effect,
    Scene,
    Table,
    Transition,
    effect_text,
    question,
    read_effect,
    transitions,
)
from reflectrl.runs.arms import Arm, base
from reflectrl.runs.artifact import CHECKPOINT, PLAYED, Artifact, Build, Plan, Source, artifact

if TYPE_CHECKING:  # these bring torch, which a dry run does without
    from reflectrl.core.config import Recipe
    from reflectrl.core.episodes import ReflectionRow
    from reflectrl.models.lm import LanguageModel


@dataclass(frozen=True)
class MorelConfig:
    """Models of the environment, and the world that they make, in the arm "offline-morel" ([offline.md](offline.md)).
    Settings of RL in that world are in [rl], settings of the models' optimiser in [sft].
    """

    models: Count = 4
    """Number of models that have to agree."""
    steps: Count = 1500
    """Optimiser steps of each model."""
    states: Count = 5000
    """Largest number of states whose effects are predicted: first the log's, then states that these lead to."""
    cost: float = -1.0
    """Reward of an action whose effect is unknown, which ends the episode. It should be below any return."""


SECTIONS = {"morel": MorelConfig}
SIDE_BY_SIDE = 32
"""Number of scenes whose effects are predicted at the same time."""
HELD_OUT = 10
"""One in this many episodes of the log is held out, to choose the best weights of models and policy."""


def settings_of(recipe: Recipe) -> MorelConfig:
    """Return the section [morel] of a recipe."""
    section = recipe.sections["morel"]
    assert isinstance(section, MorelConfig)
    return section


# ---- models of the environment ---------------------------------------------------------------------------------------


def divided(log: Path) -> tuple[list[Episode], list[Episode]]:
    """Split the episodes of the log into those to learn from and those held out.

    Raises:
        UserError: the log is too short.
    """
    from reflectrl.core.episodes import read_episodes

    episodes = list(read_episodes(log))
    held_out = episodes[::HELD_OUT]
    if len(episodes) < HELD_OUT:
        raise UserError(f"offline-morel: a log of {len(episodes)} episodes is too short; {HELD_OUT} are needed")
    return [episode for i, episode in enumerate(episodes) if i % HELD_OUT], held_out


def dynamics_row(transition: Transition) -> ReflectionRow:
    """Make a training row of a model: the question, and the effect as its answer."""
    from reflectrl.core.episodes import ReflectionRow
    from reflectrl.core.prompts import Prompt, reflection_completion

    scene, action, effect = transition
    return ReflectionRow(Prompt("", question(scene, action)), reflection_completion(effect_text(effect)))


@artifact("dynamics", "rl", CHECKPOINT, settings=("model", "sft", "morel.steps"))
def dynamics(build: Build, *, log: Path, start: Source, number: int) -> None:
    """Train a model of the environment on a resample of the log's episodes.

    Args:
        log: the log.
        start: the initial model. A scratch model gets its own random weights.
        number: number of the model.
    """
    import numpy as np

    from reflectrl.learn.checkpoint import drop_state, write_folder
    from reflectrl.learn.examples import reflection_examples
    from reflectrl.learn.sft import train_sft
    from reflectrl.models.load import load_model
    from reflectrl.models.scratch import draw_weights
    from reflectrl.runs.metrics import MetricsFile
    from reflectrl.runs.players import model_source

    recipe, seed, name = build.recipe, named_seed(build.seed, build.name), build.name
    lm = load_model(model_source(recipe, start, "policy"), recipe.model, "policy", seed)
    if "scratch" in recipe.model.sources:
        draw_weights(lm.model, seed)
    learned, held_out = divided(log)
    # A bootstrap: models trained on different resamples disagree where the log says little.
    drawn = np.random.default_rng(seed).integers(len(learned), size=len(learned))
    resampled = [learned[i] for i in drawn]
    steps = settings_of(recipe).steps
    shared = {"kind": "dynamics", "seed": build.seed, "arm": None, "artifact": name}
    with MetricsFile(build.metrics, build.learner, shared) as file:

        def note(metrics: dict[str, Any]) -> Any:
            build.progress(int(metrics["step"]), steps, f"evaluation loss {metrics['eval_loss']:.4f}")
            return file.write(metrics)

        train = reflection_examples(lm, [dynamics_row(step) for step in transitions(resampled)])
        validation = reflection_examples(lm, [dynamics_row(step) for step in transitions(held_out)])
        train_sft(lm, train, validation, replace(recipe.sft, steps=steps), seed, note, build.learner)
    write_folder(build.out, lm.saver(artifact=name, seed=build.seed))
    drop_state(build.learner)


# ---- the world that they make ----------------------------------------------------------------------------------------

Predict = Callable[[Sequence[tuple[Scene, str]]], list[Effect | None]]
"""Function that predicts the effects of actions; None if the model's text is not a valid effect."""


def predictor(lm: LanguageModel, longest: int) -> Predict:
    """Return a function that lets a model write effects of at most `longest` tokens."""
    import numpy as np

    from reflectrl.core.prompts import Prompt, tokenize
    from reflectrl.models.generation import DraftModel
    from reflectrl.models.players import sampler

    draft, draw, unused = DraftModel(), sampler(Sampling(0.0)), np.random.default_rng(0)

    def predict(questions: Sequence[tuple[Scene, str]]) -> list[Effect | None]:
        prompts = [tokenize(lm, Prompt("", question(*pair)), reserve=longest) for pair in questions]
        written = lm.backend.write(prompts, longest, draw, [unused] * len(prompts), draft_model=draft)
        texts = [lm.tokenizer.decode(ids, skip_special_tokens=True) for ids, _ in written]
        return [read_effect(text.removeprefix(" ")) for text in texts]

    return predict


def agreed(questions: Sequence[tuple[Scene, str]], models: Sequence[Predict]) -> list[Effect | None]:
    """Return the effects that all models predict alike; None where they differ."""
    effects = list[Effect | None]()
    for first, *others in zip(*(predict(questions) for predict in models), strict=True):
        unanimous = all(other == first for other in others)
        effects.append(first if unanimous else None)
    return effects


def explore(starts: Sequence[Scene], models: Sequence[Predict], most: int, progress: Callable[[int], None]) -> Table:
    """Predict the effects of every action in `starts`, then in the scenes that these lead to, and so on.

    Args:
        most: largest number of scenes.
        progress: receives the number of scenes so far.
    """
    effects = dict[Scene, list[Effect | None]]()
    waiting = dict.fromkeys(starts)
    while waiting and len(effects) < most:
        scenes = list(islice(waiting, min(SIDE_BY_SIDE, most - len(effects))))
        questions = [(scene, action) for scene in scenes for action in scene.actions]
        answers = iter(agreed(questions, models))
        for scene in scenes:
            del waiting[scene]
            effects[scene] = list(islice(answers, len(scene.actions)))
        reached = [effect.scene for scene in scenes for effect in effects[scene] if effect and effect.scene]
        waiting.update(dict.fromkeys(scene for scene in reached if scene not in effects))
        progress(len(effects))
    return Table({}, effects)


@artifact("world", "rl", "episodes/world-seed{seed}.jsonl", settings=("model", "morel.states"))
def world(build: Build, *, log: Path, models: tuple[Path, ...]) -> None:
    """Write the table of the effects that all models predict alike.

    Args:
        log: the log. Its states come first.
        models: the models of the environment.
    """
    from reflectrl.core.prompts import reflection_completion
    from reflectrl.learn.checkpoint import write_text
    from reflectrl.models.load import load_model

    recipe, most = build.recipe, settings_of(build.recipe).states
    lms = [load_model(folder, recipe.model, "policy") for folder in models]
    parts = dict(zip(("train", "validation"), divided(log), strict=True))
    steps = [step for part in parts.values() for step in transitions(part)]
    texts = {reflection_completion(effect_text(step.effect)) for step in steps}
    longest = max(len(lms[0].encode(text)) for text in texts) + 2
    predict = [predictor(lm, longest) for lm in lms]

    def progress(scenes: int) -> None:
        build.progress(scenes, most, f"{scenes} states")

    table = explore([step.scene for step in steps], predict, most, progress)
    for split, episodes in parts.items():
        firsts = (episode.steps[0].observation for episode in episodes)
        table.starts[split] = list(dict.fromkeys(Scene(first.state, tuple(first.actions)) for first in firsts))
    write_text(build.out, "".join(f"{line}\n" for line in table.lines()))
    build.progress(most, most, accuracy_words(table, list(transitions(parts["validation"]))))


def accuracy_words(table: Table, held_out: Sequence[Transition]) -> str:
    """Say how large a world is, and how often it predicts the steps of held-out episodes."""
    right = wrong = 0
    for scene, action, effect in held_out:
        effects = table.effects.get(scene)
        predicted = effects and effects[scene.actions.index(action)]
        if predicted:  # compared as texts, in which rewards are rounded
            same = effect_text(predicted) == effect_text(effect)
            right, wrong = right + same, wrong + (not same)
    is_known = [effect is not None for effects in table.effects.values() for effect in effects]
    return (
        f"{len(table.effects)} states, {sum(is_known) / len(is_known):.0%} of the effects known;"
        f" of {len(held_out)} held-out steps {right / len(held_out):.1%} right, {wrong / len(held_out):.1%} wrong"
    )


# ---- the policy ------------------------------------------------------------------------------------------------------


@artifact("morel", "rl", CHECKPOINT, settings=(*PLAYED, "rl", "morel.cost"))
def learned_in_world(build: Build, *, world: Path, start: Source) -> None:
    """Train a policy by online RL in the world of a table.

    Args:
        world: the table.
        start: the policy that imitates the log.
    """
    from reflectrl.core.envs import make
    from reflectrl.core.envs.pool import EnvPool
    from reflectrl.learn.checkpoint import drop_state, write_folder
    from reflectrl.learn.online import after_imitation, train_online
    from reflectrl.learn.rollouts import EpisodeRollouts
    from reflectrl.methods.shared.offline.world import World
    from reflectrl.runs.training import metrics_log

    recipe, seed = build.recipe, named_seed(build.seed, build.name)
    # Settings that need stages, milestones or wins of the real environment have no meaning in this world.
    config = replace(
        recipe.rl, curriculum="none", milestone_coef=0.0, reverse=0.0, replay_log=0, own_wins=0, self_imitation=False
    )
    hold = config.baseline == "critic" and config.hold > 0
    if hold:
        config = after_imitation(config)
    policy = load_policy(recipe, start, seed)
    play = partial(World, world, make(recipe.env).horizon, settings_of(recipe).cost)
    collecting = replace(config, kl_coef=config.kl_coef + config.hold_kl) if hold else config
    with EnvPool(play) as envs, metrics_log(build, config.updates) as note:
        rollouts = EpisodeRollouts(policy, None, envs, collecting, seed)
        train_online(rollouts, config, seed, note, build.learner, hold)
    write_folder(build.out, policy.lm.saver(artifact=build.name, seed=build.seed))
    drop_state(build.learner)


# ---- the arm ---------------------------------------------------------------------------------------------------------


def morel(plan: Plan) -> Artifact:
    """Plan a policy that learns by RL in what models of the environment agree on."""
    log, count = planned_log(plan), settings_of(plan.recipe).models
    models = tuple(dynamics(plan, f"dynamics-{i}", log=log, start=base(plan), number=i) for i in range(1, count + 1))
    return learned_in_world(
        plan, "offline-morel", world=world(plan, "world", log=log, models=models), start=reference(plan)
    )


ARMS = {"offline-morel": Arm("RL in the world that models learned from the log (MOReL)", morel)}
