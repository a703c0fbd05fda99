"""Parsing the command line: its words → a verb, and the settings that it overrides.

tyro reads the verb's own options. Any other word that begins with "--" sets a key of the recipe or an argument of the
environment. Those are taken out first, so that `--rl.lr -1 taxi` and `taxi --rl.lr -1` mean the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Union

import tyro

from reflectrl.core.plugins import suggestion
from reflectrl.core.terminal import raw_stdout
from reflectrl.core.types import UserError

_ESCAPE = re.compile(r"\x1b\[[0-9;]*+[A-Za-z]")
"""Sequence that sets a colour. In a terminal, tyro writes them into its messages."""


def parse(words: Sequence[str], verbs: Mapping[str, type], prog: str, description: str) -> tuple[Any, list[str]]:
    """Return the verb (an instance of its dataclass) and the remaining words: settings, each followed by its value.

    If a verb has a method `narrowed(words)`, as `data` has, it is replaced by the class that this returns. If it has a
    function `after_help`, the text of that follows the help.

    Raises:
        UserError: no such verb or option, or a value is missing or wrong.
        SystemExit: with code 0, after help was printed.
    """
    if not words:
        raise UserError(f"say what to do: {', '.join(verbs)} ({prog} --help explains)")
    verb, rest = words[0], words[1:]
    if verb in ("-h", "--help"):
        # Only the verbs are listed, so empty classes stand for them: tyro would read the options of each.
        kinds = tuple(
            Annotated[dataclasses.make_dataclass(kind.__name__, [], namespace={"__doc__": kind.__doc__}),
                      tyro.conf.subcommand(name)]
            for name, kind in verbs.items()
        )  # fmt: skip
        return _tyro(Union[kinds], [verb], prog, description), []  # noqa: UP007
    if verb not in verbs:
        raise UserError(f"unknown verb {verb!r}{suggestion(verb, [*verbs, '--help', '--version'])}")
    kind = verbs[verb]
    if hasattr(kind, "narrowed"):
        kind = kind.narrowed(rest)
    options = {f"--{field.name.rstrip('_').replace('_', '-')}": field.type for field in dataclasses.fields(kind)}
    flags = {"--help", *(option for option, type_ in options.items() if type_ in (bool, "bool"))}
    own, settings = _separate(_texts_last(rest, flags), {"--help", *options})
    try:
        return _tyro(kind, own, f"{prog} {verb}"), settings
    except SystemExit:
        if hasattr(kind, "after_help"):
            print(f"\n{kind.after_help()}")
        raise


def _texts_last(words: Sequence[str], flags: set[str]) -> Sequence[str]:
    """Return the words with all texts at the end, behind a "--", if one begins with a dash.

    A text is what follows a lone "--", or begins with a dash and is quoted: "-k: where is it read?"

    Args:
        words: words after the verb.
        flags: options without a value.
    """
    texts, options, rest, begins_with_dash = list[str](), list[str](), list(words), False
    while rest:
        word = rest.pop(0)
        option, equals, _ = word.partition("=")
        if word == "--":
            texts, rest, begins_with_dash = [*texts, *rest], [], True
        elif not word.startswith("-") or any(map(str.isspace, option)):
            texts.append(word)
            begins_with_dash |= word.startswith("-")
        else:
            options.append(word)
            if not equals and option.replace("_", "-") not in flags and rest and not rest[0].startswith("--"):
                options.append(rest.pop(0))
    return [*options, "--", *texts] if begins_with_dash else words


def _separate(words: Sequence[str], options: set[str]) -> tuple[list[str], list[str]]:
    """Return the verb's own words, and the settings with their values."""
    own: list[str] = []
    settings: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, equals, _ = word.partition("=")
        if word == "--":
            return [*own, word, *rest], settings
        if not word.startswith("--") or option.replace("_", "-") in options:
            own.append(word)
            continue
        settings.append(word)
        if not equals and rest and not rest[0].startswith("--"):
            settings.append(rest.pop(0))
    return own, settings


def _tyro(kind: Any, words: Sequence[str], prog: str, description: str | None = None) -> Any:
    """Parse with tyro, and turn its boxed error message into one line."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(raw_stdout()):  # help has colours
            return tyro.cli(
                kind, prog=prog, description=description, args=words, config=(tyro.conf.FlagCreatePairsOff,)
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UserError(_unboxed(complaint.getvalue())) from None


def _unboxed(box: str) -> str:
    """Return the message inside tyro's box: the lines between its title and the next horizontal line."""
    lines = [line.strip(" │|╭╮╰╯") for line in _ESCAPE.sub("", box).splitlines()]
    _title, *rest = [line for line in lines if line] or [""]
    message = []
    for line in rest:
        if not re.match("[─-]{3}", line):
            message.append(line)
        elif message:
            break
    if message and message[0].startswith("Missing from"):  # the next line names the option; the rest describes it
        message = [*message[:2], "(--help explains)"]
    return " ".join(message) or "the command line cannot be read"
