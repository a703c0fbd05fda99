"""No command of a session gets out of its container, whoever runs the session. Needs bubblewrap."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wings.autoexplore.session.escapes import BEGIN, ESCAPES
from tests.wings.autoexplore.session.test_session import contained

SECRET = "sk-of-the-user"
USERS = ["this user", *(["nobody"] if os.geteuid() == 0 else [])]
NOBODY = 65534


def readable(path: Path) -> bool:
    """Whether every user may read a file or a folder."""
    try:
        return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.resolve().parents))
    except OSError:
        return False


def python_of(user: str) -> str:
    """Path of a Python that the user may run."""
    if user == "nobody" and not readable(Path(sys.executable).resolve()):
        others = [path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if readable(Path(path))]
        for path in others:
            words = [path, "-c", "import sys; print(sys.version_info[:2])"]
            if subprocess.check_output(words, text=True).strip() == str(sys.version_info[:2]):
                return path
        pytest.skip("nobody may run no Python of this version")
    return sys.executable


@pytest.fixture
def machine() -> Iterator[dict[str, str]]:
    """What the user's machine has and no command may reach, by the names that programs have for it."""
    libc = ctypes.CDLL(None)
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="reflectrl-drill"),
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as named,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        Path(folder).chmod(0o755)
        place = Path(folder) / "secret.txt"
        place.write_text(SECRET, encoding="utf-8")
        repository = Path(folder) / "repository"
        repository.mkdir()
        (repository / "a.py").write_text("print(1)\n", encoding="utf-8")
        abstract.bind("\0reflectrl-drill")
        named.bind(f"{folder}/socket")
        for listener in (abstract, named):
            listener.listen()
        key = 0x5EC2E7
        segment = libc.shmget(key, 4096, 0o1666)
        yield {
            "SECRET": f"b{SECRET[:5]!r} + b{SECRET[5:]!r}",
            "PLACE": str(place), "SOCKET": f"{folder}/socket", "PORT": str(server.getsockname()[1]),
            "SHMKEY": str(key), "HOST": str(os.getpid()), "FOLDER": folder,
        }  # fmt: skip
        if segment >= 0:
            libc.shmctl(segment, 0, None)


def keyring() -> None:
    """Give the session that is started a key ring with a secret in it."""
    libc = ctypes.CDLL(None)
    numbers = {"x86_64": (250, 248), "aarch64": (219, 217)}.get(platform.machine())
    if numbers:
        libc.syscall(numbers[0], 1, None)
        libc.syscall(numbers[1], b"user", b"reflectrl-drill", SECRET.encode(), len(SECRET), -3)


@contained
@pytest.mark.parametrize("user", USERS)
def test_no_command_gets_out(machine: dict[str, str], user: str) -> None:
    python, requests = python_of(user), list[str]()
    for program in ESCAPES.values():
        for name, value in machine.items():
            program = program.replace(name, value)
        requests.append(json.dumps({"do": "run", "command": [python, "-c", BEGIN + program]}))
    words = [python, "-P", "-m", "reflectrl", "session", "--json", "--allow-run"]
    done = subprocess.run(  # noqa: PLW1509
        [*words, "--repo", f"{machine['FOLDER']}/repository"],
        input="\n".join([*requests, ""]),
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if readable(Path(path))),
            "MY_API_KEY": SECRET,
            "HOME": machine["FOLDER"],
        },
        capture_output=True,
        text=True,
        check=False,
        user=NOBODY if user == "nobody" else None,
        extra_groups=[] if user == "nobody" else None,
        preexec_fn=keyring,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(ESCAPES) and all(answer["ok"] for answer in answers), (done.stdout, done.stderr)
    outputs = {way: answer["output"] for way, answer in zip(ESCAPES, answers, strict=True)}
    assert {way: output for way, output in outputs.items() if "ESCAPED" in output} == {}
    assert SECRET not in done.stdout and {way: text for way, text in outputs.items() if "Traceback" in text} == {}
    assert answers[list(ESCAPES).index("programs for the next start")]["changed"] == []
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"97531" in _content(path)]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
