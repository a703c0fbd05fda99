"""`run`, the verbs that stop after one of its stages, and the search for a recipe by its name."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from reflectrl import runs as pipeline
from reflectrl.cli.projects import recipes
from reflectrl.core.config import Recipe, load_recipe, parse_overrides, read_recipe, to_toml
from reflectrl.core.config.folders import refuse_links, require_writable
from reflectrl.core.config.reference import help_text, keys
from reflectrl.core.distributed import launched
from reflectrl.core.plugins import installed, suggestion
from reflectrl.core.regular_files import open_regular
from reflectrl.core.types import UserError
from reflectrl.runs.projects import own_environment, project_recipe, projects, with_learner

MOST_UPDATES, PATIENCE = 10_000, 15
"""With `--minutes`: number of updates that no training reaches, and evaluations without improvement that end one."""

RecipeName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]


class RunOption:
    """Base class of the entry points "reflectrl.run_options": a dataclass whose fields are further options of `run`."""

    def changed(self, recipe: Recipe, folder: Path) -> Recipe:
        """Return the recipe as the options change it.

        Writes nothing. Raises UserError if they do not fit the recipe.
        """
        return recipe

    def prepare(self, recipe: Recipe, folder: Path) -> None:
        """Make files in the run folder that the changed recipe needs. Called before the run."""


@dataclass(frozen=True)
class Run:
    """Run all stages of a recipe that are not complete yet. Any key of the recipe is an option: --rl.lr 1e-4"""

    recipe: RecipeName
    """Name of a recipe (`reflectrl list recipes`), path of a TOML file, or a folder made by `init`."""
    dry_run: bool = False
    """Print the whole recipe and all its artifacts, finished and missing, and run nothing."""
    folder: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Run folder; runs/NAME if not given."""
    minutes: float = 0.0
    """Time limit in minutes for each training by reward, instead of a number of updates. A training ends earlier if
    success on validation tasks stops rising."""
    trust: bool = False
    """Trust the recipe's file, now and in future: run the code that it names (plug-ins, a model's own code), and use
    the addresses and keys that it names."""

    until: ClassVar[str] = "report"
    after_help: ClassVar[Callable[[], str]] = staticmethod(help_text)

    def __call__(self, settings: Sequence[str]) -> None:
        """Load and validate the recipe, and pass it to the pipeline."""
        refuse_unknown_keys(settings, type(self))
        path = find_recipe(self.recipe)
        if self.minutes < 0:
            raise UserError(f"--minutes must be above 0, not {self.minutes:g}")
        if self.minutes:  # settings that were typed come later, so they take precedence
            budget = {"minutes": f"{self.minutes:g}", "updates": str(MOST_UPDATES), "patience": str(PATIENCE)}
            settings = [*(f"rl.{key}={value}" for key, value in budget.items()), *settings]
        if path == project_recipe(self.recipe):
            settings = [*own_environment(path), *settings]
        if self.dry_run:
            recipe, trusted = looked_at(path, settings, self.trust)
        else:
            recipe, trusted = load_recipe(path, settings, self.trust), True
        recipe, note = with_learner(recipe, {key for key, _ in parse_overrides(settings)})
        if note:
            print(f"note: {note}", file=sys.stderr)
        folder = self.folder or Path("runs") / recipe.name
        options: list[Any] = [kind for kind in type(self).__mro__ if RunOption in kind.__bases__]
        for option in options:
            recipe = option.changed(self, recipe, folder)
        if self.dry_run:  # errors are raised before anything is printed
            pipeline.require_known(recipe, trusted)
            artifact_lines = pipeline.graph_lines(recipe, folder)
            notes = [pipeline.precision_line(recipe, folder), *(check.note(recipe) for check in installed("checks"))]
            if not trusted:
                notes.append(f"Not checked: settings of the code that {path} names, which is not trusted yet.")
            print(to_toml(recipe), end="")
            print(f"\n# What the run makes in {folder}:", *artifact_lines, sep="\n# ")
            for words in filter(None, notes):
                print(f"\n# {words}")
            return
        from reflectrl.runs.runner import run_recipe  # imports torch

        if is_first := launched()[0] == 0:  # of several ranks, only the first writes
            refuse_links(folder)
            require_writable(folder, f"run folder {folder}")
        try:
            if is_first:
                for option in options:
                    option.prepare(self, recipe, folder)
            run_recipe(recipe, folder, self.until)
        except UserError:
            with contextlib.suppress(OSError):
                folder.rmdir()  # succeeds only if it is empty
            raise


