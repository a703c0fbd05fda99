"""The verbs: a dataclass for each, with its options as fields. Calling it does the work.

Slow imports (torch, gymnasium) happen inside the calls, so that help, lists and dry runs are quick.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from reflectrl.cli.completion import Completion
from reflectrl.cli.projects import recipes
from reflectrl.cli.run import RUNS, run_verb, summary
from reflectrl.core.config.reference import listed
from reflectrl.core.plugins import names, resolve
from reflectrl.core.types import UserError
from reflectrl.runs import all_arms


@dataclass(frozen=True)
class List:
    """List the known environments, recipes, arms or recipe keys."""

    what: Annotated[
        Literal["envs", "recipes", "arms", "keys", "all"], tyro.conf.Positional, tyro.conf.arg(metavar="WHAT")
    ] = "all"
    """Things to list: envs, recipes, arms, keys, or all of the first three."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Print a line for each."""
        if settings:
            raise UserError(f"unknown option {settings[0].partition('=')[0]!r}; list has none")
        for what in ("envs", "recipes", "arms") if self.what == "all" else (self.what,):
            if self.what == "all":
                print(f"{what}:")
            for name, words in _listed(what):
                print(f"  {name:22} {words}".rstrip())


OWN: dict[str, type] = {"list": List, "completion": Completion}
"""Verbs of the core, in addition to the verbs of a run."""


PURPOSES = {
    "begin with an environment of your own": ("init", "check-env", "certify", "play"),
    "train": ("run", "teach", "sft", "rl", "eval", "report", "sweep"),
    "look at results": ("watch", "compare", "play", "bench"),
    "use an agent": ("serve", "export-agent", "export-browser", "locate", "session", "mcp"),
    "bring data and models": ("import-episodes", "data", "list"),
    "complete words in your shell": ("completion",),
}
"""Purposes of users, with the verbs that serve them."""


def purposes(verbs_by_name: Mapping[str, type]) -> str:
    """Return one line per purpose with the installed verbs that serve it, for the help."""
    lines, installed = list[str](), list(verbs_by_name)  # a list, since asking the mapping would import each verb
    for purpose, verbs in PURPOSES.items():
        available = [verb for verb in verbs if verb in installed]
        if available:
            lines.append(f"To {purpose}: {', '.join(available)}.")
    return "\n\n".join(lines)


class Verbs(Mapping[str, type]):
    """All verbs by name: of the core, of other parts of reflectrl, and of installed packages.

    A verb is imported when it is looked up, since a command needs only one.
    """

    def __init__(self) -> None:
        self._names = [*RUNS, *(name for name in names("verbs") if name not in OWN), *OWN]

    def __getitem__(self, name: str) -> type:
        if name not in self._names:
            raise KeyError(name)
        if name in RUNS:
            return run_verb(name)
        return OWN[name] if name in OWN else resolve("verbs", name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _listed(what: str) -> list[tuple[str, str]]:
    if what == "envs":
        return [(name, "") for name in names("envs")]
    if what == "recipes":
        return [(name, summary(path) or str(path)) for name, path in recipes().items()]
    if what == "keys":
        return [(key.dotted, f"= {key.default}  {' '.join(key.description.split())}") for key in listed()]
    return [(name, arm.about) for name, arm in all_arms().items()]
