"""Builders of artifacts, from files to files: episodes of a teacher or at random, a base model, trained players."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from reflectrl.core.config import Recipe
from reflectrl.core.distributed import on_all_ranks
from reflectrl.core.envs import make
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.envs.pool import EnvPool
from reflectrl.core.episodes import (
    EpisodeLog,
    drop_reflections,
    read_episodes,
    sft_policy,
    sft_reflection,
    to_line,
    with_reflections,
    without_reflections,
)
from reflectrl.core.episodes import sft as sft_plain
from reflectrl.learn.checkpoint import drop_state, write_folder, write_text
from reflectrl.learn.examples import Example, choice_examples, reflection_examples
from reflectrl.learn.online import train_online
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.learn.sft import train_sft
from reflectrl.learn.signal import doubt_about_success, most_actions, signal_of, ways_out
from reflectrl.learn.signal import random_play as play_at_random
from reflectrl.learn.trainer import Log, Verdict
from reflectrl.learn.validation import evenly
from reflectrl.models.labels import candidates, require_labels
from reflectrl.models.load import LanguageModel, load_model
from reflectrl.models.scratch import save_scratch
from reflectrl.runs.arms import BASE, SFT, chosen, model
from reflectrl.runs.artifacts import Artifact
from reflectrl.runs.demonstrations import demonstrated, finished_lines, sample_outcomes
from reflectrl.runs.evaluation import is_labelled
from reflectrl.runs.folder import Context, RunFolder
from reflectrl.runs.metrics import MetricsFile
from reflectrl.runs.players import base_source, instructed, load_pair, make_policy, make_reflector
from reflectrl.runs.progress import Tick
from reflectrl.runs.workers import function
from reflectrl.core.prompts import policy_prompt
from reflectrl.core.prompts.chat import Role
from reflectrl.core.teach import Demonstration, demonstrations, teach
from reflectrl.core.types import Episode, UserError, named_seed

LOG = logging.getLogger(__name__)
TOKENIZER_ROWS = 4000
"""Number of steps whose text trains a scratch tokenizer. More would not change its merges."""


# ---- teaching ------------------------------------------------------------------------------------------------------


def teaching(context: Context, artifact: Artifact, tick: Tick) -> None:
    """Builder: write the teaching episodes of a split. An unfinished log is continued."""
    recipe, seed, split = context.recipe, artifact.seed, artifact.name
    env, path = make(recipe.env), context.run.teach(seed, split)
    planned = planned_demonstrations(recipe, env, seed, split)
    path.parent.mkdir(parents=True, exist_ok=True)
    done, labelled = finished_lines(path), is_labelled(recipe)
    with EpisodeLog(path) as log:
        for i, one in islice(enumerate(planned), done, None):
            episode = one if isinstance(one, Episode) else teach(env, one, recipe.teach.unsafe_noise)
            if labelled:
                require_labels(most_actions([episode]))
            log.append(episode)
            tick(i + 1, len(planned), "")


def remaining_demonstrations(context: Context, artifact: Artifact) -> bool:
    """Tell whether a log of teaching episodes is incomplete."""
    planned = planned_demonstrations(context.recipe, make(context.recipe.env), artifact.seed, artifact.name)
    return finished_lines(context.run.teach(artifact.seed, artifact.name)) < len(planned)


def planned_demonstrations(recipe: Recipe, env: TextEnv, seed: int, split: str) -> Sequence[Demonstration | Episode]:
    """Return the teaching episodes of a split, in order: the teacher's plans, or the recorded episodes themselves."""
    if recipe.teach.by == "log":
        return demonstrated(recipe, env, seed)[split]
    tasks = env.tasks(split)
    most = recipe.teach.tasks if split == "train" else recipe.teach.validation_tasks
    return demonstrations(evenly(tasks, most or len(tasks)), recipe.teach, seed)


