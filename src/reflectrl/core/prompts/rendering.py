"""Rendering of templates, which are programs by a model's author or by a user, so that they give the same text and end.

They run in a process of their own (`template_program`), in a sandbox without files and network, and without the user's
environment variables. Its time, its memory and the length of the text are limited, and its clock stands still.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from reflectrl.core.prompts import template_program

TODAY = datetime(2025, 1, 1)
"""Date that templates see. With the real date, a run that is continued tomorrow would see other prompts."""

DATE_PARTS = "aAbBcdfHIjmMpSuUwWxXyYFDTReGVhnt"
"""Format codes of `strftime`."""


class TemplateError(Exception):
    """Error of a template. If the template itself raised it, this is a subclass with the name of the error's type."""


def render(tokenizer: Any, messages: Sequence[Mapping[str, str]], open_answer: bool = True) -> str:
    """Render messages with a tokenizer's chat template.

    Args:
        open_answer: end with what comes before the assistant's next message.

    Raises:
        TemplateError: the template fails, computes for too long, or makes too long a text.
    """
    settings = {"enable_thinking": False, "date_string": f"{TODAY.day} {TODAY:%B %Y}"}  # variables of some templates
    source = str(tokenizer.get_chat_template())
    if "strftime_now" in source:
        source = f"{_fixed_clock()}\n{source}"
    variables = {
        **tokenizer.special_tokens_map,
        **settings,
        "messages": [dict(message) for message in messages],
        "tools": None,
        "documents": None,
        "add_generation_prompt": open_answer,
    }
    return _PROCESS.render(source, variables, chat=True)


def render_file(source: str, **variables: object) -> str:
    """Render a template from a user's file with the same limits: no files, no attributes of Python, no endless loop.

    Raises:
        TemplateError: the template fails, for example at an unknown variable, or computes for too long.
    """
    return _PROCESS.render(source, variables, chat=False)


def _fixed_clock() -> str:
    """Return a macro that replaces the library's `strftime_now`, since a function cannot be passed to a template."""
    written = {f"%{part}": f"{TODAY:%{part}}" for part in DATE_PARTS}
    written |= {f"%-{part}": f"{TODAY:%{part}}".lstrip("0") or "0" for part in "dmHIMSj"}
    filters = "".join(f"|replace({part!r}, {value!r})" for part, value in written.items())
    return f"{{% macro strftime_now(format) %}}{{{{ format{filters} }}}}{{% endmacro %}}"


class TemplateProcess:
    """The process that renders templates. It starts when it is first needed, and anew if a template has ended it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0

    def render(self, source: str, variables: Mapping[str, object], chat: bool) -> str:
        """Render a template with variables that JSON can hold."""
        request = json.dumps({"source": source, "variables": variables, "chat": chat}, default=str)
        with self._lock:
            reply: dict[str, str] = json.loads(self._ask(request))
        if "text" in reply:
            return reply["text"]
        raise type(reply["kind"], (TemplateError,), {})(reply["error"])

    def _ask(self, request: str) -> str:
        """Send a request, and return the line that answers it."""
        if self._process is None or self._owner != os.getpid():  # a fork has no process of its own yet
            self._process, self._owner = _started(), os.getpid()
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(f"{request}\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        except BaseException:  # an interrupted request would be answered in the place of the next
            self.close()
            raise
        if not line.endswith("\n"):
            timed_out = self._process.wait() == -getattr(signal, "SIGPROF", 0)
            self.close()
            limit = f"{template_program.SECONDS} seconds" if timed_out else f"{template_program.MEMORY // 2**20} MiB"
            raise TemplateError(f"it needs more than {limit}")
        return line

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.communicate()


def _started() -> subprocess.Popen[str]:
    paths = os.pathsep.join(path for path in sys.path if os.path.isabs(path))  # noqa: PTH117
    return subprocess.Popen(
        [sys.executable, "-P", "-W", "ignore", str(Path(template_program.__file__))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        env={"PYTHONPATH": paths, "PYTHONUTF8": "1", "SYSTEMROOT": os.environ.get("SYSTEMROOT", "")},
    )


_PROCESS = TemplateProcess()
atexit.register(_PROCESS.close)
