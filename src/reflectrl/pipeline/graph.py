"""The graph of a run about an environment: the artifacts that its arms need. (Wings bring graphs of their own.)"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from reflectrl.config import Recipe
from reflectrl.pipeline.arms import BASE, MODELS, SFT, Arm, Offline, chosen
from reflectrl.pipeline.artifacts import Artifact, Graph, graph_of
from reflectrl.plugins import names, resolve
from reflectrl.types import UserError

if TYPE_CHECKING:  # these bring torch, which a dry run does without
    from reflectrl.pipeline.folder import Context, RunFolder

PLAYED = ("env", "model", "play")
"""Sections on which everything depends for which a model plays."""
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
        made = [artifact for seed in recipe.seeds for artifact in _Artifacts(recipe, seed, arms)]
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


@dataclass
class _Artifacts:
    """The artifacts of one seed, each after its inputs."""

    recipe: Recipe
    seed: int
    arms: dict[str, Arm]

    def __iter__(self) -> Iterator[Artifact]:
        trained = {name: arm for name, arm in self.arms.items() if arm.player == "policy"}
        if trained:
            yield self.teaching("train")
            yield self.teaching("validation")
            if self.recipe.model.source == "scratch":
                yield self.base()
        for arm in trained.values():
            for model in filter(None, (arm.reflector, arm.policy)):
                yield from self.model(model)
        if self.recipe.rl.replay_log and any(arm.rl is not None for arm in trained.values()):
            yield from self.log()
        for name, arm in trained.items():
            if arm.rl is not None:
                yield self.online(name, arm)
        for name, arm in self.arms.items():
            yield self.evaluation(name, arm)

    def teaching(self, split: str) -> Artifact:
        path = f"episodes/teach-seed{self.seed}-{split}.jsonl"
        room = "reflectrl.pipeline.training"
        return Artifact("teach", split, self.seed, "teach", f"{room}:teaching", (path,), (), ("env", "teach"),
                        remaining=f"{room}:remaining_lessons")  # fmt: skip

    def base(self) -> Artifact:
        path = f"checkpoints/seed{self.seed}/{BASE}/config.json"
        return Artifact("base", "model", self.seed, "sft", "reflectrl.pipeline.training:base", (path,),
                        (self.key("teach", "train"),), ("model",))  # fmt: skip

    def model(self, name: str) -> Iterator[Artifact]:
        """A trained model, after the models and the log that it needs."""
        if name == BASE:
            return
        model = MODELS[name]
        if isinstance(model, SFT):
            start = model.reflector if self.recipe.sft.policy_from == "reflector" else ""
            yield from self.model(start or BASE)
            inputs = (*self.from_model(start or BASE), self.key("teach", "train"), self.key("teach", "validation"))
            yield self.trained("sft", name, "sft", "reflectrl.pipeline.training:sft", inputs, (*PLAYED, "sft"))
        else:
            yield from self.log()
            yield from self.model(model.start)
            yield from self.offline(name, model)

    def log(self) -> Iterator[Artifact]:
        """The log of episodes from which offline arms learn, after the policy that plays some of them."""
        players = ("plain",) if self.recipe.offline.log_episodes else ()
        for name in players:
            yield from self.model(name)
        room = "reflectrl.pipeline.offline"
        inputs = (self.key("teach", "train"), *(key for name in players for key in self.from_model(name)))
        settings = (*PLAYED, "offline.log_episodes", "rl.temperature")
        yield Artifact("log", "episodes", self.seed, "rl", f"{room}:log", (f"episodes/offline-seed{self.seed}.jsonl",),
                       inputs, settings, remaining=f"{room}:remaining_log")  # fmt: skip

    def offline(self, name: str, model: Offline) -> Iterator[Artifact]:
        """A policy that learns from the log, after the value of what it starts from, if it needs that."""
        room, settings = "reflectrl.pipeline.offline", (*PLAYED, "sft", "offline", "rl.temperature", "rl.eval_sampling")
        inputs = (self.key("log", "episodes"), *self.from_model(model.start))
        if model.value:
            path = f"checkpoints/seed{self.seed}/offline-value/appraisal.json"
            value = Artifact("offline", "offline-value", self.seed, "rl", f"{room}:value", (path,), inputs, settings)
            yield value
            inputs = (*inputs, value.key)
        yield self.trained("offline", name, "rl", f"{room}:policy", inputs, settings)

    def online(self, name: str, arm: Arm) -> Artifact:
        models = filter(None, (arm.policy, arm.reflector))
        log = (self.key("log", "episodes"),) if self.recipe.rl.replay_log else ()
        inputs = (*(key for model in models for key in self.from_model(model)), *log)
        path, build = f"rl-{name}", "reflectrl.pipeline.training:online"
        return self.trained("rl", name, "rl", build, inputs, (*PLAYED, "rl"), path)

    def evaluation(self, name: str, arm: Arm) -> Artifact:
        models = filter(None, () if arm.rl is not None else (arm.policy, arm.reflector))
        inputs = [key for model in models for key in self.from_model(model)]
        inputs += [self.key("rl", name)] if arm.rl is not None else []
        settings = ("env",) if arm.player != "policy" else (*PLAYED, "offline.target_return")
        room, path = "reflectrl.pipeline.evaluation", f"episodes/eval-{name}-seed{self.seed}-*.jsonl"
        return Artifact("eval", name, self.seed, "eval", f"{room}:evaluation", (path,), tuple(inputs), settings, EXTENT,
                        remaining=f"{room}:remaining_tasks")  # fmt: skip

    def trained(
        self, kind: str, name: str, stage: Any, build: str, inputs: tuple[str, ...], settings: tuple[str, ...],
        checkpoint: str = "",
    ) -> Artifact:  # fmt: skip
        """A training that ends with a checkpoint."""
        path = f"checkpoints/seed{self.seed}/{checkpoint or name}"
        return Artifact(kind, name, self.seed, stage, build, (f"{path}/reflectrl.json",), inputs, settings,
                        training=f"{path}.learner")  # fmt: skip

    def from_model(self, name: str) -> tuple[str, ...]:
        """The key of what makes a model; the base model of a hub or a folder is made by nobody."""
        if name == BASE:
            return (self.key("base", "model"),) if self.recipe.model.source == "scratch" else ()
        return (self.key("sft" if isinstance(MODELS[name], SFT) else "offline", name),)

    def key(self, kind: str, name: str) -> str:
        return f"{kind} {name} (seed {self.seed})"
