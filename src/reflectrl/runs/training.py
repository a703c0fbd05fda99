"""Helpers of several builders: texts for a tokenizer, examples of SFT, the log of a training by reward."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from reflectrl.core.config import Recipe
from reflectrl.core.episodes import drop_reflections, read_episodes, sft_policy, sft_reflection, with_carried
from reflectrl.core.episodes import sft as sft_plain
from reflectrl.core.prompts import policy_prompt
from reflectrl.learn.examples import Example, choice_examples, reflection_examples
from reflectrl.learn.reward_check import most_actions
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.learn.trainer import Log, Verdict
from reflectrl.models.labels import candidates
from reflectrl.models.load import LanguageModel
from reflectrl.runs.artifact import Build
from reflectrl.runs.coach import progress_words
from reflectrl.runs.metrics import MetricsFile
from reflectrl.runs.players import make_policy


def corpus(path: Path, rows: int) -> tuple[list[str], int]:
    """Return texts that the players will read and write, and the largest number of actions in a step.

    They are spread over the whole log, since its tasks are in the environment's order and the first ones are similar.

    Args:
        rows: approximate number of steps to take.
    """
    labels = list(islice(candidates(), 199))
    episodes = list(read_episodes(path))
    steps, choices = [step for episode in episodes for step in episode.steps], most_actions(episodes)
    texts = []
    for step in steps[:: math.ceil(len(steps) / rows) or 1]:
        prompt = policy_prompt(step.observation, step.reflection, labels)
        texts.append(f"{prompt.history}{prompt.rest} {labels[step.action % len(labels)]}")
    return texts, choices


def sft_examples(
    recipe: Recipe, lm: LanguageModel, player: str, path: Path, negatives: bool, seed: int
) -> Sequence[Example]:
    """Return the examples on which a player is fine-tuned, from a log of teaching episodes.

    Args:
        player: its role: "reflector", "policy", or "plain" (a policy that reads no reflections).
        negatives: True to include negative examples.
        seed: seed of the choice of dropped reflections.
    """
    if player == "reflector":
        taught = read_episodes(path)
        if recipe.play.reflection == "carried":
            taught = with_carried(taught)
        written = sft_reflection(taught, negatives)
        if recipe.sft.distinct_reflections:
            written = list(dict.fromkeys(written))
        return reflection_examples(lm, written)
    view = sft_plain if player == "plain" else sft_policy
    rows = view(read_episodes(path), negatives)
    if recipe.sft.reflection_dropout:
        rows = drop_reflections(rows, recipe.sft.reflection_dropout, seed)
    return choice_examples(make_policy(recipe, lm), rows, seed, recipe.sft.auxiliary_coef)


@contextmanager
def metrics_log(build: Build, last: int) -> Iterator[Log]:
    """Yield a function that logs the metrics of an arm's training by reward, and the time between evaluations.

    Args:
        last: the last update.
    """
    shared = {"kind": "rl", "seed": build.seed, "arm": build.name}
    timings = build.context.run.timings
    with MetricsFile(build.metrics, build.learner, shared) as log, timings.open("a") as times:
        spent, busy = time.perf_counter(), time.process_time()

        def note(metrics: dict[str, Any]) -> Verdict:
            nonlocal spent, busy
            verdict = log.write(metrics)
            success = metrics.get("eval_success")
            if success is not None:  # the time since the last evaluation, so that the report can plot success over time
                since, spent = spent, time.perf_counter()
                line = {**shared, "step": metrics["step"], "seconds": round(spent - since, 3)}
                since, busy = busy, time.process_time()
                line["cpu_seconds"] = round(busy - since, 3)
                print(json.dumps(line), file=times, flush=True)
            done, of, limit = metrics["step"], last, build.recipe.rl.minutes
            if limit and "minutes" in metrics:
                done, of = int(100 * min(1.0, metrics["minutes"] / limit)), 100
            build.progress(done, of, progress_words(metrics))
            return verdict

        yield note


def rollouts_of(build: Build) -> Callable[..., EpisodeRollouts]:
    """Return the class that collects episodes for online RL, or the function that a section of the recipe brings."""
    for section in build.recipe.sections.values():
        if getattr(section, "collects", False):
            return partial(section.rollouts, build)
    return EpisodeRollouts
