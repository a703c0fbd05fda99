"""Plan of a text task: samples, the reference that imitates them, its value, the arms, their completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from reflectrl.core.config import Recipe
from reflectrl.core.plugins import names, suggestion
from reflectrl.core.types import UserError
from reflectrl.methods.shared.offline.config import Algorithm
from reflectrl.runs.artifact import CHECKPOINT, PRETRAINED, Artifact, Build, Graph, Plan, Source, artifact
from reflectrl.runs.graph import RunKind, in_order
from reflectrl.runs.stages import evaluation
from reflectrl.wings.text.config import text_settings

if TYPE_CHECKING:  # these bring torch, which a dry run does without
    from reflectrl.runs.folder import Context, RunFolder
    from reflectrl.wings.text.pipeline.task import TextTask

SPLITS = ("train", "validation", "test")
DATA, REFERENCE, VALUE = "data", "reference", "offline-value"
PPO, EXPERT_ITERATION, RVS = "ppo", "expert-iteration", "rvs"
TEXT_ARMS = {DATA: "the completions of the data", REFERENCE: "the model that the other arms start from"}
TEXT_ARMS |= dict.fromkeys(get_args(Algorithm), "offline learning from the reference")
TEXT_ARMS |= {
    PPO: "online learning from the reference: it writes completions, and is rewarded for them",
    EXPERT_ITERATION: "imitates the best of its own completions, round after round, from the reference",
    RVS: "imitates all completions, given the rank of their reward, and is then asked for the highest rank (RvS)",
}
"""Arms of text tasks, with their descriptions."""
WRITTEN = ("text.top_p", "rl.temperature", "offline.prompt_tokens", "offline.completion_tokens")
"""Recipe keys that completions depend on."""
TWICE = (CHECKPOINT, CHECKPOINT.replace("{name}", "{name}-last"))
"""Outputs of an arm: the checkpoint that is best on validation prompts, and the last one."""


# ---- the artifacts -------------------------------------------------------------------------------------------------


# The training set is written last, so it marks the samples as complete. The other splits are outputs as well.
@artifact("text", "teach", "data/train.jsonl", "data/*.jsonl", settings=("text", "rewards"))
def scored_samples(build: Build) -> None:
    """Score the samples of all splits and write them into the run folder, the training set last."""
    from reflectrl.wings.text.pipeline.training import write_data

    write_data(build, text_task(build, build.out))


@artifact("text", "sft", "checkpoints/seed{seed}/base/config.json", settings=("model",))
def scratch_model(build: Build, *, data: Path) -> None:
    """Make a model from scratch, with a vocabulary from the training samples."""
    from reflectrl.wings.text.pipeline.training import make_base

    make_base(build, text_task(build, data))


@artifact("text", "sft", CHECKPOINT, settings=("model", "sft", "offline"))
def imitation(build: Build, *, data: Path, base: Source) -> None:
    """Train the reference by imitation of the data, or take the base model as it is."""
    from reflectrl.wings.text.pipeline.training import make_reference

    make_reference(build, text_task(build, data), base)


@artifact("text", "rl", "checkpoints/seed{seed}/offline-value*/reference_cache.json", settings=("offline",))
def reference_value(build: Build, *, data: Path, reference: Path) -> None:
    """Fit the reference's value to the rewards of its completions, and compute advantages of the training samples."""
    from reflectrl.wings.text.pipeline.training import fit_values

    fit_values(build, text_task(build, data), reference)


@reference_value.continued_while
def lacks_values(build: Build) -> bool:
    """Return whether a reference cache that the arms need is missing. The arms themselves refuse a stale cache."""
    from reflectrl.wings.text.pipeline.training import remaining_values

    return remaining_values(build.out.parent, text_task(build, build.inputs["data"]))


@artifact("text", "rl", *TWICE, settings=("offline", "rl.eval_sampling"))
def learned_offline(build: Build, *, data: Path, reference: Path, values: Path) -> None:
    """Train a model on the samples, from the reference and its value."""
    from reflectrl.wings.text.pipeline.training import train_arm

    train_arm(build, text_task(build, data), reference, values.parent)


@artifact("text", "rl", *TWICE, settings=("rl",))
def learned_online(build: Build, *, data: Path, reference: Path) -> None:
    """Train a model on completions of its own, from the reference."""
    from reflectrl.wings.text.pipeline.training import train_arm

    train_arm(build, text_task(build, data), reference, None)


@artifact("text", "rl", *TWICE, settings=("sft", "offline", "rl.eval_sampling"))
def learned_with_ranks(build: Build, *, data: Path, base: Source) -> None:
    """Train the base model on the samples, each told the rank of its reward."""
    from reflectrl.wings.text.pipeline.training import train_arm

    train_arm(build, text_task(build, data), base, None)


