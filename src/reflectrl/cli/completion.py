"""`completion`: scripts that complete verbs, options, recipe keys and recipes in a shell.

The scripts contain all words, so that a press of TAB starts no Python. They list what is installed when they are
written.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from reflectrl.cli.projects import recipes
from reflectrl.cli.run import Run
from reflectrl.core.config.reference import listed
from reflectrl.core.plugins import names
from reflectrl.core.types import UserError

Shell = Literal["bash", "zsh", "fish"]
_HARMLESS = re.compile(r"[\w.+-]+", re.ASCII)


@dataclass(frozen=True)
class Completion:
    """Print a script that completes reflectrl's words in a shell. Write it again after installing a package."""

    shell: Annotated[Shell, tyro.conf.Positional, tyro.conf.arg(metavar="SHELL")]
    """The shell: bash, zsh or fish."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Print the script."""
        from reflectrl.cli.verbs import Verbs

        if settings:
            raise UserError(f"unknown option {settings[0].partition('=')[0]!r}; completion has none")
        words = {verb: words_of(kind) for verb, kind in Verbs().items()}
        if self.shell == "fish":
            print(_fish(words), end="")
        else:
            print(_bash(words, zsh=self.shell == "zsh"), end="")


def words_of(verb: type) -> list[str]:
    """Return the words that can follow a verb: its options, the values of its arguments, recipes and recipe keys."""
    hints = typing.get_type_hints(verb, include_extras=True)
    options, values = list[str](), list[str]()
    for field in dataclasses.fields(verb):
        kind, notes = hints[field.name], list[Any]()
        if typing.get_origin(kind) is Annotated:
            kind, *notes = typing.get_args(kind)
        if typing.get_origin(kind) is Literal:
            values += map(str, typing.get_args(kind))
        if tyro.conf.Positional not in notes:
            named = [note.name for note in notes if getattr(note, "name", None)]
            options.append(f"--{(named or [field.name])[0].rstrip('_').replace('_', '-')}")
    if issubclass(verb, Run):
        values += recipes()
        options += [f"--{key.dotted.replace('_', '-')}" for key in listed()]
    elif hasattr(verb, "narrowed"):
        values += names("benchmarks")
    # The words become part of a script, where a name with other characters could run as code.
    return [word for word in (*values, *options, "--help") if _HARMLESS.fullmatch(word)]


def _bash(words: Mapping[str, Sequence[str]], zsh: bool) -> str:
    """Return the script for bash. It serves zsh as well, which can run bash's completion functions."""
    lines = ["# Completion of reflectrl."]
    if zsh:
        lines += ["autoload -Uz compinit bashcompinit", "compinit -u", "bashcompinit"]
    lines += [
        "_reflectrl() {",
        '  local current="${COMP_WORDS[COMP_CWORD]}" words=""',
        '  if [ "$COMP_CWORD" -eq 1 ]; then',
        f'    words="{" ".join([*words, "--help", "--version"])}"',
        "  else",
        '    case "${COMP_WORDS[1]}" in',
    ]
    for verbs, following in _grouped(words):
        lines.append(f'      {"|".join(verbs)}) words="{" ".join(following)}" ;;')
    lines += [
        "    esac",
        "  fi",
        '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
        "}",
        "complete -o bashdefault -o default -F _reflectrl reflectrl",  # completes file names if no word fits
    ]
    return "\n".join(lines) + "\n"


def _fish(words: Mapping[str, Sequence[str]]) -> str:
    lines = ["# Completion of reflectrl.", f'complete -c reflectrl -n __fish_use_subcommand -f -a "{" ".join(words)}"']
    for verbs, following in _grouped(words):
        condition = f"__fish_seen_subcommand_from {' '.join(verbs)}"
        lines.append(f"complete -c reflectrl -n '{condition}' -a \"{' '.join(following)}\"")
    return "\n".join(lines) + "\n"


def _grouped(words: Mapping[str, Sequence[str]]) -> Iterator[tuple[list[str], Sequence[str]]]:
    """Yield groups of verbs with the words that can follow all of them. `run` and its stages share hundreds."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for verb, following in words.items():
        groups.setdefault(tuple(following), []).append(verb)
    for following, verbs in groups.items():
        yield verbs, following
