"""Rendering of chat templates, which are programs by a model's author, so that they give the same text and terminate.

The library runs them in a sandbox without files and network. But the sandbox has a clock and random numbers, and it
does not limit the running time.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import Any

from jinja2 import Environment, StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_LINES = 200_000
"""Largest number of template lines that may run for a text. Ordinary templates run some dozen lines per message."""

TODAY = datetime(2025, 1, 1)
"""Date that templates see. With the real date, a run that is continued tomorrow would see other prompts."""

DATE_PARTS = "aAbBcdfHIjmMpSuUwWxXyYFDTReGVhnt"
"""Format codes of `strftime`."""


class TemplateError(Exception):
    """Error of a template that computes for too long."""


def render(tokenizer: Any, messages: Sequence[Mapping[str, str]], open_answer: bool = True) -> str:
    """Render messages with a tokenizer's chat template.

    Args:
        open_answer: end with what comes before the assistant's next message.

    Raises:
        Exception: of any kind, since the template is a program. `TemplateError` if it does not end soon.
    """
    settings = {"enable_thinking": False, "date_string": f"{TODAY.day} {TODAY:%B %Y}"}  # variables of some templates
    source = str(tokenizer.get_chat_template())
    if "strftime_now" in source:
        source = f"{_fixed_clock()}\n{source}"
    _refuse_powers(source)
    dice = random.getstate()
    random.seed(0)
    try:
        with _at_most(MOST_LINES):
            text: str = tokenizer.apply_chat_template(
                list(messages), chat_template=source, tokenize=False, add_generation_prompt=open_answer, **settings
            )
    finally:
        random.setstate(dice)
    return text


def render_file(source: str, **variables: object) -> str:
    """Render a template from a user's file with the same limits: no files, no attributes of Python, no endless loop.

    Raises:
        Exception: of any kind, since the template is a program: `jinja2.UndefinedError` for an unknown variable, for
            example, or `TemplateError` if it does not end soon.
    """
    _refuse_powers(source)
    template = ImmutableSandboxedEnvironment(undefined=StrictUndefined).from_string(source)
    with _at_most(MOST_LINES):
        return template.render(variables)


def _fixed_clock() -> str:
    """Return a macro that replaces the library's `strftime_now`, since a function cannot be passed to a template."""
    written = {f"%{part}": f"{TODAY:%{part}}" for part in DATE_PARTS}
    written |= {f"%-{part}": f"{TODAY:%{part}}".lstrip("0") or "0" for part in "dmHIMSj"}
    filters = "".join(f"|replace({part!r}, {value!r})" for part, value in written.items())
    return f"{{% macro strftime_now(format) %}}{{{{ format{filters} }}}}{{% endmacro %}}"


def _refuse_powers(source: str) -> None:
    """Refuse templates that compute powers. A single power may take forever to compute, and no template needs it."""
    if "**" in source and any(word == "**" for _, kind, word in Environment().lex(source) if kind == "operator"):
        raise TemplateError("it computes powers, which may take for ever")


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
            raise TemplateError(f"it does not end within {lines:,} lines")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)
