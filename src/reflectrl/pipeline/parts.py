"""Making one part of a run: teaching episodes, a base model, an SFT player, an RL policy.

A part is a unit of work that one process does from files to files, so parts can be done side by side and a killed run
loses at most the part's last moments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from reflectrl.config import Recipe
from reflectrl.envs import make
from reflectrl.envs.pool import EnvPool
from reflectrl.episodes import EpisodeLog, read_episodes, sft, sft_policy, sft_reflection
from reflectrl.learn.checkpoint import drop_state, write_folder
from reflectrl.learn.examples import Example, choice_examples, reflection_examples
from reflectrl.learn.online import train_online
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.learn.sft import train_sft
from reflectrl.models.labels import candidates
from reflectrl.models.load import LanguageModel, load_model
from reflectrl.models.scratch import save_scratch
from reflectrl.pipeline.arms import ARMS
from reflectrl.pipeline.layout import RunFolder
from reflectrl.pipeline.metrics import MetricsFile
from reflectrl.pipeline.offline import replayed_log
from reflectrl.pipeline.plan import finished_lines, planned_demonstrations, starts_from_reflector
from reflectrl.pipeline.players import base_source, load_pair, make_policy, make_reflector
from reflectrl.pipeline.progress import Tick
from reflectrl.prompts import policy_prompt
from reflectrl.teach import teach
from reflectrl.types import named_seed

TOKENIZER_ROWS = 4000
"""Teaching steps from which a scratch tokenizer is learned; more would not change its merges."""


# ---- teaching ------------------------------------------------------------------------------------------------------


def teach_part(recipe: Recipe, run: RunFolder, seed: int, split: str, tick: Tick) -> None:
    """Write the teaching episodes of a split; a log that was begun is continued."""
    env = make(recipe.env)
    path = run.teach(seed, split)
    planned = planned_demonstrations(recipe, env, seed, split)
    path.parent.mkdir(parents=True, exist_ok=True)
    done = finished_lines(path)
    with EpisodeLog(path) as log:
        for i, demonstration in islice(enumerate(planned), done, None):
            log.append(teach(env, demonstration, recipe.teach.unsafe_noise))
            tick(i + 1, len(planned), "")


# ---- training ------------------------------------------------------------------------------------------------------


def base_part(recipe: Recipe, run: RunFolder, seed: int, name: str, tick: Tick) -> None:
    """Make the model that players start from: a tokenizer of the training episodes' text, and random weights."""
    texts, choices = _corpus(run.teach(seed, "train"))
    fill = partial(save_scratch, config=recipe.model, texts=texts, choices=choices, seed=named_seed(seed, "init"))
    write_folder(run.checkpoint(seed, "base"), fill)


def _corpus(path: Path) -> tuple[list[str], int]:
    """Texts that the players will read and write, and the largest number of actions among them.

    They are spread over the whole log: tasks stand in the environment's order, so the first episodes are of one kind.
    """
    labels = list(islice(candidates(), 199))
    steps = [step for episode in read_episodes(path) for step in episode.steps]
    choices = max((len(step.observation.actions) for step in steps), default=1)
    texts = []
    for step in steps[:: math.ceil(len(steps) / TOKENIZER_ROWS) or 1]:
        prompt = policy_prompt(step.observation, step.reflection, labels)
        texts.append(f"{prompt.history}{prompt.rest} {labels[step.action % len(labels)]}")
    return texts, choices


def sft_part(recipe: Recipe, run: RunFolder, seed: int, part: str, tick: Tick) -> None:
    """Fine-tune one player: "reflector", "policy", "plain" (a policy without reflections), or "...-positive"."""
    kind = part.removesuffix("-positive")
    adapter = "reflector" if kind == "reflector" else "policy"
    source: str | Path = base_source(recipe, run, seed)
    if starts_from_reflector(recipe, part):
        source = run.checkpoint(seed, part.replace("policy", "reflector"))
    lm = load_model(source, recipe.model, adapter, named_seed(seed, part))
    negatives = recipe.sft.negatives and not part.endswith("-positive")
    train, validation = (
        _sft_examples(recipe, lm, kind, run.teach(seed, split), negatives, seed) for split in ("train", "validation")
    )
    budget = recipe.sft_budget(kind)
    name = {"reflector": "sft_reflection", "policy": "sft_policy", "plain": "sft"}[kind]
    learner = run.learner(seed, part)
    shared = {"part": name, "seed": seed, "arm": None, "of": part}
    last: dict[str, float] = {}
    tick(0, budget.steps, "")
    with MetricsFile(run.part_metrics(seed, part), learner, shared) as log:

        def note(metrics: dict[str, float]) -> None:
            log.write(metrics)
            last.update(metrics)
            tick(int(metrics["step"]), budget.steps, f"evaluation loss {metrics['eval_loss']:.4f}")

        train_sft(lm, train, validation, budget, named_seed(seed, part), note, learner)
    if last.get("step", budget.steps) < budget.steps:
        tick(budget.steps, budget.steps, f"stopped early, after {last['step']:.0f}")
    write_folder(run.checkpoint(seed, part), partial(lm.save, part=part, seed=seed))
    drop_state(learner)


def _sft_examples(
    recipe: Recipe, lm: LanguageModel, kind: str, path: Path, negatives: bool, seed: int
) -> Sequence[Example]:
    if kind == "reflector":
        return reflection_examples(lm, sft_reflection(read_episodes(path), negatives))
    view = sft if kind == "plain" else sft_policy
    return choice_examples(make_policy(recipe, lm), view(read_episodes(path), negatives), seed)


def rl_part(recipe: Recipe, run: RunFolder, seed: int, name: str, tick: Tick) -> None:
    """Online RL of one arm's policy."""
    part = f"rl-{name}"
    arm = ARMS[name]
    policy_lm, reflector_lm = load_pair(recipe, run, seed, arm, None)
    policy = make_policy(recipe, policy_lm)
    reflector = make_reflector(recipe, reflector_lm) if reflector_lm is not None else None
    learner = run.learner(seed, part)
    with MetricsFile(run.part_metrics(seed, part), learner, {"part": "rl", "seed": seed, "arm": name}) as log:

        def note(metrics: dict[str, Any]) -> None:
            log.write(metrics)
            judged = metrics.get("eval_success")
            tick(metrics["step"], recipe.rl.updates, "" if judged is None else f"validation {judged:.0%}")

        with EnvPool(partial(make, recipe.env), recipe.env_workers) as envs:
            logged = replayed_log(recipe, run, seed, arm)
            rl_seed = named_seed(seed, part)
            rollouts = EpisodeRollouts(policy, reflector, envs, recipe.rl, rl_seed, logged)
            train_online(rollouts, recipe.rl, rl_seed, note, learner)
    write_folder(run.checkpoint(seed, part), partial(policy.lm.save, part=part, seed=seed))
    drop_state(learner)