@artifact("text", "rl", CHECKPOINT, settings=("offline", "rl.temperature", "rl.eval_sampling", "text.top_p"))
def learned_from_own_best(build: Build, *, data: Path, reference: Path) -> None:
    """Train a model on the best of its own completions, round after round, from the reference."""
    from reflectrl.wings.text.pipeline.training import train_on_own_best

    train_on_own_best(build, text_task(build, data), reference)


@artifact("eval", "eval", "completions/{name}-seed{seed}-*.jsonl", settings=WRITTEN, extent=evaluation.extent)
def completions(build: Build, *, data: Path, best: Path, last: Path | None) -> None:
    """Generate the missing completions of an arm's best and last checkpoint.

    Args:
        data: the samples, whose prompts are completed.
        best: the best checkpoint, or the only one.
        last: the last checkpoint; None if there is only one.
    """
    from reflectrl.wings.text.pipeline.training import write_arm

    write_arm(build, text_task(build, data), best, last)


@completions.continued_while
def lacks_completions(build: Build) -> bool:
    """Return whether completions of an arm are missing."""
    from reflectrl.wings.text.pipeline.training import unwritten

    return any(unwritten(build, text_task(build, build.inputs["data"])))


@artifact("results", "eval", "results.json", always=True)
def results(
    build: Build,
    *,
    data: Path,
    evaluations: tuple[Path, ...],
    references: tuple[Path, ...],
    values: tuple[Path, ...],
) -> None:
    """Write `results.json` from the completions of all arms.

    Args:
        data: the samples.
        evaluations: the completions.
        references: the reference of each seed.
        values: the value of each reference; empty if no arm needs one.
    """
    from reflectrl.wings.text.pipeline.results import write_results

    write_results(build, text_task(build, data), references, tuple(path.parent for path in values))


@artifact("report", "report", "report.html", always=True)
def report(build: Build, *, results: Path) -> None:
    """Write `report.html`."""
    from reflectrl.wings.text.report import write_text_report

    write_text_report(results.parent)


def text_task(build: Build, data: Path) -> TextTask:
    """Return samples and rewards of the task, which the artifacts of a process share."""
    from reflectrl.wings.text.pipeline.task import TextContext

    assert isinstance(build.context, TextContext)
    return build.context.task(data.parent)


# ---- the plan ------------------------------------------------------------------------------------------------------


def plan_text(recipe: Recipe) -> Graph:
    """Plan samples, reference, value, arms and completions.

    Raises:
        UserError: the recipe names an unknown arm, split or reward.
    """
    for arm in recipe.arms:
        if arm not in TEXT_ARMS:
            raise UserError(f"arms: unknown arm of a text task {arm!r}{suggestion(arm, TEXT_ARMS)}")
    for split in recipe.eval.splits:
        if split not in SPLITS:
            raise UserError(f"eval.splits: unknown split {split!r}{suggestion(split, SPLITS)}")
    for section in ("rewards", "test_rewards"):
        for name, value in recipe.sections[section].items():
            kind = value.get("use", name) if isinstance(value, Mapping) else name
            if ":" not in str(kind) and kind not in names("rewards"):
                raise UserError(f"{section}.{name}: unknown reward {kind!r}{suggestion(str(kind), names('rewards'))}")
    plan = Plan(recipe, 0)
    data = scored_samples(plan, DATA)
    evaluations, references, values = list[Artifact](), list[Artifact](), list[Artifact]()
    for seed in recipe.seeds:
        plan.seed = seed
        base = scratch_model(plan, "base", data=data) if recipe.model.source == "scratch" else PRETRAINED
        reference = imitation(plan, REFERENCE, data=data, base=base)
        references.append(reference)
        if any(arm in get_args(Algorithm) for arm in recipe.arms):
            values.append(reference_value(plan, VALUE, data=reference.given("data"), reference=reference))
        for arm in recipe.arms:
            if arm != DATA:
                evaluations.append(_planned_completions(plan, arm, reference, values[-1] if values else None))
    outcome = results(
        plan,
        recipe.name,
        seed=0,
        data=data,
        evaluations=tuple(evaluations),
        references=tuple(references),
        values=tuple(values),
    )
    report(plan, recipe.name, seed=0, results=outcome)
    return in_order(plan.made.values())


