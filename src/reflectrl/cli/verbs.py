"""The verbs: one dataclass each, whose fields are its options and whose call does the work.

Whatever is slow to import (torch, gymnasium) is imported inside the calls, so that help, lists and dry runs are quick.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from reflectrl.cli.bench import Bench
from reflectrl.cli.data import Data
from reflectrl.cli.find import find_recipe, recipes, summary
from reflectrl.config import Recipe, Word, load_recipe, parse_overrides, read_recipe, to_toml
from reflectrl.config.folders import refuse_links, require_writable
from reflectrl.config.reference import keys
from reflectrl.plugins import names, resolve, suggestion
from reflectrl.types import UserError

RecipeName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]
EnvName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]


@dataclass(frozen=True)
class Run:
    """Run every stage of a recipe that is not complete yet. Any key of the recipe is an option: --rl.lr 1e-4"""

    recipe: RecipeName
    """Name of a recipe (`reflectrl list recipes`), or path of a TOML file."""
    dry_run: bool = False
    """Print the whole recipe as it would be run, and run nothing."""
    folder: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Run folder; runs/NAME if not given."""
    repos: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="DIR ...")] = ()
    """AutoExplore: make questions about these repositories first, and train on those."""
    trust: bool = False
    """Let the recipe's file run code that it names (plug-ins, a model's own code), now and from now on."""

    until: ClassVar[str] = "report"

    def __call__(self, settings: Sequence[str]) -> None:
        """Load, validate, and hand over to the pipeline."""
        _refuse_unknown(settings, type(self))
        path = find_recipe(self.recipe)
        recipe = read_recipe(path, settings) if self.dry_run else load_recipe(path, settings, self.trust)
        if self.repos and recipe.env.get("name") != "autoexplore":
            raise UserError(f"--repos is for AutoExplore; recipe {self.recipe} is about {recipe.env.get('name')}")
        if self.dry_run:
            print(to_toml(recipe), end="")
            return
        folder = self.folder or Path("runs") / recipe.name
        refuse_links(folder)
        require_writable(folder, f"run folder {folder}")
        try:
            if self.repos:
                from reflectrl.wings.autoexplore.cli.own_repos import own_library

                recipe = replace(recipe, env={**recipe.env, "library": str(own_library(self.repos, folder))})
            from reflectrl import pipeline

            pipeline.run(recipe, folder, until=self.until)
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


@dataclass(frozen=True)
class Play:
    """Watch a player, or play, in the terminal. Any argument of the environment is an option: --size 6"""

    env: EnvName
    """Name of an environment (`reflectrl list envs`), or package.module:Class."""
    player: Annotated[str, tyro.conf.arg(metavar="PLAYER")] = "human"
    """human, expert, oracle, baseline, random, or a run folder, optionally with an arm: runs/taxi:sft."""
    take_over: bool = False
    """You choose; the player advises, and takes over when you type h."""
    task: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Number of the task, from 0."""
    split: Annotated[str, tyro.conf.arg(metavar="SPLIT")] = "train"
    """Which tasks."""
    stage: Annotated[str | None, tyro.conf.arg(metavar="STAGE")] = None
    """Curriculum stage; the last one if not given."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of the episode."""
    trust: bool = False
    """Let the run's models bring code of their own, if its recipe wants that, now and from now on."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Play one episode and say how it ended."""
        from reflectrl.cli.play import choose_task, ending, play

        section = _section(self.env, settings)
        task = choose_task(_made(section, type(self)), self.split, self.stage, self.task)
        episode = play(section, self.player, task, self.seed, self.take_over, self.trust)
        print(ending(episode) if episode else "stopped")


@dataclass(frozen=True)
class CheckEnv:
    """Try the promises of an environment. Any argument of the environment is an option: --size 6"""

    env: EnvName
    """Name of an environment, or package.module:Class."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Check, and say in one line what was found."""
        from reflectrl.cli.check import check

        print(check(_section(self.env, settings)))


@dataclass(frozen=True)
class List:
    """Say which environments, recipes, arms or recipe keys there are."""

    what: Annotated[
        Literal["envs", "recipes", "arms", "keys", "all"], tyro.conf.Positional, tyro.conf.arg(metavar="WHAT")
    ] = "all"
    """envs, recipes, arms, keys, or all of the first three."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Print a line for each."""
        if settings:
            raise UserError(f"unknown option {settings[0].partition('=')[0]!r}; list has none")
        for what in ("envs", "recipes", "arms") if self.what == "all" else (self.what,):
            if self.what == "all":
                print(f"{what}:")
            for name, words in _listed(what):
                print(f"  {name:22} {words}".rstrip())


OWN: dict[str, type] = {
    "run": Run,
    "teach": Teach,
    "sft": SFT,
    "rl": RL,
    "eval": Eval,
    "report": Report,
    "play": Play,
    "check-env": CheckEnv,
    "data": Data,
    "bench": Bench,
    "list": List,
}
"""The core's verbs."""


def all_verbs() -> dict[str, type]:
    """Name → verb: the core's, and those that installed packages announce (the wings among them)."""
    return {**{name: resolve("verbs", name) for name in names("verbs")}, **OWN}


def _listed(what: str) -> list[tuple[str, str]]:
    if what == "envs":
        return [(name, "") for name in names("envs")]
    if what == "recipes":
        return [(name, summary(path) or str(path)) for name, path in recipes().items()]
    if what == "keys":
        return [(key.dotted, f"= {key.default}  {key.description}") for key in keys()]
    from reflectrl.pipeline import ARMS

    return [(name, arm.about) for name, arm in ARMS.items()]


def _refuse_unknown(settings: Sequence[str], verb: type) -> None:
    """A setting that is no key of a recipe is refused with the nearest option or key."""
    sections = list(Recipe.__dataclass_fields__)
    dotted = [key.dotted for key in keys()]
    for word in settings:
        option = word.partition("=")[0]
        key = option.removeprefix("--").replace("-", "_")
        if word.startswith("--") and key.split(".")[0] not in sections:
            whole = [f"--{known}" for known in dotted if known.endswith(f".{key}")]
            known = [f"--{name}" for name in (*_flags(verb), *sections, *dotted)]
            near = f" (did you mean {' or '.join(whole)}?)" if whole else _near(option, known)
            raise UserError(f"unknown option {option!r}{near}")


def _near(option: str, known: Sequence[str]) -> str:
    """The nearest option; where none is near, where to look, for there are too many to list."""
    near = suggestion(option, known)
    return near if "did you mean" in near else "; `reflectrl list keys` says which there are"


def _made(section: dict[str, Any], verb: type) -> Any:
    """The environment; what it does not take may be a misspelt option of the verb."""
    from reflectrl.envs import make

    try:
        return make(section)
    except UserError as error:
        near = [f"--{flag}" for key in section for flag in difflib.get_close_matches(key, _flags(verb), 1, 0.7)]
        raise UserError(f"{error}{f'; or did you mean {near[0]}?' if near else ''}") from error


def _flags(verb: type) -> list[str]:
    return [field.name.replace("_", "-") for field in fields(verb) if field.name not in ("recipe", "env")]


def _section(name: str, settings: Sequence[str]) -> dict[str, Any]:
    """The env section that `--key value` (or `--env.key value`) describes."""
    pairs = parse_overrides(settings)
    return {"name": name} | {key.removeprefix("env."): Word(value) for key, value in pairs}
