"""The plan of a run: the artifacts that its arms need. Packages can add other kinds of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reflectrl.core.config import Recipe
from reflectrl.core.source_code import environment_digest
from reflectrl.core.types import UserError
from reflectrl.runs import stages
from reflectrl.runs.arms import base, installed_modules, planned_evaluation, select_arms, teaching
from reflectrl.runs.artifact import STAGES, Artifact, Graph, Plan, graph_of

if TYPE_CHECKING:  # importing these imports torch, which a dry run does not need
    from reflectrl.runs.folder import Context, RunFolder


@dataclass(frozen=True)
class RunKind:
    """Functions that plan, check and show one kind of run.

    Attributes:
        name: its name in `results.json`; "" for runs in an environment.
        is_for: tells whether a recipe's run is of this kind.
        plan: returns the artifacts of a recipe. Raises UserError for an unknown arm. Must not import torch.
        begin: makes the context for the builders. Raises UserError for problems that the recipe alone does not show.
        show: prints the outcome, after the report is written.
        compare: prints one table of several runs; None where `reflectrl compare` makes a page.
        write_table: writes a table of several runs into a file that ends in .csv or .tex; None where there is none.
    """

    name: str
    is_for: Callable[[Recipe], bool]
    plan: Callable[[Recipe], Graph]
    begin: Callable[[Recipe, RunFolder], Context]
    show: Callable[[Context], None]
    compare: Callable[[Sequence[Path]], None] | None = None
    write_table: Callable[[Sequence[Path], Path], None] | None = None


def run_kinds() -> list[RunKind]:
    """Return the kinds of run that packages add, as RUN_KIND in their modules of arms."""
    return [module.RUN_KIND for module in installed_modules() if hasattr(module, "RUN_KIND")]


def kind_of(recipe: Recipe) -> RunKind:
    """Return the kind of a recipe's run: a package's, or a run in an environment."""
    return next((kind for kind in run_kinds() if kind.is_for(recipe)), ENVIRONMENT)


def planned(recipe: Recipe) -> Graph:
    """Return the artifacts of a recipe. Runs nothing, and imports no torch.

    Raises:
        UserError: the recipe names an unknown arm, or settings contradict each other.
    """
    kind = kind_of(recipe)
    if kind is ENVIRONMENT:  # called by name, so that an editor finds the way from the command to the loss
        return plan_environment(recipe)
    return kind.plan(recipe)


def plan_environment(recipe: Recipe) -> Graph:
    """Plan teaching episodes, models, online RL and evaluations for the recipe's arms, once per seed."""
    arms = select_arms(recipe.arms, recipe)
    if recipe.sft.policy_from == "reflector" and recipe.model.lora_rank:  # adapters start from their backbone
        about = "sft.policy_from is 'reflector'; with model.lora_rank above 0 it must be 'base'"
        raise UserError(f"{about} (or model.lora_rank 0)")
    if recipe.sft.policy_from == "reflector" and len(recipe.model.sources) > 1:
        raise UserError("sft.policy_from is 'reflector'; with a model.policy of its own it must be 'base'")
    models_play = any(arm.plays_model for arm in arms.values())
    is_taught = any(arm.is_taught for arm in arms.values() if arm.plays_model)
    artifacts, evaluations = dict[str, Artifact](), list[Artifact]()
    for seed in recipe.seeds:
        plan = Plan(recipe, seed, is_taught, artifacts)
        # Planned before the arms, so that every run makes these first, and in this order.
        if is_taught:
            teaching(plan, "train")
            teaching(plan, "validation")
        if models_play:
            base(plan)
        evaluations += [planned_evaluation(plan, name, arm) for name, arm in arms.items()]
    plan = Plan(recipe, 0, made=artifacts)
    results = stages.results(plan, recipe.name, evaluations=tuple(evaluations))
    stages.report(plan, recipe.name, results=results)
    return in_order(artifacts.values())


def begin_environment(recipe: Recipe, run: RunFolder) -> Context:
    """Check that environment, models and demonstrations fit the recipe, and that no test task is trained on."""
    from reflectrl.runs.demonstrations import check_log
    from reflectrl.runs.evaluation import check_env
    from reflectrl.runs.folder import Context
    from reflectrl.runs.sources import check_models

    tasks = check_env(recipe)
    if any(arm.plays_model for arm in select_arms(recipe.arms, recipe).values()):
        check_models(recipe)
    check_log(recipe, run)
    return Context(recipe, run, tasks, environment_digest(recipe.env))


def show_arms(context: Context) -> None:
    """Print the table of arms, and one played episode."""
    from reflectrl.core.terminal import console
    from reflectrl.runs.coaching import coach_lines
    from reflectrl.runs.results import show_episode, show_results, training_seconds

    screen = console(120)
    seconds = training_seconds(planned(context.recipe), context.run.path)
    show_results(screen, context.run.path, select_arms(context.recipe.arms, context.recipe), seconds)
    for line in coach_lines(context.recipe, context.run):
        # A terminal would break a long line within a word; in a file it stays one line.
        screen.print(line, soft_wrap=not screen.is_terminal, markup=False, highlight=False)
    show_episode(screen, context.run, context.recipe)


def in_order(artifacts: Iterable[Artifact]) -> Graph:
    """Return artifacts by key, stage by stage."""
    return graph_of(sorted(artifacts, key=lambda artifact: STAGES.index(artifact.stage)))


ENVIRONMENT = RunKind("", lambda recipe: True, plan_environment, begin_environment, show_arms)
"""The usual kind: teach in an environment, train the models that the arms need, play, and compare."""