@dataclass(frozen=True)
class Teach(Run):
    """Make the teaching episodes of a recipe, then stop."""

    until: ClassVar[str] = "teach"


@dataclass(frozen=True)
class SFT(Run):
    """Run up to and including the supervised fine-tuning of both players, then stop."""

    until: ClassVar[str] = "sft"


@dataclass(frozen=True)
class RL(Run):
    """Run up to and including the online reinforcement learning of the policy, then stop."""

    until: ClassVar[str] = "rl"


@dataclass(frozen=True)
class Eval(Run):
    """Run up to and including the evaluation of every arm, then stop."""

    until: ClassVar[str] = "eval"


@dataclass(frozen=True)
class Report(Run):
    """Run up to and including the report."""


RUNS: dict[str, type[Run]] = {"run": Run, "teach": Teach, "sft": SFT, "rl": RL, "eval": Eval, "report": Report}


@cache
def run_verb(name: str) -> type:
    """Return a verb of this file, with the options that other parts of reflectrl and installed packages add."""
    verb = RUNS[name]
    # A dataclass collects fields from its last base first, so the verb's own options lead.
    return dataclass(frozen=True)(type(verb.__name__, (*installed("run_options"), verb), {"__doc__": verb.__doc__}))


def looked_at(path: Path, settings: Sequence[str], trust: bool) -> tuple[Recipe, bool]:
    """Return a recipe for printing only, and whether the code that it names may run."""
    try:
        return load_recipe(path, settings, trust), True
    except UserError:  # reading reports every error except a lack of trust
        return read_recipe(path, settings), False


# ---- settings ------------------------------------------------------------------------------------------------------


def refuse_unknown_keys(settings: Sequence[str], verb: type) -> None:
    """Refuse a setting that is not a key of a recipe. The message suggests the nearest option or key."""
    sections = list(Recipe().plain())
    dotted = [key.dotted for key in keys()]
    for word in settings:
        option = word.partition("=")[0]
        key = option.removeprefix("--").replace("-", "_")
        if word.startswith("--") and key.split(".")[0] not in sections:
            # A key without its section is a frequent slip: `--lr` for `--rl.lr`.
            complete = [f"--{name}" for name in dotted if name.endswith(f".{key}")]
            if complete:
                hint = f" (did you mean {' or '.join(complete)}?)"
            else:
                hint = suggestion(option, [f"--{name}" for name in (*flags(verb), *sections, *dotted)])
            if "did you mean" not in hint:  # there are too many keys to list them
                hint = "; `reflectrl list keys` says which there are"
            raise UserError(f"unknown option {option!r}{hint}")


def flags(verb: type) -> list[str]:
    """Return the options of a verb, without their dashes."""
    return [field.name.replace("_", "-") for field in fields(verb) if field.name not in ("recipe", "env")]


# ---- recipes by name -----------------------------------------------------------------------------------------------


def find_recipe(word: str) -> Path:
    """Return the recipe file that a word of the command line means: a path, or a recipe's name.

    Raises:
        UserError: it is neither. The message suggests the nearest name.
    """
    path = Path(word)
    if path.is_file() or path.suffix == ".toml":
        return path
    recipe_paths, project = recipes(), project_recipe(word)
    # A run folder has a recipe, too, so it would pass for a project, and the run would begin anew in another folder.
    if word not in recipe_paths and (path / "recipe.toml").is_file() and (path / "state.json").is_file():
        raise UserError(f"{word} is a run folder; give its recipe, {path / 'recipe.toml'}, and --folder {word}")
    if word not in recipe_paths and project is not None:
        return project
    if word not in recipe_paths and len(path.parts) > 1 and not path.exists():
        raise UserError(f"there is no file or folder {word}; give a recipe's name, a TOML file, or a project's folder")
    if word and word not in recipe_paths and path.is_dir():
        raise UserError(f"unknown recipe {word!r}: this folder has no recipe.toml; give a name, or a TOML file")
    if word not in recipe_paths:
        hint = suggestion(word, [*recipe_paths, *projects()])
        raise UserError(f"unknown recipe {word!r}{hint}; give a name, the path of a TOML file, or a project's folder")
    return recipe_paths[word]


def summary(path: Path) -> str:
    """Return the first comment of a recipe, or ""."""
    try:
        with open_regular(path) as file:
            first_line = file.readline(1000).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    if not first_line.startswith("#"):
        return ""
    return first_line.removeprefix("#").strip()
