"""Commands that are tried out on a copy of a session's files, in a bubblewrap container.

The container has no network, no access to other processes, no keys of the kernel's key rings and no environment
variables. Of the file system it sees only the system's programs and this Python (both read-only), and the copy. A
command has no capabilities, even if root runs the session, so it cannot mount anything anew. Without bubblewrap,
commands are refused: a copy alone would protect neither the user's other files nor their secrets.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.index import index
from reflectrl.wings.autoexplore.names import shown
from reflectrl.wings.autoexplore.sandbox import Sandbox
from reflectrl.wings.autoexplore.session.overlay import EDITED_BYTES, FILTERS, Overlay

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache")
"""Paths of the machine that a command may read."""
WORK = "/session"
"""Path of the copy in the container. No machine has a folder of that name."""
USER = "1000"
"""User and group that a command runs as, in the container."""
KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
"""Number of the system call keyctl, by machine."""
JOIN_SESSION_KEYRING = 1
HIDDEN = ("/proc/keys", "/proc/key-users")
"""Lists of the user's keys, which no namespace hides."""
COPIED_BYTES = 512 * 1024 * 1024
"""Largest copy of a repository."""
LEFT_BEHIND = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", "node_modules")
"""Folders that tools write beside their work. Their contents are not taken into the session."""


@dataclass(frozen=True)
class Limits:
    """Limits of a command.

    Attributes:
        seconds: wall-clock time, after which the container is killed.
        memory: address space of each process, in bytes.
        output: characters that are kept of what it prints.
        file_size: largest file that it may write, in bytes.
    """

    seconds: float = 60.0
    memory: int = 2 * 2**30
    output: int = 20_000
    file_size: int = 64 * 2**20


@dataclass(frozen=True)
class Ran:
    """Result of a command.

    Attributes:
        status: exit status; None if it ran out of time.
        output: what it printed, on stdout and stderr, cut at the limit.
        cut: True if more was printed.
        seconds: wall-clock time.
        not_kept: files that it wrote and that were not taken into the session, with the reason.
    """

    status: int | None
    output: str
    cut: bool
    seconds: float
    not_kept: tuple[str, ...] = ()


def bubblewrap() -> str:
    """Return the path of bubblewrap; raise UserError if it is not installed."""
    path = shutil.which("bwrap")
    if path is None:
        raise UserError("commands run in a bubblewrap container only; install bubblewrap (the program bwrap) first")
    return path


def run(overlay: Overlay, command: Sequence[str], limits: Limits | None = None) -> Ran:
    """Run a command on a copy of the session's files, and take its changes into the session.

    Args:
        command: program and arguments, without a shell. The copy is the current folder.

    Raises:
        UserError: bubblewrap is not installed or cannot make a container, or the repository is too large to copy.
    """
    limits, program = limits or Limits(), bubblewrap()
    if not command or any("\0" in word for word in command):
        raise UserError("run needs a command")
    with tempfile.TemporaryDirectory(prefix="reflectrl-session-") as folder:
        copy = Path(folder) / "files"
        copied = copy_to(overlay, copy)
        start = time.monotonic()
        status, output, cut = _run_limited([*_container(program, copy), "--", *command], limits)
        seconds = time.monotonic() - start
        if output.startswith("bwrap: execvp "):
            raise UserError(f"the container has no program {command[0]!r}")
        if status is not None and output.startswith("bwrap: ") and not _can_contain(program, copy):
            raise UserError(f"bubblewrap cannot make a container here: {output.strip()[len('bwrap: ') :]:.200}")
        return Ran(status, output, cut, seconds, tuple(_take_over(overlay, copy, copied)))


def copy_to(overlay: Overlay, folder: Path) -> dict[str, bytes | int]:
    """Write all files of a session to a new folder.

    Returns:
        Path → content of each file that can be edited, or its size if it is larger.
    """
    folder.mkdir()
    copied: dict[str, bytes | int] = {}
    total = 0
    for path in overlay.files:
        data = overlay.data(path, COPIED_BYTES)
        total += len(data)
        if total > COPIED_BYTES:
            raise UserError(
                f"the repository has more than {COPIED_BYTES / 2**20:.0f} MiB, too much to copy for a command"
            )
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(0o755 if overlay.executable(path) else 0o644)
        copied[path] = data if len(data) <= EDITED_BYTES else len(data)
    return copied


