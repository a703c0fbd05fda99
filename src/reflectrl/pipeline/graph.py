"""The graph of a run about an environment: the artifacts that its arms need. (Wings bring graphs of their own.)"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from reflectrl.config import Recipe
from reflectrl.pipeline.arms import BASE, MODELS, SFT, Arm, chosen
from reflectrl.pipeline.artifacts import Artifact, Graph, Stage, graph_of
from reflectrl.plugins import names, resolve
from reflectrl.types import UserError

if TYPE_CHECKING:  # these bring torch, which a dry run does without
    from reflectrl.pipeline.folder import Context, RunFolder

PLAYED = ("env", "model", "play")
"""Sections on which everything depends for which a model plays."""
OFFLINE = (*PLAYED, "sft", "offline", "rl.temperature", "rl.eval_sampling")
"""What offline learning depends on."""
REMAINING = {
    "teach": "training:remaining_lessons",
    "log": "offline:remaining_log",
    "eval": "evaluation:remaining_tasks",
}
"""Kinds of artifacts that grow line by line → what tells whether something of one is left to be made."""
EXTENT = ("eval.splits", "eval.stages", "eval.sampling", "eval.episodes")


class Pipeline(Protocol):
    """What a run makes. One is for environments; packages bring others in the entry points "reflectrl.pipelines"."""

    @staticmethod
    def is_for(recipe: Recipe) -> bool:
        """Whether this recipe is to be run by this pipeline. Only those that packages bring are asked."""

    @staticmethod
    def graph(recipe: Recipe) -> Graph:
        """What there is to make; UserError names an arm that does not exist. Must not import torch."""

    @staticmethod
    def begin(recipe: Recipe, run: RunFolder) -> Context:
        """What builders need. Raises UserError for what a recipe alone does not show, before anything is made."""

    @staticmethod
    def show(context: Context) -> None:
        """Print the outcome, once the report is written."""


def pipeline_of(recipe: Recipe) -> type[Pipeline]:
    """The pipeline of a recipe: that of a package which says that it is for it, otherwise that for environments."""
    brought = (resolve("pipelines", name) for name in names("pipelines"))
    return next((one for one in brought if one.is_for(recipe)), EnvironmentPipeline)


class EnvironmentPipeline:
    """Teach in an environment, train the models that the arms need, play, and compare."""

    @staticmethod
    def is_for(recipe: Recipe) -> bool:
        """It is what remains."""
        return True

    @staticmethod
    def graph(recipe: Recipe) -> Graph:
        """Teaching episodes, models, online RL and evaluations of the recipe's arms, for every seed."""
        arms = chosen(recipe.arms)
        if recipe.sft.policy_from == "reflector" and recipe.model.lora_rank:  # adapters start from their backbone
            raise UserError("sft.policy_from is 'reflector'; with model.lora_rank above 0 it must be 'base'")
        kinds = ("teach", "base", "sft", "log", "offline", "rl", "eval")
        made = [artifact for seed in recipe.seeds for artifact in _artifacts(recipe, seed, arms)]
        return graph_of([*(one for kind in kinds for one in made if one.kind == kind), *ends(recipe, made)])

    @staticmethod
    def begin(recipe: Recipe, run: RunFolder) -> Context:
        """Check that the environment has what the recipe asks for, and leaks no task from training to test."""
        from reflectrl.pipeline.evaluation import check_env
        from reflectrl.pipeline.folder import Context

        check_env(recipe)
        return Context(recipe, run)

    @staticmethod
    def show(context: Context) -> None:
        """The table of arms, and one played episode."""
        from reflectrl.pipeline.results import show_episode, show_results
        from reflectrl.terminal import console

        screen = console(120)
        show_results(screen, context.run.path, chosen(context.recipe.arms))
        show_episode(screen, context.run, context.recipe)


