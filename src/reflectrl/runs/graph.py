"""The graph of a run in an environment: the artifacts that its arms need. Packages can bring graphs of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from reflectrl.core.config import Recipe
from reflectrl.runs.arms import BASE, PLAYED, Arm, chosen, model, planner
from reflectrl.runs.artifacts import STAGES, Artifact, Graph, Stage, graph_of
from reflectrl.core.plugins import names, resolve
from reflectrl.core.types import UserError

if TYPE_CHECKING:  # these bring torch, which a dry run does without
    from reflectrl.runs.folder import Context, RunFolder

EXTENT = ("eval.splits", "eval.stages", "eval.sampling", "eval.episodes")


def extent_of(recipe: Recipe) -> tuple[str, ...]:
    """Return the recipe keys that decide the number of evaluation episodes."""
    return (*EXTENT, "eval.repeats") if recipe.eval.repeats > 1 else EXTENT


class Pipeline(Protocol):
    """Plans and runs one kind of recipe. The core has one for environments. Packages add others as entry points of
    "reflectrl.pipelines".
    """

    @staticmethod
    def is_for(recipe: Recipe) -> bool:
        """Tell whether this pipeline runs this recipe. Only pipelines of packages are asked."""

    @staticmethod
    def graph(recipe: Recipe) -> Graph:
        """Return the artifacts of a recipe. Raises UserError for an unknown arm. Must not import torch."""

    @staticmethod
    def begin(recipe: Recipe, run: RunFolder) -> Context:
        """Make the context for the builders. Raises UserError for problems that the recipe alone does not show."""

    @staticmethod
    def show(context: Context) -> None:
        """Print the outcome, after the report is written."""


def pipeline_of(recipe: Recipe) -> type[Pipeline]:
    """Return a recipe's pipeline: a package's if one claims the recipe, otherwise the one for environments."""
    brought = (resolve("pipelines", name) for name in names("pipelines"))
    return next((one for one in brought if one.is_for(recipe)), EnvironmentPipeline)


class EnvironmentPipeline:
    """Teach in an environment, train the models that the arms need, play, and compare."""

    @staticmethod
    def is_for(recipe: Recipe) -> bool:
        """Return True: it runs every recipe that no package claims."""
        return True

    @staticmethod
    def graph(recipe: Recipe) -> Graph:
        """Return teaching episodes, models, online RL and evaluations for the recipe's arms, once per seed."""
        arms = chosen(recipe.arms, recipe)
        if recipe.sft.policy_from == "reflector" and recipe.model.lora_rank:  # adapters start from their backbone
            about = "sft.policy_from is 'reflector'; with model.lora_rank above 0 it must be 'base'"
            raise UserError(f"{about} (or model.lora_rank 0)")
        if recipe.sft.policy_from == "reflector" and len(recipe.model.sources) > 1:
            raise UserError("sft.policy_from is 'reflector'; with a model.policy of its own it must be 'base'")
        made = [artifact for seed in recipe.seeds for artifact in Plan(recipe, seed, arms).made.values()]
        return graph_of([*sorted(made, key=lambda one: STAGES.index(one.stage)), *ends(recipe, made)])

    @staticmethod
    def begin(recipe: Recipe, run: RunFolder) -> Context:
        """Check that environment, models and demonstrations fit the recipe, and that no test task is trained on."""
        from reflectrl.runs.demonstrations import check_log
        from reflectrl.runs.evaluation import check_env
        from reflectrl.runs.folder import Context
        from reflectrl.runs.sources import check_models

        tasks = check_env(recipe)
        if any(arm.player == "policy" or arm.reflector for arm in chosen(recipe.arms, recipe).values()):
            check_models(recipe)
        check_log(recipe, run)
        return Context(recipe, run, tasks)

    @staticmethod
    def show(context: Context) -> None:
        """Print the table of arms, and one played episode."""
        from reflectrl.runs.results import show_episode, show_results
        from reflectrl.core.terminal import console

        screen = console(120)
        show_results(screen, context.run.path, chosen(context.recipe.arms, context.recipe))
        show_episode(screen, context.run, context.recipe)


def ends(recipe: Recipe, made: list[Artifact], room: str = "reflectrl.runs.results") -> list[Artifact]:
    """Return the artifacts of results and report. Every run makes them anew from its evaluations.

    `room` is the module with their builders.
    """
    evaluations = tuple(artifact.key for artifact in made if artifact.stage == "eval")
    results = Artifact(
        "results", recipe.name, 0, "eval", f"{room}:results", ("results.json",), evaluations, always=True
    )
    shown = Artifact(
        "report", recipe.name, 0, "report", f"{room}:report", ("report.html",), (results.key,), always=True
    )
    return [results, shown]


