"""A program that renders templates by strangers, with limits on processor time and memory. `rendering` starts it.

It reads requests as lines of JSON and answers each with a line: {"text": ...} or {"error": ...}. A template that needs
too much time ends the process. The environment is that of `transformers`, written again here because importing the
library takes seconds.
"""

from __future__ import annotations

import json
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

try:
    import resource
except ImportError:  # not on this system
    resource = None  # type: ignore[assignment]

SECONDS = 2
"""Processor time for a template."""
MEMORY = 2**29
"""Address space of this process, in bytes. It needs a fifth of that for itself."""
MOST_LINES = 200_000
"""Largest number of template lines that may run for a text. Ordinary templates run some dozen lines per message."""
MOST_CHARACTERS = 2**20
"""Largest length of a text, beyond ten times the length of its request."""


class TooMuch(Exception):
    """A template computes for too long, or makes too long a text."""


class Generation(Extension):
    """The block {% generation %}, which marks answers for training."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        """Read the block. It gives the text within it."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller: Callable[[], str]) -> str:
        return caller()


class PlainDict:
    """The function `dict` of templates."""

    def __call__(self, *pairs: Any, **named: Any) -> dict[Any, Any]:
        return dict(*pairs, **named)

    def fromkeys(self, *arguments: Any) -> dict[Any, Any]:
        """Make a dictionary of keys with one value."""
        return dict.fromkeys(*arguments)


class PlainNamespace(Namespace):
    """The function `namespace` of templates. It has no names that begin with "_"."""

    def __init__(*arguments: Any, **named: Any) -> None:  # noqa: N805  a template may name a variable "self"
        attributes = dict(*arguments[1:], **named)
        for name in attributes:
            _require_plain(name)
        Namespace.__init__(arguments[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _require_plain(name)
        super().__setitem__(name, value)


def _require_plain(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace has no name {name!r}")


def _raise(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment(chat: bool) -> jinja2.Environment:
    """Return the environment of chat templates, or of other templates, in which unknown variables are errors."""
    if not chat:
        return ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined)
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise, "dict": PlainDict(), "namespace": PlainNamespace}
    return environment


def _refuse_powers(source: str) -> None:
    """Refuse templates that compute powers. A single power may take forever to compute, and no template needs it."""
    if "**" in source and any(word == "**" for _, kind, word in jinja2.Environment().lex(source) if kind == "operator"):
        raise TooMuch("it computes powers, which may take for ever")


@contextmanager
def _at_most(lines: int) -> Iterator[None]:
    """Stop a template within the block after `lines` lines of its code. A count is the same on every machine."""
    remaining = lines

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal remaining
        if frame.f_code.co_filename != "<template>":
            return None
        remaining -= event == "line"
        if remaining < 0:
            raise TooMuch(f"it does not end within {lines:,} lines")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)


def answer(request: dict[str, Any], size: int) -> dict[str, str]:
    """Render a template.

    Args:
        request: `source`, `variables`, and `chat`: True for a chat template.
        size: length of the request.
    """
    random.seed(0)
    try:
        _refuse_powers(request["source"])
        template = _environment(request["chat"]).from_string(request["source"])
        with _at_most(MOST_LINES):
            text = template.render(request["variables"])
        if len(text) > MOST_CHARACTERS + 10 * size:
            raise TooMuch(f"it makes a text of {len(text):,} characters")
    except TooMuch as error:
        return {"error": str(error), "kind": "TemplateError"}
    except MemoryError:
        return {"error": f"it needs more than {MEMORY // 2**20} MiB of memory", "kind": "TemplateError"}
    except BaseException as error:  # a template may raise anything
        return {"error": str(error)[:1000], "kind": type(error).__name__}
    return {"text": text}


def main() -> None:
    """Answer requests until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to end
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, SECONDS)  # its signal ends the process
        reply = json.dumps(answer(json.loads(line), len(line)))
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(f"{reply}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
