"""Arms of a pretrained model without training: with instructions only (zero-shot), or with example steps (few-shot)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from reflectrl.core.config.rules import Count
from reflectrl.core.types import Step, UserError, named_seed
from reflectrl.runs.arms import Arm, base

if TYPE_CHECKING:  # these bring torch, which a dry run does without
    from reflectrl.core.config import Recipe
    from reflectrl.core.prompts.chat import Role
    from reflectrl.models.lm import LanguageModel


@dataclass(frozen=True)
class PretrainedConfig:
    """Settings of the arms `few-shot` and `few-shot-no-reflection`, which prompt an untrained model."""

    shots: Count = 4
    """Number of demonstrated steps in the system prompt."""


SECTIONS = {"pretrained": PretrainedConfig}


def shown_steps(
    recipe: Recipe, episodes: Path, role: Role, lm: LanguageModel, seed: int, reflecting: bool = True
) -> str:
    """Return some demonstrated steps, as the player of a role would have read and answered them.

    Args:
        episodes: the teaching episodes.
        lm: the model that reads them. Its labels name the actions, unless actions are scored by their texts.
        seed: seed of the random draw.
        reflecting: True if the policy reads reflections.

    Raises:
        UserError: no demonstration has a step for this role.
    """
    from reflectrl.core.episodes import read_episodes, with_carried
    from reflectrl.core.prompts import policy_prompt, reflector_prompt, words_prompt
    from reflectrl.runs.players import make_policy

    demonstrated = read_episodes(episodes)
    if recipe.play.reflection == "carried":
        demonstrated = with_carried(demonstrated)
    taught = [step for episode in demonstrated for step in episode.steps if step.label == "positive"]
    usable = [step for step in taught if step.target is not None and (step.reflection or not reflecting)]
    if not usable:
        raise UserError(f"{episodes}: no demonstration has a step to show the {role} as an example")
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


def spread(usable: Sequence[Step], count: int, seed: int) -> list[Step]:
    """Return `count` random steps. Different actions come first, then repeated ones."""
    drawn = random.Random(named_seed(seed, "shots")).sample(usable, len(usable))
    seen, first, later = set[str](), list[Step](), list[Step]()
    for step in drawn:
        action = step.observation.actions[step.target or 0]
        (later if action in seen else first).append(step)
        seen.add(action)
    return [*first, *later][:count]


# ---- the arms --------------------------------------------------------------------------------------------------------


SETTINGS = ("teach", "pretrained")
shown_choices = partial(shown_steps, reflecting=False)
"""Demonstrated steps for a policy that reads no reflections."""

ARMS: dict[str, Arm] = {
    "zero-shot": Arm("the model as it came, in both roles", base, base),
    "zero-shot-no-reflection": Arm("the model as it came, without a reflector", base),
    "few-shot": Arm(
        "the model as it came, in both roles, shown some steps",
        base,
        base,
        shows=shown_steps,
        settings=SETTINGS,
    ),
    "few-shot-no-reflection": Arm(
        "the model as it came, shown some steps, without a reflector",
        base,
        shows=shown_choices,
        settings=SETTINGS,
    ),
}