class Plan:
    """Collects the artifacts that the arms of a run need, for one seed.

    Attributes:
        made: artifacts by key, each after its inputs.
    """

    def __init__(self, recipe: Recipe, seed: int, arms: Mapping[str, Arm]) -> None:
        self.recipe, self.seed, self.made = recipe, seed, dict[str, Artifact]()
        trained = [arm for arm in arms.values() if arm.player == "policy" or arm.reflector]
        self.is_taught = any(arm.is_taught for arm in trained)
        if self.is_taught:
            for split in ("train", "validation"):
                self.teaching(split)
        if trained:
            self.model(BASE)
        for name, arm in arms.items():
            self._arm(name, arm)

    def players(self, name: str, arm: Arm) -> list[str]:
        """Return the keys of the artifacts that are needed to play an arm."""
        inputs = [key for one in (arm.reflector, arm.policy) if one for key in self.model(one)]
        inputs += [self.teaching("train")] if arm.shows else []
        if arm.rl is not None:
            config = replace(self.recipe.rl, **arm.rl)
            inputs += [planner("log")(self)] if config.replay_log else []
            if config.reverse and (self.is_taught or self.recipe.teach.by == "log"):
                inputs.append(self.teaching("train"))  # wins from whose ends to begin
            sections = [section for section in self.recipe.sections.values() if hasattr(section, "rl_settings")]
            further = [key for section in sections for key in section.rl_settings(self.recipe)]
            build, output = "reflectrl.runs.training:online", self.checkpoint(f"rl-{name}")
            inputs = [self.add("rl", name, "rl", build, output, inputs, *PLAYED, "rl", *further)]
        return inputs

    def _arm(self, name: str, arm: Arm) -> None:
        inputs = self.players(name, arm)
        settings = (*(PLAYED if arm.player == "policy" else ("env",)), *arm.settings)
        output = f"episodes/eval-{name}-seed{self.seed}-*.jsonl"
        key = self.add("eval", name, "eval", "reflectrl.runs.evaluation:evaluation", output, inputs, *settings)
        remaining = "reflectrl.runs.evaluation:remaining_tasks"
        self.made[key] = replace(self.made[key], extent=extent_of(self.recipe), remaining=remaining)

    def add(self, kind: str, name: str, stage: Stage, build: str, output: str, inputs: Sequence[str],
            *settings: str, remaining: str = "", files: Sequence[str] = ()) -> str:  # fmt: skip
        """Add an artifact unless the plan has it already, and return its key.

        The arguments are the fields of `Artifact`.
        """
        artifact = Artifact(kind, name, self.seed, stage, build, (output,), tuple(inputs), settings, (), remaining,
                            files=tuple(files))  # fmt: skip
        if output.endswith("/reflectrl.json"):
            artifact = replace(artifact, training=f"{output.removesuffix('/reflectrl.json')}.learner")
        self.made.setdefault(artifact.key, artifact)
        return artifact.key

    def checkpoint(self, name: str) -> str:
        """Return the file whose existence in a run folder means that a model is trained."""
        return f"checkpoints/seed{self.seed}/{name}/reflectrl.json"

    def model(self, name: str) -> list[str]:
        """Return the keys of the artifacts that make a model; none for a base model from a hub or a folder."""
        if name != BASE:
            return model(name).artifacts(self, name)
        if "scratch" not in self.recipe.model.sources:
            return []
        inputs = [self.teaching("train") if self.is_taught else self.random_play()]
        output = f"checkpoints/seed{self.seed}/{BASE}/config.json"
        return [self.add("base", "model", "sft", "reflectrl.runs.training:base", output, inputs, "model")]

    def teaching(self, split: str) -> str:
        """Add the teaching episodes of a split, and return their key."""
        if self.recipe.teach.by == "endpoint":
            return planner("teaching")(self, split)
        output, room = f"episodes/teach-seed{self.seed}-{split}.jsonl", "reflectrl.runs.training"
        remaining = f"{room}:remaining_demonstrations"
        files = self.recipe.teach.log  # none, where a teacher plays
        return self.add("teach", split, "teach", f"{room}:teaching", output, (), "env", "teach", remaining=remaining,
                        files=files)  # fmt: skip

    def reflected(self, split: str) -> str:
        """Add the teaching episodes of a split, with the reflections that players learn to write and to read."""
        if self.recipe.teach.reflections == "given":
            return self.teaching(split)
        room, inputs = "reflectrl.runs.demonstrations", [self.teaching(split), *self.model("plain")]
        output, remaining = f"episodes/outcomes-seed{self.seed}-{split}.jsonl", f"{room}:remaining_outcomes"
        return self.add("outcomes", split, "sft", f"{room}:outcomes", output, inputs, *PLAYED, "teach",
                        remaining=remaining)  # fmt: skip

    def random_play(self) -> str:
        """Add episodes of random play: the text for a model made from scratch, if there is no teacher."""
        output = f"episodes/random-seed{self.seed}.jsonl"
        return self.add("play", "random", "teach", "reflectrl.runs.training:random_play", output, (), "env")
