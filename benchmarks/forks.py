"""Python processes that start at once: forks of a server that has already imported what commands import.

    with Forks() as forks:
        forks.run(["-m", "reflectrl", "list", "envs"], cwd=folder).stdout

A run with tiny models spends three quarters of its processor time on imports. A fork has a process id, streams, a
working directory and environment variables of its own, as a process that is started anew. Only what Python itself
reads before the first line of a program is inherited from the server: options, and variables such as PYTHONHASHSEED.
Needs fork and Unix sockets.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO

MODULES = (
    "scipy.stats",
    "torch._dynamo",  # imported by the first optimiser
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "reflectrl.api",
    "reflectrl.cli.verbs",
    "reflectrl.models.players",
    "reflectrl.runs.report.plots",
    "reflectrl.runs.results",
    "reflectrl.runs.runner",
    "reflectrl.runs.training",
)
"""Modules that the server imports. A run imports all of them, and what they import, sooner or later."""

ROOT = Path(__file__).parents[1]


# ---- client ----------------------------------------------------------------------------------------------------------


class Fork:
    """A running program, with the methods of `subprocess.Popen` that serve most.

    Attributes:
        stdout, stderr: what it prints, as text, where `subprocess.PIPE` was asked for.
        pid: its process id. It stays valid until the server has reported the exit code.
        returncode: exit code, as `subprocess` counts it; None before `wait`.
        seconds: processor time, with that of processes that it has waited for; 0 before `wait`.
    """

    stdout: IO[str] | None = None
    stderr: IO[str] | None = None

    def __init__(self, connection: socket.socket) -> None:
        self._answers = connection.makefile("r", buffering=1, encoding="utf-8")
        connection.close()
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None
        self.seconds = 0.0

    def poll(self) -> int | None:
        """Return the exit code, or None if the program has not ended yet."""
        return self.wait() if self.returncode is None and self._has_ended(0) else self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask the program to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the program at once."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end of the program. Return what it has printed to its two streams, and close them."""
        self.wait(timeout)
        printed = [stream.read() if stream else "" for stream in (self.stdout, self.stderr)]
        for stream in (self.stdout, self.stderr):
            if stream:
                stream.close()
        return printed[0], printed[1]

    def _has_ended(self, timeout: float | None) -> bool:
        return bool(select.select([self._answers], [], [], timeout)[0])

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the program. Return its exit code.

        Raises:
            TimeoutError: it has not ended after this many seconds, and was killed.
        """
        if self.returncode is None:
            if not self._has_ended(timeout):
                os.kill(self.pid, signal.SIGKILL)
                raise TimeoutError(f"process {self.pid} had not ended after {timeout} s")
            code, seconds = self._answers.readline().split()
            self.returncode, self.seconds = int(code), float(seconds)
            self._answers.close()
        return self.returncode


class Forks:
    """Server that starts programs in forks of itself. It has the environment variables of its first moment."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="forks-")
        self._address = str(Path(self._folder.name) / "socket")
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self._server = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.forks", self._address],
            env=os.environ | {"PYTHONPATH": paths, "TORCH_CPP_LOG_LEVEL": "ERROR"},  # as the command line sets it
            stdin=subprocess.PIPE,  # its end tells the server that this process has ended, however it did
            stdout=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is not for it
        )
        assert self._server.stdout is not None
        if not self._server.stdout.readline():
            raise OSError(f"the server of forks has ended with exit code {self._server.wait()}")

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(
        self,
        words: Sequence[str],
        cwd: Path | str = ".",
        env: Mapping[str, str] | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        start_new_session: bool = False,
    ) -> Fork:
        """Start `python WORDS`, where the words begin with "-m" or "-c".

        Args:
            env: all its environment variables; those of this process if not given.
            stdin: descriptor of the stream; the null device if not given. The same holds for the other two, which may
                also be `subprocess.PIPE`. A pipe holds 64 KiB that nobody has read.
            start_new_session: make it the leader of a process group of its own.
        """
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._address)
        about = [list(words), str(Path(cwd).resolve()), dict(os.environ if env is None else env), start_new_session]
        pipes: dict[str, int] = {}
        with contextlib.ExitStack() as opened:
            null = opened.enter_context(Path(os.devnull).open("r+b")).fileno()
            streams = [null if stdin is None else stdin]
            for name, stream in (("stdout", stdout), ("stderr", stderr)):
                if stream == subprocess.PIPE:
                    pipes[name], stream = os.pipe()
                    opened.callback(os.close, stream)
                streams.append(null if stream is None else stream)
            socket.send_fds(connection, [b"x"], streams)
        connection.sendall(json.dumps(about).encode() + b"\n")
        fork = Fork(connection)
        for name, reader in pipes.items():
            setattr(fork, name, os.fdopen(reader, encoding="utf-8", errors="replace"))
        return fork

    def run(
        self,
        words: Sequence[str],
        cwd: Path | str = ".",
        env: Mapping[str, str] | None = None,
        input: str = "",
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, as `subprocess.run` does with text."""
        with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            stdin.write(input.encode())
            for stream in (stdin, out, err):
                stream.seek(0)
            code = self.start(words, cwd, env, stdin.fileno(), out.fileno(), err.fileno()).wait(timeout)
            for stream in (out, err):
                stream.seek(0)
            return subprocess.CompletedProcess(list(words), code, out.read().decode(), err.read().decode())

    def close(self) -> None:
        """End the server. Programs that are running go on."""
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()
        self._folder.cleanup()


# ---- server ----------------------------------------------------------------------------------------------------------


def serve(address: str) -> None:
    """Accept requests until stdin ends. Returns only in a fork, as the program's process: with what it has to run."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks that wait for programs
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen(64)
        print("ready", flush=True)
        while True:
            if sys.stdin in select.select([server, sys.stdin], [], [])[0]:
                sys.exit()
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _start(connection)
                return
            connection.close()


def _start(connection: socket.socket) -> None:
    """Fork once more, and become the program in the fork. The process above reports the exit code and ends."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("r", encoding="utf-8") as file:
        words, cwd, env, own_session = json.loads(file.readline())
    if child := os.fork():
        connection.sendall(f"{child}\n".encode())
        _, status, used = os.wait4(child, 0)
        with contextlib.suppress(BrokenPipeError):  # nobody waits for the answer
            answer = f"{os.waitstatus_to_exitcode(status)} {used.ru_utime + used.ru_stime:.3f}\n"
            connection.sendall(answer.encode())
        os._exit(0)
    connection.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server may have been started in the background
    if own_session:
        os.setsid()
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(streams[descriptor], descriptor)
        os.close(streams[descriptor])
        _reopen(descriptor, name)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[0] = cwd if words[0] == "-m" else ""
    sys.path[1:1] = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    sys.argv = list(words)


def _reopen(number: int, name: str) -> None:
    """Open a standard stream as Python does at its start: another kind of file is behind it now."""
    before = getattr(sys, name)
    lines = name == "stderr" or os.isatty(number)
    stream = open(  # noqa: SIM115, PTH123
        number, before.mode, 1 if lines else -1, before.encoding, before.errors, closefd=False
    )
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def run_program() -> None:
    """Do what Python does with the arguments in `sys.argv`."""
    option, what, *words = sys.argv
    if option == "-m":
        sys.argv = [what, *words]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["-c", *words]
        program = sys.modules["__main__"] = ModuleType("__main__")  # where pickle looks for its classes
        exec(compile(what, "<string>", "exec"), vars(program))


if __name__ == "__main__":
    for module in MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # else the first collection in every fork would copy all pages
    serve(sys.argv[1])
    run_program()
