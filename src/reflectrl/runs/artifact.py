"""Artifacts: the products of a run. Each kind is one decorated function, and its arguments are its inputs.

    @artifact("sft", "sft", "checkpoints/seed{seed}/{name}/reflectrl.json", settings=("env", "model", "play", "sft"))
    def sft(build: Build, *, start: Path, train: Path, validation: Path) -> None:
        ...

    sft(plan, "policy", start=base(plan), train=teaching(plan, "train"), validation=teaching(plan, "validation"))

Such a call runs nothing: it adds an artifact to the plan, and returns it as a handle for further calls. The runner
calls the function itself later, with a path in place of each handle. So a function reads only what its call names, and
the fingerprint covers whatever it reads.

Nothing here needs torch or an environment, so a dry run can show the graph quickly. For the same reason, builders
import what is slow inside their bodies.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from reflectrl.core.config import Recipe
from reflectrl.core.open_environments import closing_environments

if TYPE_CHECKING:  # importing these imports torch
    from reflectrl.runs.folder import Context
    from reflectrl.runs.progress import ProgressCallback

Stage = Literal["teach", "sft", "rl", "eval", "report"]
STAGES: tuple[Stage, ...] = ("teach", "sft", "rl", "eval", "report")
"""The stages of a run, in order. The verb of the same name runs everything up to and including that stage."""
CHECKPOINT = "checkpoints/seed{seed}/{name}/reflectrl.json"
"""Output of a training: the file whose existence means that a model is trained."""
PLAYED = ("env", "model", "play")
"""Recipe sections that affect every artifact for which a model plays."""
PRETRAINED: Literal["pretrained"] = "pretrained"
"""Stands in for the handle of a model that no artifact makes: the one in [model], from a hub or a folder."""
Source = Path | Literal["pretrained"]
"""Model that a builder loads: a folder of the run, or the pretrained model."""


@dataclass(frozen=True)
class Artifact:
    """Handle of a product of a run. Kind, `name` and `seed` together identify it.

    Attributes:
        maker: the decorated function that makes it.
        recipe: the recipe that was planned. Other processes rebuild the handle from it.
        arguments: the arguments of the function, with handles for its inputs.
        settings: recipe keys, or whole sections, that change its content.
        extent: recipe keys that change its size. If they change, the artifact is continued instead of refused.
        files: the user's files from which it is made. Their content is part of its fingerprint.
        outputs: patterns of files, relative to the run folder; each matches something once the artifact is complete.
    """

    maker: Kind
    recipe: Recipe = field(repr=False, compare=False)
    name: str
    seed: int
    arguments: Mapping[str, Any] = field(repr=False, compare=False)
    settings: tuple[str, ...]
    extent: tuple[str, ...]
    files: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Name of its kind: "teach", "sft", "eval" ..."""
        return self.maker.kind

    @property
    def stage(self) -> Stage:
        """The stage of the run to which it belongs."""
        return self.maker.stage

    @property
    def always(self) -> bool:
        """True if every run makes it anew, because that is quick."""
        return self.maker.always

    @property
    def key(self) -> str:
        """Name of the artifact in the graph, in state.json and on the screen."""
        if self.always:  # such artifacts are about all seeds
            return f"{self.kind} {self.name}"
        return f"{self.kind} {self.name} (seed {self.seed})"

    @property
    def path(self) -> str:
        """Path of its first output, relative to the run folder: a file, or the folder of a model."""
        return _marked_path(self.outputs[0])

    @property
    def training(self) -> str:
        """Folder of the learner's state while a model is trained, relative to the run folder; "" without one."""
        if not self.outputs[0].endswith("/reflectrl.json"):
            return ""
        return f"{self.path}.learner"

    @property
    def inputs(self) -> tuple[str, ...]:
        """Keys of the inputs that its fingerprint covers."""
        return tuple(needed.key for needed in self.made_from)

    @property
    def made_from(self) -> tuple[Artifact, ...]:
        """Inputs that its fingerprint covers, in the order of the arguments."""
        return tuple(source.artifact for source in _inputs(self.arguments.values()) if source.counts)

    @property
    def needs(self) -> tuple[Artifact, ...]:
        """All its inputs."""
        return tuple(source.artifact for source in _inputs(self.arguments.values()))

    def part(self, number: int) -> Input:
        """Return one of several outputs, as an input of another artifact."""
        return Input(self, _marked_path(self.outputs[number]))

    def given(self, name: str) -> Any:
        """Return an argument of this artifact, for a further artifact that is made from both.

        The other fingerprint covers this artifact, and with it whatever this artifact was given.
        """
        value = self.arguments[name]
        if isinstance(value, Artifact | Input):
            return replace(_as_input(value), counts=False)
        return value

    def inputs_in(self, folder: Path) -> dict[str, Any]:
        """Return the arguments of the builder, with a path below a run folder in place of each handle."""
        return {name: _resolved(value, folder) for name, value in self.arguments.items()}

    def exists(self, folder: Path) -> bool:
        """Tell whether all outputs exist."""
        return all(any(folder.glob(pattern)) for pattern in self.outputs)

    def logs(self, folder: Path) -> list[Path]:
        """Return its outputs that are files of lines. (The folder of a model has digests of its own.)"""
        patterns = [pattern for pattern in self.outputs if pattern.endswith(".jsonl")]
        return sorted(path for pattern in patterns for path in folder.glob(pattern))

    def is_begun(self, folder: Path) -> bool:
        """Tell whether any part of it exists: an output, or the state of an unfinished training."""
        patterns = list(self.outputs)
        if self.training:
            # The star also matches older saved states and a folder that was half written.
            patterns.append(f"{self.training}*")
        return any(any(folder.glob(pattern)) for pattern in patterns)

    def __reduce__(self) -> Any:
        """Send recipe and key to another process, which plans the same recipe again."""
        # The arguments may hold an arm, whose functions cannot be pickled.
        return _planned_again, (self.recipe, self.key)