def _planned_completions(plan: Plan, arm: str, reference: Artifact, value: Artifact | None) -> Artifact:
    """Plan an arm and its completions."""
    data = reference.given("data")
    extent = list[str]()
    if plan.recipe.eval.repeats > 1:  # a key that is not used leaves the records of earlier versions as they are
        extent.append("eval.repeats")
    if arm == REFERENCE:
        return completions(plan, arm, data=data, best=reference, last=None, extent=extent)
    if arm == EXPERT_ITERATION:
        trained = learned_from_own_best(plan, arm, data=data, reference=reference)
        return completions(plan, arm, data=data, best=trained, last=None, extent=extent)
    if arm == PPO:
        trained = learned_online(plan, arm, data=data, reference=reference)
    elif arm == RVS:
        arguments = reference.arguments
        trained = learned_with_ranks(plan, arm, data=arguments["data"], base=arguments["base"])
    else:
        assert value is not None
        trained = learned_offline(plan, arm, data=data, reference=value.given("reference"), values=value)
    last_model = replace(trained.part(1), counts=False)
    return completions(plan, arm, data=data, best=trained, last=last_model, extent=extent)


def begin_text(recipe: Recipe, run: RunFolder) -> Context:
    """Check the recipe, and return the context of its builders.

    Raises:
        UserError: a setting that text tasks need is missing, or one is set that they do not support.
    """
    from reflectrl.models.checking import require_usable
    from reflectrl.wings.text.pipeline.task import TextContext

    if recipe.processes > 1:
        raise UserError("processes: a text task runs in one process; set processes = 1")
    if not recipe.sections["rewards"]:
        raise UserError("a text task needs [rewards]: components by name with their weights")
    played_only = {
        "rl.refills": recipe.rl.refills > 0,
        "rl.critic_epochs": recipe.rl.critic_epochs > 0,
        "rl.baseline: gigpo": recipe.rl.baseline == "gigpo",
        "rl.entropy_in: returns": recipe.rl.entropy_in == "returns",
    }
    for key in [name for name, is_set in played_only.items() if is_set]:
        raise UserError(f"{key} is for agents, who play episodes; a text task has completions")
    if recipe.model.policy or recipe.model.reflector:
        raise UserError("model.policy and model.reflector are for agents; a text task has one model, model.source")
    if recipe.model.source != "scratch":
        require_usable(recipe.model.source, replace(recipe.model, chat="off"), labelled=False)
    return TextContext(recipe, run)


def show_text(context: Context) -> None:
    """Print the table of arms."""
    compare_text([context.run.path])


def compare_text(folders: Sequence[Path]) -> None:
    """Print one table of several runs, pooled over seeds, for `reflectrl compare`."""
    from reflectrl.core.terminal import console
    from reflectrl.wings.text.pipeline.results import show

    show(console(160), *folders)


def write_text_table(folders: Sequence[Path], out: Path) -> None:
    """Write the table of several runs in the columns of the released code, for `reflectrl compare`."""
    from reflectrl.wings.text.pipeline.published_table import write_table

    write_table(folders, out)


def has_text_task(recipe: Recipe) -> bool:
    """Tell whether a recipe has a text task."""
    return text_settings(recipe).task != "none"


RUN_KIND = RunKind("text", has_text_task, plan_text, begin_text, show_text, compare_text, write_text_table)


# ---- sets of completions -------------------------------------------------------------------------------------------


def completion_sets(
    recipe: Recipe, seed: int, arm: str, samples: Callable[[str], Sequence[Any]]
) -> list[dict[str, Any]]:
    """List an arm's sets of completions: best and last checkpoint, on every split, with every kind of sampling.

    Args:
        samples: returns the samples of a split. Splits without samples are left out.

    Returns:
        Task, arm, seed, checkpoint, split and sampling of each set.
    """
    checkpoints = ("",) if arm in (DATA, REFERENCE, EXPERT_ITERATION) else ("best", "last")
    samplings = ("",) if arm == DATA else recipe.eval.sampling
    shared = {"task": task_name(recipe), "arm": arm, "seed": seed}
    return [
        {**shared, "checkpoint": checkpoint, "split": split, "sampling": sampling}
        for split in recipe.eval.splits
        if samples(split)
        for sampling in samplings
        for checkpoint in checkpoints
    ]


def draws_of(recipe: Recipe, labels: Mapping[str, Any]) -> int:
    """Return the completions per prompt of a set: `eval.repeats` if sampled. Greedy ones would all be the same."""
    return recipe.eval.repeats if labels["sampling"] == "sampled" else 1


def task_name(recipe: Recipe) -> str:
    """Return the name of the task in tables, with its subset."""
    settings = text_settings(recipe)
    name = recipe.name if settings.task == "own" else settings.task
    return f"{name}-{settings.subset}" if settings.subset else name


def last(arm: str) -> str:
    """Return the name of an arm's last checkpoint. The best checkpoint has the name of the arm."""
    return f"{arm}-last"