def _container(program: str, copy: Path) -> list[str]:
    """Return bubblewrap with its options."""
    python = {str(Path(prefix)) for prefix in (sys.prefix, sys.base_prefix)}
    shared = [*(path for path in SYSTEM if Path(path).exists()), *sorted(python)]
    options = [program, "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]
    # Root keeps its rights over files in the container, but bubblewrap mounts them read-only, and without capabilities
    # they stay so. Another user namespace would give new capabilities.
    options += ["--unshare-user", "--uid", USER, "--gid", USER, "--cap-drop", "ALL"]
    options += [option for option in ("--disable-userns",) if option in _help(program)]
    # In this order, since a later mount covers an earlier one, and this Python may lie below /tmp.
    options += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for path in shared:
        options += ["--ro-bind", path, path]
    for path in HIDDEN:
        if Path(path).exists():
            options += ["--ro-bind", "/dev/null", path]
    options += ["--remount-ro", "/proc"]  # settings of the kernel, some of which root may write without capabilities
    options += ["--bind", str(copy), WORK, "--chdir", WORK]
    path = os.pathsep.join([str(Path(sys.prefix) / "bin"), "/usr/local/bin", "/usr/bin", "/bin"])
    for name, value in {"PATH": path, "HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}.items():
        options += ["--setenv", name, value]
    return options


@cache
def _help(program: str) -> str:
    """Return bubblewrap's help, which names the options that this version has."""
    return subprocess.run([program, "--help"], capture_output=True, text=True, check=False, env={}).stdout


def _can_contain(program: str, copy: Path) -> bool:
    """Return whether bubblewrap can run anything at all, to tell its own messages from a command's output."""
    trial = [*_container(program, copy), "--", "/usr/bin/env", "true"]
    return subprocess.run(trial, capture_output=True, check=False, stdin=subprocess.DEVNULL, env={}).returncode == 0


def _leave_keyring() -> None:
    """Give this process an empty session keyring of its own. Namespaces do not separate the keys in it."""
    if (number := KEYCTL.get(platform.machine())) is not None:
        ctypes.CDLL(None).syscall(number, JOIN_SESSION_KEYRING, None)


def _run_limited(command: Sequence[str], limits: Limits) -> tuple[int | None, str, bool]:
    """Run a program; return its status (None after a time-out), its output, and whether the output was cut."""

    def set_limits() -> None:
        cpu = int(limits.seconds) + 1
        for kind, value in (
            (resource.RLIMIT_CPU, cpu),
            (resource.RLIMIT_AS, limits.memory),
            (resource.RLIMIT_FSIZE, limits.file_size),
            (resource.RLIMIT_CORE, 0),
        ):
            with contextlib.suppress(ValueError, OSError):  # a lower limit is set already
                resource.setrlimit(kind, (value, value))
        _leave_keyring()

    with tempfile.TemporaryFile() as output:
        # A file takes any amount of output without a thread that reads it; its size is limited like any other file's.
        process = subprocess.Popen(  # noqa: PLW1509  a session has no threads
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=set_limits,
            env={},  # bubblewrap is process 1 of the container, and everything there may read its environment
        )
        try:
            status: int | None = process.wait(timeout=limits.seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            process.kill()  # killing bubblewrap ends everything in the container
            process.wait()
        output.seek(0)
        printed = output.read(4 * limits.output + 4).decode("utf-8", "replace")
    return status, printed[: limits.output], len(printed) > limits.output


def _take_over(overlay: Overlay, copy: Path, copied: dict[str, bytes | int]) -> list[str]:
    """Take the files that a command wrote or deleted into the overlay. Return those that were not, with reasons."""
    sandbox = Sandbox(copy)
    files, not_kept = index(sandbox, FILTERS).files, []
    for path in sorted(copied.keys() - files.keys()):
        try:
            if not sandbox.exists(path):
                overlay.delete(path)
        except (OSError, UserError) as error:
            not_kept.append(f"{shown(path)} ({error})")
    for path, stamp in files.items():
        before = copied.get(path)
        if any(name in LEFT_BEHIND for name in path.split("/")) or (isinstance(before, int) and before == stamp.size):
            continue
        try:
            data = sandbox.read(path, EDITED_BYTES + 1)[0]
            if data != before:
                overlay.put(path, data)
        except (OSError, UserError) as error:
            not_kept.append(f"{shown(path)} ({error})")
    return not_kept