@dataclass(frozen=True)
class Input:
    """An artifact as an input of another artifact.

    Attributes:
        path: the path that the builder gets, relative to the run folder.
        counts: False if the fingerprint of a further input covers this one.
    """

    artifact: Artifact
    path: str
    counts: bool = True


Handle = Artifact | Input
"""Result of a planning function, and input of other artifacts."""
Graph = Mapping[str, Artifact]
"""Artifacts by key, each after its inputs."""


@dataclass
class Plan:
    """The artifacts of a run for one seed, while they are being collected.

    Attributes:
        is_taught: True if some arm of the run learns from teaching episodes.
        made: artifacts by key, each after its inputs.
    """

    recipe: Recipe
    seed: int
    is_taught: bool = False
    made: dict[str, Artifact] = field(default_factory=dict)


@dataclass(frozen=True)
class Build:
    """An artifact that is being made: what its builder gets in addition to its inputs.

    Attributes:
        progress: callback for the number of units done, their total, and a note.
    """

    context: Context
    artifact: Artifact
    progress: ProgressCallback

    @property
    def recipe(self) -> Recipe:
        """Settings of the run."""
        return self.context.recipe

    @property
    def seed(self) -> int:
        """Seed of the artifact."""
        return self.artifact.seed

    @property
    def name(self) -> str:
        """Name of the artifact."""
        return self.artifact.name

    @property
    def out(self) -> Path:
        """Path of the (first) output: a file, or the folder of a model. Its parent folder exists."""
        path = self.context.run.path / self.artifact.path
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def trained(self) -> str:
        """Name of the training, and of the checkpoint's folder."""
        return self.out.name

    @property
    def learner(self) -> Path:
        """Folder of the learner's state while a model is trained."""
        return self.context.run.learner(self.seed, self.trained)

    @property
    def metrics(self) -> Path:
        """File of the metrics of the training."""
        return self.context.run.metrics(self.seed, self.trained)

    @property
    def inputs(self) -> dict[str, Any]:
        """Arguments of the builder, with a path in place of each handle."""
        return self.artifact.inputs_in(self.context.run.path)

    def __call__(self) -> Any:
        """Make the artifact. Returns lines for timings.jsonl, or None."""
        with closing_environments():
            return self.artifact.maker.build(self, **self.inputs)

    def is_unfinished(self) -> bool:
        """Tell whether something is still missing although all outputs exist."""
        unfinished = self.artifact.maker.unfinished
        if unfinished is None:
            return False
        with closing_environments():
            return unfinished(self)