def ends(recipe: Recipe, made: list[Artifact], room: str = "reflectrl.pipeline.results") -> list[Artifact]:
    """Results and report: made by every run from its evaluations, by `results` and `report` of the module `room`."""
    evaluations = tuple(artifact.key for artifact in made if artifact.stage == "eval")
    results = Artifact(
        "results", recipe.name, 0, "eval", f"{room}:results", ("results.json",), evaluations, always=True
    )
    shown = Artifact(
        "report", recipe.name, 0, "report", f"{room}:report", ("report.html",), (results.key,), always=True
    )
    return [results, shown]


def _artifacts(recipe: Recipe, seed: int, arms: Mapping[str, Arm]) -> Collection[Artifact]:
    """What the arms need for one seed, each artifact after its inputs."""
    made: dict[str, Artifact] = {}
    checkpoints, trained = f"checkpoints/seed{seed}", [arm for arm in arms.values() if arm.player == "policy"]

    def add(kind: str, name: str, stage: Stage, build: str, output: str, inputs: Sequence[str], *settings: str) -> str:
        build = f"reflectrl.pipeline.{build}"
        artifact = Artifact(kind, name, seed, stage, build, (output,), tuple(inputs), settings)
        remaining = REMAINING.get(kind)
        if remaining:
            artifact = replace(artifact, remaining=f"reflectrl.pipeline.{remaining}")
        if output.endswith("/reflectrl.json"):
            artifact = replace(artifact, training=f"{output.removesuffix('/reflectrl.json')}.learner")
        made.setdefault(artifact.key, artifact)
        return artifact.key

    def teaching(split: str) -> str:
        return add("teach", split, "teach", "training:teaching", f"episodes/teach-seed{seed}-{split}.jsonl", (), "env",
                   "teach")  # fmt: skip

    def model(name: str) -> list[str]:
        """What makes a model; nothing does where the base model is that of a hub or a folder."""
        output = f"{checkpoints}/{name}/reflectrl.json"
        if name == BASE:
            base, inputs = f"{checkpoints}/{BASE}/config.json", [teaching("train")]
            scratch = recipe.model.source == "scratch"
            return [add("base", "model", "sft", "training:base", base, inputs, "model")] if scratch else []
        row = MODELS[name]
        if isinstance(row, SFT):
            start = row.reflector if recipe.sft.policy_from == "reflector" else ""
            inputs = [*model(start or BASE), teaching("train"), teaching("validation")]
            return [add("sft", name, "sft", "training:sft", output, inputs, *PLAYED, "sft")]
        inputs = [log(), *model(row.start)]
        if row.value:
            value = f"{checkpoints}/offline-value/reference_cache.json"
            inputs += [add("offline", "offline-value", "rl", "offline:value", value, inputs, *OFFLINE)]
        return [add("offline", name, "rl", "offline:policy", output, inputs, *OFFLINE)]

    def log() -> str:
        inputs = [teaching("train"), *(model("plain") if recipe.offline.log_episodes else ())]
        settings = (*PLAYED, "offline.log_episodes", "rl.temperature")
        return add("log", "episodes", "rl", "offline:log", f"episodes/offline-seed{seed}.jsonl", inputs, *settings)

    if trained:
        for split in ("train", "validation"):
            teaching(split)
        model(BASE)
    for name, arm in arms.items():
        inputs = [key for one in (arm.reflector, arm.policy) if one for key in model(one)]
        if arm.rl is not None:
            inputs += [log()] if recipe.rl.replay_log else []
            output = f"{checkpoints}/rl-{name}/reflectrl.json"
            inputs = [add("rl", name, "rl", "training:online", output, inputs, *PLAYED, "rl")]
        settings = (*PLAYED, "offline.target_return") if arm.player == "policy" else ("env",)
        output = f"episodes/eval-{name}-seed{seed}-*.jsonl"
        key = add("eval", name, "eval", "evaluation:evaluation", output, inputs, *settings)
        made[key] = replace(made[key], extent=EXTENT)
    return made.values()
