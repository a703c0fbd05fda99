"""Demonstrated steps for the system prompt of few-shot arms."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from reflectrl.core.config import Recipe
from reflectrl.core.episodes import read_episodes, with_carried
from reflectrl.core.prompts import policy_prompt, reflector_prompt, words_prompt
from reflectrl.core.prompts.chat import Role
from reflectrl.core.types import Step, UserError, named_seed
from reflectrl.models.lm import LanguageModel
from reflectrl.runs.players import make_policy


def steps(recipe: Recipe, episodes: Path, role: Role, lm: LanguageModel, seed: int, reflecting: bool = True) -> str:
    """Return some demonstrated steps, as the player of a role would have read and answered them.

    Args:
        episodes: the teaching episodes.
        lm: the model that reads them. Its labels name the actions, unless actions are scored by their texts.
        seed: seed of the random draw.
        reflecting: True if the policy reads reflections.

    Raises:
        UserError: no demonstration has a step for this role.
    """
    demonstrated = read_episodes(episodes)
    if recipe.play.reflection == "carried":
        demonstrated = with_carried(demonstrated)
    taught = [step for episode in demonstrated for step in episode.steps if step.label == "positive"]
    usable = [step for step in taught if step.target is not None and (step.reflection or not reflecting)]
    if not usable:
        raise UserError(f"{episodes}: no step there that the {role} could be shown")
    texts = []
    for step in spread(usable, recipe.sections["pretrained"].shots, seed):
        reflection = step.reflection if reflecting else None
        if role == "reflector":
            prompt, answer = reflector_prompt(step.observation), step.reflection
        elif recipe.play.scoring == "enumeration":
            labels = make_policy(recipe, lm).labels(len(step.observation.actions)).texts
            prompt, answer = policy_prompt(step.observation, reflection, labels), labels[step.target or 0]
        else:
            prompt = words_prompt(step.observation, reflection)
            answer = step.observation.actions[step.target or 0]
        texts.append(f"{prompt.history}{prompt.rest} {answer}")
    return "\n\n".join(texts)


choices = partial(steps, reflecting=False)
"""The same for a policy that reads no reflections."""


def spread(usable: Sequence[Step], count: int, seed: int) -> list[Step]:
    """Return `count` random steps. The first ones all show different actions."""
    drawn = random.Random(named_seed(seed, "shots")).sample(usable, len(usable))
    seen, first, later = set[str](), list[Step](), list[Step]()
    for step in drawn:
        action = step.observation.actions[step.target or 0]
        (later if action in seen else first).append(step)
        seen.add(action)
    return [*first, *later][:count]
