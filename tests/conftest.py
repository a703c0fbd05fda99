"""What holds for every test: one thread for torch, and no connection that leaves this machine."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: workers share the cores


class NetworkBlocked(RuntimeError):
    """A test tried to reach another machine."""


def _is_here(host: object) -> bool:
    text = host.decode() if isinstance(host, bytes) else str(host)
    return host is None or text in ("", "localhost", "::1") or text.startswith("127.")


def _refuse_other_machines(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.sendto"):
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else None  # a path is a socket of this machine
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        return
    if not _is_here(host):
        raise NetworkBlocked(f"{event} to {host!r}: tests run without a network")


sys.addaudithook(_refuse_other_machines)  # cannot be taken back: it holds for the whole session


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """`command("list", "envs")`: the command line in a process of its own, in an empty folder."""

    def run(*words: str, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "reflectrl", *words],
            cwd=tmp_path,
            env=os.environ | (env or {}),
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
            **({"stdin": subprocess.DEVNULL} if "input" not in options else {}),
            **options,
        )

    return run
