"""Safe printing of text from models, environments and files.

Terminals obey control characters, which can set the title, the colours and the clipboard, or overwrite earlier output.
Text that we merely display must not do that. `harmless` guards everything that is printed. `console` makes the only
kind of console for tables and progress bars.
"""

from __future__ import annotations

import io
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:  # slow to import, and not needed by most verbs
    from rich.console import Console

HIDDEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but for tabs and line breaks
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that turn the direction of reading
    "\xad\u200b\u2028\u2029\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible ones
    "\ud800-\udfff"  # halves of a character, which no encoding knows
)
_HIDDEN, _HIDDEN_OR_BREAK = re.compile(f"[{HIDDEN}]"), re.compile(f"[{HIDDEN}\t\n]")


def printable(text: str) -> str:
    r"""Return the text with every control character and invisible character escaped, as in "\x1b" or "\u202e".

    Tabs and line breaks are kept.
    """
    return text if text.isprintable() else _HIDDEN.sub(_escaped, text)


def printable_line(text: str) -> str:
    """Escape like `printable`, and tabs and line breaks too. For text that must stay on one line, such as names."""
    return text if text.isprintable() else _HIDDEN_OR_BREAK.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


class Harmless:
    """Text stream that makes everything printable before it passes it on to an inner stream."""

    def __init__(self, inner: TextIO) -> None:
        self.inner = inner

    def write(self, text: str) -> int:
        """Write the text in printable form."""
        self.inner.write(printable(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@contextmanager
def harmless() -> Iterator[None]:
    """Guard everything printed to stdout and stderr within the block. Escape characters that they cannot encode."""
    before = sys.stdout, sys.stderr
    handled = [getattr(stream, "errors", None) for stream in before]
    _handle_errors(before, ["backslashreplace"] * 2)
    sys.stdout, sys.stderr = (cast(TextIO, Harmless(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        _handle_errors(before, handled)


def _handle_errors(streams: Sequence[TextIO], how: Sequence[str | None]) -> None:
    """Set the handling of characters that a stream cannot encode. Streams other than files encode everything."""
    for stream, errors in zip(streams, how, strict=True):
        if isinstance(stream, io.TextIOWrapper) and not stream.closed:
            stream.reconfigure(errors=errors)


def print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of a bug in printable form, since it may quote an environment. For `sys.excepthook`."""
    sys.stderr.write(printable("".join(traceback.format_exception(kind, error, trace))))


@cache
def note_once(line: str) -> None:
    """Print a remark on stderr, only once per process."""
    sys.stderr.write(f"note: {printable_line(line)}\n")
    sys.stderr.flush()


def raw_stdout() -> TextIO:
    """Return stdout without the guard, for our own control codes."""
    stream = cast(Any, sys.stdout)
    while isinstance(stream, Harmless):
        stream = stream.inner
    return cast(TextIO, stream)


def console(width: int) -> Console:
    """Make a console on stdout that interprets no markup and shows control characters as escapes.

    Args:
        width: number of columns if stdout is a file or a pipe, whose width is not limited.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Plain(Console):
        def render_str(self, text: str, **options: Any) -> Any:
            return super().render_str(printable(text), **options)  # here, so that columns have the right width

        def render(self, *arguments: Any, **options: Any) -> Any:
            for text, style, control in super().render(*arguments, **options):
                yield Segment(text if control else printable(text), style, control)

    plain_console = Plain(file=raw_stdout(), markup=False, highlight=False, emoji=False)
    if not plain_console.is_terminal:
        plain_console.width = width
    return plain_console
