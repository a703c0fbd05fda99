"""`run`, the verbs that stop after one of its stages, and how a recipe is found by its name."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from reflectrl import pipeline
from reflectrl.cli.projects import own_environment, project_recipe, projects, recipes
from reflectrl.config import Recipe, load_recipe, read_recipe, to_toml
from reflectrl.config.folders import refuse_links, require_writable
from reflectrl.config.reference import keys
from reflectrl.distributed import launched
from reflectrl.pipeline.arms import chosen
from reflectrl.plugins import brought, suggestion
from reflectrl.types import UserError

RecipeName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]


class RunOption:
    """Base class of the entry points "reflectrl.run_options": a dataclass whose fields are further options of `run`."""

    def changed(self, recipe: Recipe, folder: Path) -> Recipe:
        """The recipe as the options change it. Writes nothing; raises UserError if they do not fit the recipe."""
        return recipe

    def prepare(self, recipe: Recipe, folder: Path) -> None:
        """Called before the run: make in its folder what the changed recipe needs."""

    def during(self, folder: Path) -> contextlib.AbstractContextManager[None]:
        """Entered before all is prepared, for as long as the run takes; of several ranks by the first alone."""
        return contextlib.nullcontext()


@dataclass(frozen=True)
class Run:
    """Run every stage of a recipe that is not complete yet. Any key of the recipe is an option: --rl.lr 1e-4"""

    recipe: RecipeName
    """Name of a recipe (`reflectrl list recipes`), path of a TOML file, or a folder that `init` has made."""
    dry_run: bool = False
    """Print the whole recipe as it would be run, and all that it makes with what is done and what is missing; run
    nothing."""
    folder: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Run folder; runs/NAME if not given."""
    trust: bool = False
    """Let the recipe's file run code that it names (plug-ins, a model's own code), now and from now on."""

    until: ClassVar[str] = "report"

    def __call__(self, settings: Sequence[str]) -> None:
        """Load, validate, and hand over to the pipeline."""
        refuse_unknown_keys(settings, type(self))
        path = find_recipe(self.recipe)
        if path == project_recipe(self.recipe):
            settings = [*own_environment(path), *settings]
        recipe = read_recipe(path, settings) if self.dry_run else load_recipe(path, settings, self.trust)
        recipe = with_learner(recipe, settings)
        folder = self.folder or Path("runs") / recipe.name
        options: list[Any] = [kind for kind in type(self).__mro__ if RunOption in kind.__bases__]
        for option in options:
            recipe = option.changed(self, recipe, folder)
        if self.dry_run:
            print(to_toml(recipe), end="")
            print(f"\n# What the run makes in {folder}:", *pipeline.graph_lines(recipe, folder), sep="\n# ")
            notes = [pipeline.precision_line(recipe, folder), *(check.note(recipe) for check in brought("checks"))]
            for words in filter(None, notes):
                print(f"\n# {words}")
            return
        from reflectrl.api import train  # imports numpy and gymnasium

        if is_first := launched()[0] == 0:  # of several ranks one writes
            refuse_links(folder)
            require_writable(folder, f"run folder {folder}")
        try:
            with contextlib.ExitStack() as run:
                for option in options if is_first else ():
                    run.enter_context(option.during(self, folder))
                for option in options if is_first else ():
                    option.prepare(self, recipe, folder)
                train(recipe, folder, until=self.until)
        except UserError:
            with contextlib.suppress(OSError):
                folder.rmdir()  # nothing was begun in it
            raise


@dataclass(frozen=True)
class Teach(Run):
    """Make the teaching episodes of a recipe, and stop."""

    until: ClassVar[str] = "teach"


@dataclass(frozen=True)
class SFT(Run):
    """Go on until the supervised fine-tuning of both players, and stop."""

    until: ClassVar[str] = "sft"


@dataclass(frozen=True)
class RL(Run):
    """Go on until the online reinforcement learning of the policy, and stop."""

    until: ClassVar[str] = "rl"


