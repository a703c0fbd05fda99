"""The command line: `reflectrl VERB ...`.

Exit codes: 0 done, 1 a bug, 2 a mistake in the input or a full disk, 130 interrupted, 141 the reader of the output has
gone, 143 ended by SIGTERM.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import reflectrl
from reflectrl.core.advice import install, on_the_command_line
from reflectrl.core.distributed import launched, spoken_for
from reflectrl.core.plugins import reason
from reflectrl.core.start import leave_current_folder
from reflectrl.core.terminal import harmless, print_traceback, printable_line
from reflectrl.core.types import UserError

DESCRIPTION = (
    "Teach a small, local language model to act in a multi-step text environment. Begin with: reflectrl run taxi"
)

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of the system that mean: the disk is full, a quota is used up, or a file is too large."""
LEFT_OUT = ("torch", "transformers", "peft", "accelerate", "matplotlib", "scipy")
"""Dependencies of the package that `make locate` does not install."""


def main(words: Sequence[str] | None = None) -> int:
    """Carry out a command, and return the exit code.

    A user's mistake, or a full disk, is answered with one line on stderr. Any other exception is a bug and keeps its
    traceback.
    """
    sys.excepthook = print_traceback
    _open_missing_streams()
    if words is None:
        leave_current_folder()
    words = sys.argv[1:] if words is None else list(words)
    if launched()[1] > 1:  # torch's libraries would print their stacks when another process ends
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    with harmless(), ending_in_order(), on_the_command_line():
        try:
            if words and words[0] in ("--version", "-V"):
                print(f"reflectrl {reflectrl.__version__}")
            else:
                from reflectrl.cli.arguments import parse
                from reflectrl.cli.verbs import Verbs, purposes
                from reflectrl.core.open_environments import closing_environments

                verbs = Verbs()
                verb, settings = parse(words, verbs, "reflectrl", f"{DESCRIPTION}\n\n{purposes(verbs)}")
                with closing_environments():
                    verb(settings)
            sys.stdout.flush()
        except UserError as error:
            if not spoken_for():
                print(f"reflectrl: {printable_line(' '.join(str(error).split()))}", file=sys.stderr)
            return 2
        except KeyboardInterrupt as error:
            terminated = error.args == (signal.SIGTERM,)
            how = "ended by SIGTERM" if terminated else "interrupted"
            print(f"reflectrl: {how}; run the same command again to continue", file=sys.stderr)
            return 128 + (signal.SIGTERM if terminated else signal.SIGINT)
        except ModuleNotFoundError as error:  # of a light install (`make locate`)
            if error.name not in LEFT_OUT:
                raise
            what = f"{error.name} is not installed here, only what `locate` needs"
            print(f"reflectrl: {what}; for the rest, {install()}", file=sys.stderr)
            return 2
        except BrokenPipeError:  # the reader (head, less) has gone, so nothing more is printed, not even at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            _finish_output()
            print(f"reflectrl: {printable_line(' '.join(no_room(error).split()))}", file=sys.stderr)
            return 2
    return 0


def _open_missing_streams() -> None:
    """Open standard streams that were closed when Python started, as empty files. Libraries expect all three."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest free number, so usually that of the stream
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", closefd=False))


def no_room(error: OSError) -> str:
    """Return the line about a full disk, if no other code has reported it. Names the file if it is known."""
    return f"{error.filename or 'a file (or what is printed)'} cannot be written: {reason(error)}"


def _finish_output() -> None:
    """Print the remaining output. Drop it if there is no room, so that the interpreter does not fail at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Treat SIGTERM, which clusters and `kill` send, like Ctrl-C: end the workers, and print one line."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt(number)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return
    previous_handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
