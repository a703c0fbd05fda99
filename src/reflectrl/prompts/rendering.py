"""Running chat templates: programs of whoever made a model, which have to give the same text every day, and soon.

The library runs them in a sandbox, which has no files and no network, but a clock, a die and no end.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import Any

from jinja2 import Environment

MOST_LINES = 200_000
"""The most lines of a template's code that a text may take; ordinary templates take some dozen for a message."""

TODAY = datetime(2025, 1, 1)
"""The day that templates are told. With the clock's, a run that goes on tomorrow would read other prompts."""

DATE_PARTS = "aAbBcdfHIjmMpSuUwWxXyYFDTReGVhnt"
"""What `strftime` knows."""


class TemplateError(Exception):
    """A template computes for too long."""


def render(tokenizer: Any, messages: Sequence[Mapping[str, str]], open_answer: bool = True) -> str:
    """The text that a tokenizer's chat template makes of messages.

    Args:
        open_answer: end with what comes before the assistant's next message.

    Raises:
        Exception: of any kind, since the template is a program. `TemplateError` if it does not end soon.
    """
    settings = {"enable_thinking": False, "date_string": f"{TODAY.day} {TODAY:%B %Y}"}  # what some templates ask for
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


def _fixed_clock() -> str:
    """The macro that stands in for the library's `strftime_now`, which templates may not be handed as a function."""
    written = {f"%{part}": f"{TODAY:%{part}}" for part in DATE_PARTS}
    written |= {f"%-{part}": f"{TODAY:%{part}}".lstrip("0") or "0" for part in "dmHIMSj"}
    filters = "".join(f"|replace({part!r}, {value!r})" for part, value in written.items())
    return f"{{% macro strftime_now(format) %}}{{{{ format{filters} }}}}{{% endmacro %}}"


def _refuse_powers(source: str) -> None:
    """Refuse templates that raise numbers to a power: one such operation may compute for ever, and none needs it."""
    if "**" in source and any(word == "**" for _, kind, word in Environment().lex(source) if kind == "operator"):
        raise TemplateError("it computes powers, which may take for ever")


@contextmanager
def _at_most(lines: int) -> Iterator[None]:
    """Stop a template within the block that runs more lines of its own code. A count is the same on every machine."""
    left = lines

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != "<template>":
            return None
        left -= event == "line"
        if left < 0:
            raise TemplateError(f"it does not end within {lines:,} lines")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)