@dataclass(frozen=True)
class Eval(Run):
    """Go on until every arm is evaluated, and stop."""

    until: ClassVar[str] = "eval"


@dataclass(frozen=True)
class Report(Run):
    """Go on until the report is written."""


RUNS: dict[str, type[Run]] = {"run": Run, "teach": Teach, "sft": SFT, "rl": RL, "eval": Eval, "report": Report}


def run_verbs() -> dict[str, type]:
    """The verbs of this file, with the options that installed packages bring."""
    return {  # fields are taken from the last base first, so the verb's own options lead
        name: dataclass(frozen=True)(type(verb.__name__, (*brought("run_options"), verb), {"__doc__": verb.__doc__}))
        for name, verb in RUNS.items()
    }


def with_learner(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """A recipe that names demonstrations has an arm that learns from them.

    Where neither its file nor the command line names one, it takes the place of the arms that learn without, and the
    run has a name of its own, since models made from scratch are made from the text of what teaches them.

    Args:
        settings: what was typed: named arms, or a name, are left as they are.
    """
    if recipe.teach.by != "log" or any(arm.is_taught for arm in chosen(recipe.arms, recipe).values()):
        return recipe
    typed, log = {word.partition("=")[0] for word in settings}, ", ".join(recipe.teach.log)
    if "--arms" in typed:
        print(f"note: {', '.join(recipe.arms)}: nothing learns from {log}; --arms no-reflection would", file=sys.stderr)
        return recipe
    from reflectrl.pipeline.demonstrations import best_taught  # slow to import

    kept = [name for name, arm in chosen(recipe.arms, recipe).items() if not arm.policy]
    arms, name = (*kept, best_taught(recipe)), recipe.name if "--name" in typed else f"{recipe.name}-shown"
    print(
        f"note: no arm of the recipe learns from {log}, so this is run: --arms {','.join(arms)} --name {name}",
        file=sys.stderr,
    )
    return replace(recipe, arms=arms, name=name)


# ---- settings ------------------------------------------------------------------------------------------------------


def refuse_unknown_keys(settings: Sequence[str], verb: type) -> None:
    """Refuse a setting that is no key of a recipe; the message suggests the nearest option or key."""
    sections = list(Recipe().plain())
    dotted = [key.dotted for key in keys()]
    for word in settings:
        option = word.partition("=")[0]
        key = option.removeprefix("--").replace("-", "_")
        if word.startswith("--") and key.split(".")[0] not in sections:
            whole = [f"--{known}" for known in dotted if known.endswith(f".{key}")]
            known = [f"--{name}" for name in (*flags(verb), *sections, *dotted)]
            near = f" (did you mean {' or '.join(whole)}?)" if whole else suggestion(option, known)
            if "did you mean" not in near:  # there are too many to list
                near = "; `reflectrl list keys` says which there are"
            raise UserError(f"unknown option {option!r}{near}")


def flags(verb: type) -> list[str]:
    """The options of a verb, without their dashes."""
    return [field.name.replace("_", "-") for field in fields(verb) if field.name not in ("recipe", "env")]


# ---- recipes by name -----------------------------------------------------------------------------------------------


def find_recipe(word: str) -> Path:
    """The recipe file that a word of the command line means: a path, or a recipe's name.

    Raises:
        UserError: it is neither; suggests the nearest name.
    """
    path = Path(word)
    if path.is_file() or path.suffix == ".toml":
        return path
    known, project = recipes(), project_recipe(word)
    if word not in known and project is not None:
        return project
    if word not in known:
        near = suggestion(word, [*known, *projects()])
        raise UserError(f"unknown recipe {word!r}{near}; give a name, the path of a TOML file, or a project's folder")
    return known[word]


def summary(path: Path) -> str:
    """The first comment of a recipe, or ""."""
    with path.open(encoding="utf-8", errors="replace") as file:
        first = file.readline().strip()
    return first.removeprefix("#").strip() if first.startswith("#") else ""
