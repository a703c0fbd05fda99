"""Endpoints in a run: the arms of [players.NAME], the arm "dagger", and the endpoint as teacher."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from reflectrl.core.types import UserError
from reflectrl.runs.arms import Arm, all_arms, base, policy, reflected, reflector
from reflectrl.runs.artifact import PLAYED, Artifact, Build, Plan, Source, artifact
from reflectrl.runs.stages import fine_tuned
from reflectrl.serving.endpoints.config import ASKED, Style, teacher_settings

if TYPE_CHECKING:
    from reflectrl.core.config import Recipe

SHARED = tuple(f"endpoint.{key}" for key in ASKED)
ABOUT: dict[Style, str] = {
    "act": "a model behind an endpoint, which acts",
    "reason": "a model behind an endpoint, which reasons, then acts",
    "react": "a model behind an endpoint: one turn to reflect, one to act",
    "pair": "a model behind an endpoint, which acts on our reflector's words",
    "reflector": "our policy after SFT, with reflections of a model behind an endpoint",
    "reflect-rl": "our policy after SFT + RL, both with reflections of a model behind an endpoint",
    "cascade": "our policy and reflector after SFT; where the policy is not sure, a model behind an endpoint acts",
}


# ---- teaching ------------------------------------------------------------------------------------------------------


@artifact("teach", "teach", "episodes/teach-seed{seed}-{name}.jsonl", settings=("env", "teach", "teacher", *SHARED))
def endpoint_episodes(build: Build) -> None:
    """Write the teaching episodes of a split (the artifact's name), with an endpoint as teacher."""
    from reflectrl.serving.endpoints.lessons import write_teaching  # brings torch, which a dry run does without

    write_teaching(build)


@endpoint_episodes.continued_while
def lacks_teaching(build: Build) -> bool:
    """Return whether a log lacks teaching episodes, or has no step to learn from."""
    from reflectrl.serving.endpoints.lessons import remaining_teaching

    return remaining_teaching(build)


def teaching(plan: Plan, split: str) -> Artifact:
    """Plan the teaching episodes of a split that an endpoint writes."""
    files = plan.recipe.teach.log if teacher_settings(plan.recipe).ask == "log" else ()
    return endpoint_episodes(plan, split, files=files)


# ---- DAgger --------------------------------------------------------------------------------------------------------


@artifact("dagger", "sft", "episodes/{log}-seed{seed}-train.jsonl", settings=(*PLAYED, "teach"))
def student_walks(
    build: Build, *, teaching: Path, policy: Source, reflector: Source, earlier: Path | None, log: str
) -> None:
    """Let the student play, and let the teacher label the states that it meets (DAgger, Ross et al. 2011).

    Args:
        teaching: the teaching episodes.
        policy: the student's policy.
        reflector: the student's reflector.
        earlier: the log of the round before; None in the first round, whose log begins with the teaching episodes.
        log: name of the log.
    """
    from reflectrl.serving.endpoints.lessons import write_walks

    write_walks(build, log, earlier or teaching, policy, reflector)


ROUNDS = {"dagger": "train", "dagger-2": "2", "dagger-3": "3", "dagger-4": "4"}
"""Name of a round's arm and of its log → name of the round in the graph. The models of a round play in the next one;
fine-tuning always starts from the base model."""


def aggregated(player: str, arm: str, plan: Plan) -> Artifact:
    """Plan a model fine-tuned on the teaching episodes and on the teacher's labels of the student's own states.

    Args:
        player: its role: "policy" or "reflector".
        arm: the round.
    """
    before = list(ROUNDS)[list(ROUNDS).index(arm) - 1] if arm != "dagger" else ""
    episodes = reflected(plan, "train")
    acting = aggregated("policy", before, plan) if before else policy(plan)
    speaking = aggregated("reflector", before, plan) if before else reflector(plan)
    walks = student_walks(
        plan,
        ROUNDS[arm],
        teaching=episodes,
        policy=acting,
        reflector=speaking,
        earlier=acting.given("train") if before else None,
        log=arm,
        settings=(*SHARED, "teacher") if plan.recipe.teach.by == "endpoint" else ("teacher",),
    )
    start, validation = base(plan), reflected(plan, "validation")
    return fine_tuned(plan, f"{arm}-{player}", start=start, train=walks, validation=validation, player=player)


def _round(arm: str, about: str) -> Arm:
    return Arm(about, partial(aggregated, "policy", arm), partial(aggregated, "reflector", arm))


ARMS = {
    "dagger": _round("dagger", "SFT, then SFT again with the student's own episodes, labelled by the teacher"),
    "dagger-2": _round("dagger-2", "dagger, once more"),
    "dagger-3": _round("dagger-3", "dagger-2, once more"),
    "dagger-4": _round("dagger-4", "dagger-3, once more"),
}


# ---- players behind endpoints --------------------------------------------------------------------------------------


def arms_of(recipe: Recipe) -> dict[str, Arm]:
    """Return an arm for each [players.NAME].

    Raises:
        UserError: another arm has that name.
    """
    taken = all_arms()  # without a recipe, since its own arms come from this function
    for name in recipe.sections["players"]:
        if name in taken:
            raise UserError(f"players.{name}: {name!r} is already the name of an arm; give the player another name")
    return {name: _arm(recipe, name) for name in recipe.sections["players"]}


def _arm(recipe: Recipe, name: str) -> Arm:
    table, shared = recipe.sections["players"][name], recipe.sections["endpoint"]
    style: Style = table.get("style", "act")
    host = urlsplit(table.get("base_url", shared.base_url)).hostname  # without the query, which may hold a key
    here = table.get("local") or ("" if {"base_url", "model"} & set(table) else shared.local)
    model_at_host = here or f"{table.get('model', shared.model)} at {host}"
    settings = (*SHARED, *(f"players.{name}.{key}" for key in (*ASKED, "style", "max_tokens", "history")))
    if table.get("refused", shared.refused) != "lost":  # so that runs of earlier versions are still complete
        settings = (*settings, "endpoint.refused", f"players.{name}.refused")
    if style == "reflector":
        return Arm(ABOUT[style], policy, players=contestants, settings=settings, asked=model_at_host)
    if style == "reflect-rl":
        return Arm(ABOUT[style], policy, rl={}, players=contestants, settings=settings, asked=model_at_host)
    if style == "cascade":
        settings = (*settings, f"players.{name}.defer_below", "play", "model")
        return Arm(ABOUT[style], policy, reflector, players=contestants, settings=settings, asked=model_at_host)
    settings = (*settings, "play", "model") if style == "pair" else settings
    model = reflector if style == "pair" else None
    return Arm(
        ABOUT[style], reflector=model, player="endpoint", players=contestants, settings=settings, asked=model_at_host
    )


def contestants(*given: Any) -> Any:
    """Return the players of an arm [players.NAME]. Takes the arguments of `Arm.players`."""
    from reflectrl.serving.endpoints.contestants import players

    return players(*given)


HOOKS = {"teaching": teaching}