class Kind:
    """A kind of artifact: a builder that `artifact` has decorated. See the module's text.

    Attributes:
        kind: name of the kind, a part of keys and fingerprints.
        build: the undecorated function.
        shared: True if all ranks of a launch call the builder together; False if only the first rank calls it.
    """

    def __init__(
        self,
        build: Callable[..., Any],
        kind: str,
        stage: Stage,
        outputs: tuple[str, ...],
        settings: tuple[str, ...],
        extent: tuple[str, ...],
        shared: bool,
        always: bool,
    ) -> None:
        functools.update_wrapper(self, build)
        self.build, self.kind, self.stage, self.outputs = build, kind, stage, outputs
        self.settings, self.extent, self.shared, self.always = settings, extent, shared, always
        self.unfinished: Callable[[Build], bool] | None = None

    def __call__(
        self,
        plan: Plan,
        name: str,
        *,
        settings: Iterable[str] = (),
        extent: Iterable[str] = (),
        files: Iterable[str] = (),
        seed: int | None = None,
        **arguments: Any,
    ) -> Artifact:
        """Add an artifact of this kind to a plan, unless the plan has it already.

        Args:
            plan: the plan.
            name: name of the artifact.
            settings: recipe keys on which this artifact depends, in addition to those of its kind.
            extent: recipe keys that change its size, in addition to those of its kind.
            files: the user's files from which it is made.
            seed: its seed; None takes the plan's.
            arguments: arguments of the builder. Handles stand for inputs; other values are not in the fingerprint.

        Returns:
            Its handle.
        """
        # A builder may run hours later. Its arguments are checked now, so that a wrong one is found while planning.
        inspect.signature(self.build).bind(None, **arguments)
        if seed is None:
            seed = plan.seed
        artifact = Artifact(
            maker=self,
            recipe=plan.recipe,
            name=name,
            seed=seed,
            arguments=arguments,
            settings=(*self.settings, *settings),
            extent=(*self.extent, *extent),
            files=tuple(files),
            outputs=tuple(pattern.format(name=name, seed=seed, **arguments) for pattern in self.outputs),
        )
        # Several arms ask for the same model. The first call plans it, and the others get its handle.
        return plan.made.setdefault(artifact.key, artifact)

    def continued_while(self, unfinished: Callable[[Build], bool]) -> Callable[[Build], bool]:
        """Decorate the function that tells whether an artifact lacks something although its outputs exist."""
        self.unfinished = unfinished
        return unfinished


def artifact(
    kind: str,
    stage: Stage,
    *outputs: str,
    settings: tuple[str, ...] = (),
    extent: tuple[str, ...] = (),
    shared: bool = False,
    always: bool = False,
) -> Callable[[Callable[..., Any]], Kind]:
    """Turn a builder into a kind of artifact. The arguments are the attributes of `Kind` and `Artifact`.

    `outputs` may contain {name}, {seed}, and the names of arguments that are text.
    """
    return lambda build: Kind(build, kind, stage, outputs, settings, extent, shared, always)


def graph_of(artifacts: Iterable[Artifact]) -> Graph:
    """Return the artifacts by key, in the given order, which must put inputs first. The first of equal keys is kept."""
    graph: dict[str, Artifact] = {}
    for added in artifacts:
        assert all(needed.key in graph for needed in added.needs), f"{added.key} stands before one of its inputs"
        graph.setdefault(added.key, added)
    return graph


def _marked_path(output: str) -> str:
    """Return the path that an output marks as complete: the file itself, or the folder that holds a model's card."""
    folder, _, file = output.rpartition("/")
    # `write_folder` renames a complete folder into place, so a folder that has its card has everything.
    if file in ("reflectrl.json", "config.json", "reference_cache.json"):
        return folder
    return output


def _as_input(value: Handle) -> Input:
    if isinstance(value, Artifact):
        return Input(value, value.path)
    return value


def _inputs(values: Iterable[Any]) -> Iterator[Input]:
    """Yield the inputs among some arguments, also those in tuples."""
    for value in values:
        if isinstance(value, Artifact | Input):
            yield _as_input(value)
        elif isinstance(value, tuple):
            yield from _inputs(value)


def _resolved(value: Any, folder: Path) -> Any:
    """Return an argument as the builder gets it."""
    if isinstance(value, Artifact | Input):
        return folder / _as_input(value).path
    if isinstance(value, tuple):
        return tuple(_resolved(item, folder) for item in value)
    return value


def _planned_again(recipe: Recipe, key: str) -> Artifact:
    from reflectrl.runs.graph import planned

    return planned(recipe)[key]