def random_play(context: Context, artifact: Artifact, tick: Tick) -> None:
    """Builder: play training tasks at random, for about as many steps as are needed to train a tokenizer.

    Raises:
        UserError: random play shows that reward alone can teach nothing, and there is no bonus for novelty either.
    """
    recipe, seed, episodes = context.recipe, artifact.seed, list[Episode]()
    env, labelled = make(recipe.env), is_labelled(recipe)
    tasks = env.tasks("train")
    with EnvPool(partial(make, recipe.env), recipe.env_workers, recipe.engine) as envs:
        for played in play_at_random(tasks, envs, seed, recipe.eval.batch, TOKENIZER_ROWS):
            episodes += played
            if labelled:
                require_labels(most_actions(played))
            tick(len(episodes), max(len(tasks), len(episodes) + 1), "")
    tick(len(episodes), len(episodes), "")
    signal = signal_of(episodes)
    if signal.problem and not (recipe.rl.count_coef and signal.most > 1):
        raise UserError(f"reward alone teaches nothing here: {signal.problem}; {ways_out(signal, env)}")
    if doubt := doubt_about_success(signal, env):
        LOG.warning("reflectrl: %s", doubt)
    path = context.run.random_play(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{to_line(episode)}\n" for episode in episodes))


# ---- training ------------------------------------------------------------------------------------------------------


def base(context: Context, artifact: Artifact, tick: Tick) -> None:
    """Builder: make the model that players start from, with a tokenizer of the episodes' text and random weights."""
    seed, taught = artifact.seed, context.run.teach(artifact.seed, "train")
    texts, choices = _corpus(taught if has_teaching(artifact) else context.run.random_play(seed))
    if context.recipe.teach.reflections == "outcomes":
        texts += sample_outcomes(context.recipe, taught)
    config, init = context.recipe.model, named_seed(seed, "init")
    made: list[int] = []

    def fill(folder: Path) -> None:
        written = context.recipe.play.reflection_tokens
        made.append(save_scratch(folder, config, texts, choices, init, written))

    write_folder(context.run.checkpoint(seed, BASE), fill)
    tick(1, 1, f"labels for {choices} actions, a context of {made[0]} tokens")


def has_teaching(artifact: Artifact) -> bool:
    """Tell whether an artifact is made from teaching episodes."""
    return any(key.startswith("teach ") for key in artifact.inputs)


def _corpus(path: Path) -> tuple[list[str], int]:
    """Return texts that the players will read and write, and the largest number of actions in a step.

    They are taken from the whole log, since its tasks are in the environment's order and the first ones are all alike.
    """
    labels = list(islice(candidates(), 199))
    episodes = list(read_episodes(path))
    steps, choices = [step for episode in episodes for step in episode.steps], most_actions(episodes)
    texts = []
    for step in steps[:: math.ceil(len(steps) / TOKENIZER_ROWS) or 1]:
        prompt = policy_prompt(step.observation, step.reflection, labels)
        texts.append(f"{prompt.history}{prompt.rest} {labels[step.action % len(labels)]}")
    return texts, choices


@on_all_ranks
def sft(context: Context, artifact: Artifact, tick: Tick) -> None:
    """Builder: fine-tune one player of `MODELS`: a reflector, a policy, or a policy that reads no reflections."""
    recipe, run, seed, name = context.recipe, context.run, artifact.seed, artifact.name
    row = model(name)
    assert isinstance(row, SFT)
    adapter: Role = "reflector" if row.player == "reflector" else "policy"
    source: str | Path = base_source(recipe, run, seed, adapter)
    if row.reflector and recipe.sft.policy_from == "reflector":
        source = run.checkpoint(seed, row.reflector)
    lm = instructed(recipe, load_model(source, recipe.model, adapter, named_seed(seed, name)), adapter)
    negatives = recipe.sft.negatives and row.negatives
    train, validation = (
        _sft_examples(recipe, lm, row.player, taught_episodes(recipe, run, row, seed, split), negatives, seed)
        for split in ("train", "validation")
    )
    budget = recipe.sft_budget(row.player)
    learner = run.learner(seed, name)
    kind = {"reflector": "sft_reflection", "policy": "sft_policy", "plain": "sft"}[row.player]
    last: dict[str, float] = {}
    tick(0, budget.steps, "")
    with MetricsFile(
        run.metrics(seed, name), learner, {"kind": kind, "seed": seed, "arm": None, "artifact": name}
    ) as log:

        def note(metrics: dict[str, float]) -> Verdict:
            verdict = log.write(metrics)
            last.update(metrics)
            tick(int(metrics["step"]), budget.steps, f"evaluation loss {metrics['eval_loss']:.4f}")
            return verdict

        train_sft(lm, train, validation, budget, named_seed(seed, name), note, learner)
    if last.get("step", budget.steps) < budget.steps:
        tick(budget.steps, budget.steps, f"stopped early, after {last['step']:.0f}")
    write_folder(run.checkpoint(seed, name), lm.saver(artifact=name, seed=seed))
    drop_state(learner)


def taught_episodes(recipe: Recipe, run: RunFolder, row: SFT, seed: int, split: str) -> Path:
    """Return the log on which a player is fine-tuned.

    Players that read reflections may learn from the log of outcomes.
    """
    if row.log and split == "train":
        return run.path / "episodes" / f"{row.log}-seed{seed}-{split}.jsonl"
    reads = row.player != "plain" and recipe.teach.reflections == "outcomes"
    return run.outcomes(seed, split) if reads else run.teach(seed, split)


def _sft_examples(
    recipe: Recipe, lm: LanguageModel, player: str, path: Path, negatives: bool, seed: int
) -> Sequence[Example]:
    if player == "reflector":
        return reflection_examples(lm, sft_reflection(read_episodes(path), negatives))
    view = sft_plain if player == "plain" else sft_policy
    rows = view(read_episodes(path), negatives)
    if recipe.sft.reflection_dropout:
        rows = drop_reflections(rows, recipe.sft.reflection_dropout, seed)
    return choice_examples(make_policy(recipe, lm), rows, seed)


@on_all_ranks
def online(context: Context, artifact: Artifact, tick: Tick) -> None:
    """Builder: online RL of an arm's policy, with the arm's own settings of [rl] if it has any."""
    recipe, run, seed, arm = context.recipe, context.run, artifact.seed, chosen([artifact.name])[artifact.name]
    name = f"rl-{artifact.name}"
    config = replace(recipe.rl, **(arm.rl or {}))
    policy_lm, reflector_lm = load_pair(recipe, run, seed, arm, arm.policy)
    policy = make_policy(recipe, policy_lm)
    reflector = make_reflector(recipe, reflector_lm) if reflector_lm is not None else None
    seen = with_reflections if arm.reflector else without_reflections  # of the log, as this arm would have seen it
    logged = list(seen(read_episodes(run.log(seed)))) if config.replay_log else []
    # Another run of this folder may have left teaching episodes there. They are read only if the plan lists them, since
    # only then the fingerprint depends on them.
    shows_wins = config.reverse and has_teaching(artifact)
    shown = [one for one in read_episodes(run.teach(seed, "train")) if one.success] if shows_wins else []
    learner, rl_seed = run.learner(seed, name), named_seed(seed, name)
    with (
        EnvPool(partial(make, recipe.env), recipe.env_workers, recipe.engine) as envs,
        metrics_log(context, artifact, name, config.updates, tick) as note,
    ):
        collecting = rollouts_of(context, artifact)
        rollouts = collecting(policy, reflector, envs, config, rl_seed, logged, shown)
        train_online(rollouts, config, rl_seed, note, learner)
    write_folder(run.checkpoint(seed, name), policy.lm.saver(artifact=name, seed=seed))
    drop_state(learner)


@contextmanager
def metrics_log(context: Context, artifact: Artifact, name: str, last: int, tick: Tick) -> Iterator[Log]:
    """Yield a function that logs the metrics of an arm's training by reward, and the time between evaluations.

    Args:
        name: of the training.
        last: its last update.
    """
    run, seed = context.run, artifact.seed
    shared = {"kind": "rl", "seed": seed, "arm": artifact.name}
    with MetricsFile(run.metrics(seed, name), run.learner(seed, name), shared) as log, run.timings.open("a") as times:
        spent = time.perf_counter()

        def note(metrics: dict[str, Any]) -> Verdict:
            nonlocal spent
            verdict = log.write(metrics)
            success = metrics.get("eval_success")
            if success is not None:  # how long it took since the last time: the report draws success over minutes
                since, spent = spent, time.perf_counter()
                line = {**shared, "step": metrics["step"], "seconds": round(spent - since, 3)}
                print(json.dumps(line), file=times, flush=True)
            tick(metrics["step"], last, "" if success is None else f"validation {success:.0%}")
            return verdict

        yield note


def rollouts_of(context: Context, artifact: Artifact) -> Callable[..., EpisodeRollouts]:
    """Return the class that collects episodes for online RL: `EpisodeRollouts`, or the class that a section names."""
    for section in context.recipe.sections.values():
        if place := getattr(section, "rollouts", ""):
            return partial(function(place), context, artifact)
    return EpisodeRollouts
