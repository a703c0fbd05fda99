"""Three real clients of the MCP server in its first minute: the Python SDK, the TypeScript SDK, and lines of JSON.

    npm install --prefix DIR @modelcontextprotocol/sdk
    python -m benchmarks.mcp_clients --files 30000 --node DIR

Each client starts a server for a generated repository that has no index yet, and measures the seconds from the start of
the process to the greeting, the list of tools, the first answer, and the answer from the whole index. Then servers are
killed at several moments. No process may be left, what was saved may not be read again, and the index gets whole.

The exit code is 1 if a limit is exceeded: 1 second to the greeting, 3 to the first answer, no report of progress.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reflectrl.wings.autoexplore.locate import store
from reflectrl.wings.autoexplore.locate.live import LiveIndex

MOST_GREETING, MOST_FIRST = 1.0, 3.0
"""Limits in seconds."""
QUESTION = "where is the refund computed?"
HANDSHAKE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "benchmark", "version": "1"},
}
_SYLLABLES = [consonant + vowel for consonant in "bdfglmnprst" for vowel in "aeiou"]
_SCRIPT = """
const [folder, command, ...words] = process.argv.slice(2);
const sdk = `${folder}/node_modules/@modelcontextprotocol/sdk/dist/esm/client`;
const {Client} = await import(`${sdk}/index.js`);
const {StdioClientTransport} = await import(`${sdk}/stdio.js`);
const begun = performance.now(), seconds = () => (performance.now() - begun) / 1000;
const client = new Client({name: "benchmark", version: "1"});
await client.connect(new StdioClientTransport({command, args: words, env: process.env, stderr: "ignore"}));
const times = {greeting: seconds(), progress: 0};
const onprogress = () => { times.progress += 1; };
await client.listTools();
times.tools = seconds();
const ask = more => client.callTool({name: "locate", arguments: {question: "QUESTION", ...more}}, undefined,
                                    {onprogress, timeout: 600000});
times.said = (await ask({})).structuredContent.remarks[0] ?? "";
times.first = seconds();
const complete = await ask({wait: true});
times.complete = seconds();
if (complete.isError || !complete.structuredContent.files.length) throw new Error("no answer");
console.log(JSON.stringify(times));
await client.close();
""".replace("QUESTION", QUESTION)


@dataclass
class Times:
    """Seconds since the start of the server, and what a client was told.

    Attributes:
        greeting, tools, first, complete: seconds until these answers.
        progress: number of reports of progress.
        said: first remark of the first answer.
    """

    greeting: float = 0.0
    tools: float = 0.0
    first: float = 0.0
    complete: float = 0.0
    progress: int = 0
    said: str = ""

    def is_within_limits(self) -> bool:
        """Return whether the client did not wait for too long, and saw progress if it had to wait at all."""
        is_quick = self.greeting <= MOST_GREETING and self.first <= MOST_FIRST
        return is_quick and (self.progress > 0 or not self.said)


def make_repository(root: Path, files: int) -> None:
    """Write Python files with definitions and comments of random words. One file answers `QUESTION`."""
    draw = random.Random(1)
    vocabulary = ["".join(draw.choices(_SYLLABLES, k=3)) for _ in range(4000)]
    for number in range(files):
        path = root / f"package{number % 300}" / f"module_{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        definitions = []
        for _ in range(40):
            first, second, third = draw.choices(vocabulary, k=3)
            definitions.append(f"def {first}_{second}(a, b):\n    # {third} the {first}\n    return a + b\n")
        path.write_text("\n".join(definitions), encoding="utf-8")
    (root / "package0" / "refund.py").write_text("def refund():\n    # computes the refund\n    return 1\n")


def server_words(repo: Path) -> list[str]:
    """Return the command line of a server."""
    return [sys.executable, "-m", "reflectrl", "mcp", "--repo", str(repo)]


def ask_with_python(repo: Path) -> Times:
    """Ask with the official SDK for Python."""
    import anyio
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    command, *words = server_words(repo)
    server = StdioServerParameters(command=command, args=words, env=dict(os.environ))
    times = Times()

    async def progressed(done: float, total: float | None, message: str | None) -> None:
        times.progress += 1

    async def talk() -> None:
        with Path(os.devnull).open("w", encoding="utf-8") as log:
            begun = time.perf_counter()
            async with Client(stdio_client(server, errlog=log)) as client:
                times.greeting = time.perf_counter() - begun
                await client.list_tools()
                times.tools = time.perf_counter() - begun
                question = {"question": QUESTION}
                first = await client.call_tool("locate", question, progress_callback=progressed)
                times.first = time.perf_counter() - begun
                times.said = "".join((first.structured_content or {})["remarks"][:1])
                complete = await client.call_tool("locate", {**question, "wait": True}, progress_callback=progressed)
                times.complete = time.perf_counter() - begun
                assert (complete.structured_content or {})["files"], complete

    anyio.run(talk)
    return times


def ask_with_node(repo: Path, folder: Path) -> Times:
    """Ask with the official SDK for TypeScript.

    Args:
        folder: folder into which npm has installed it.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".mjs") as script:
        script.write(_SCRIPT)
        script.flush()
        words = ["node", script.name, str(folder.resolve()), *server_words(repo)]
        return Times(**json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout))


@dataclass
class RawClient:
    """Client that writes and reads lines of JSON.

    Attributes:
        process: server.
        begun: time of its start.
        reports: numbers of files in the reports of progress.
    """

    repo: Path
    begun: float = field(default_factory=time.perf_counter)
    reports: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            server_words(self.repo), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def send(self, request: int | None, method: str, params: Any = None) -> None:
        """Send a request, or a notification without a number."""
        message = {"jsonrpc": "2.0", "method": method, "params": params or {}} | ({"id": request} if request else {})
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def greet(self) -> None:
        """Send the handshake, and wait for the answer."""
        self.send(1, "initialize", HANDSHAKE)
        self.answer(1)
        self.send(None, "notifications/initialized")

    def ask(self, request: int, wait: bool) -> dict[str, Any]:
        """Ask the question, and return the answer."""
        arguments = {"question": QUESTION, "wait": wait}
        self.send(
            request, "tools/call", {"name": "locate", "arguments": arguments, "_meta": {"progressToken": request}}
        )
        return dict(self.answer(request)["structuredContent"])

    def answer(self, request: int) -> dict[str, Any]:
        """Return the result of a request. Note the progress that is reported before."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            if message.get("id") == request:
                return dict(message["result"])
            self.reports.append(message["params"]["progress"])
        raise SystemExit(f"the server has ended before it answered request {request}")

    def seconds(self) -> float:
        """Return the time since the start."""
        return time.perf_counter() - self.begun

    def close(self, number: int = signal.SIGKILL) -> None:
        """Send the server a signal, and wait until its streams are closed."""
        self.process.send_signal(number)
        self.process.communicate()


def ask_with_lines(repo: Path) -> Times:
    """Ask with lines of JSON."""
    client, times = RawClient(repo), Times()
    client.greet()
    times.greeting = client.seconds()
    client.send(2, "tools/list")
    client.answer(2)
    times.tools = client.seconds()
    times.said = "".join(client.ask(3, wait=False)["remarks"][:1])
    times.first = client.seconds()
    assert client.ask(4, wait=True)["files"]
    times.complete, times.progress = client.seconds(), len(client.reports)
    client.close()
    return times


def processes_of(repo: Path) -> list[int]:
    """Return the processes whose command line names the repository (Linux)."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if os.fsencode(repo) in words and int(path.parent.name) != os.getpid():
            processes.append(int(path.parent.name))
    return processes


def kill_at(repo: Path, seconds: float, number: int) -> list[str]:
    """Start a server, send it a signal after some seconds, and return what is wrong afterwards."""
    saved = len(LiveIndex(repo, refreshed=False).corpus)
    client = RawClient(repo)
    client.send(1, "initialize", HANDSHAKE)
    client.send(2, "tools/call", {"name": "locate", "arguments": {"question": QUESTION}, "_meta": {"progressToken": 2}})
    time.sleep(seconds)
    client.close(number)
    faults = []
    deadline = time.monotonic() + 2
    while (left := processes_of(repo)) and time.monotonic() < deadline:
        time.sleep(0.05)
    if left:
        faults.append(f"{len(left)} processes are left")
    now = len(LiveIndex(repo, refreshed=False).corpus)
    if now < saved:
        faults.append(f"{saved - now} saved files are lost")
    print(
        f"{signal.Signals(number).name} after {seconds:4.1f} s: {now:,} files are saved {'; '.join(faults)}", flush=True
    )
    return faults


@contextmanager
def fresh_cache() -> Iterator[None]:
    """Use a new, empty folder of caches within the block."""
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get(store.VARIABLE)
        os.environ[store.VARIABLE] = folder
        try:
            yield
        finally:
            os.environ.pop(store.VARIABLE)
            if before is not None:
                os.environ[store.VARIABLE] = before


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print a line per client and per kill, and return 1 if a limit was exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=30_000, help="number of files of the generated repository")
    parser.add_argument("--kills", type=int, default=10, help="number of servers that are killed")
    parser.add_argument("--node", type=Path, help="folder into which npm has installed the TypeScript SDK")
    given = parser.parse_args(words)
    faults = list[str]()
    with tempfile.TemporaryDirectory() as folder:
        repo = Path(folder).resolve() / "repo"
        make_repository(repo, given.files)
        clients = {"Python SDK": lambda: ask_with_python(repo)}
        if given.node is not None:
            clients["TypeScript SDK"] = lambda: ask_with_node(repo, given.node)
        clients["lines of JSON"] = lambda: ask_with_lines(repo)
        for name, ask in clients.items():
            with fresh_cache():
                times = ask()
            if not times.is_within_limits():
                faults.append(f"{name}: a limit is exceeded")
            print(
                f"{name}: greeting {times.greeting:.2f} s, tools {times.tools:.2f} s, first answer {times.first:.2f} s "
                f"({times.said or 'whole'}), whole {times.complete:.2f} s, {times.progress} reports of progress",
                flush=True,
            )
        with fresh_cache():
            signals = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
            for kill in range(given.kills):
                # From before the greeting until two fifths of the index are made: together, they make it about twice.
                last = times.tools + 0.4 * (times.complete - times.tools)
                seconds = times.greeting / 2 + (last - times.greeting / 2) * kill / max(given.kills - 1, 1)
                faults += kill_at(repo, seconds, signals[kill % len(signals)])
            saved, client = len(LiveIndex(repo, refreshed=False).corpus), RawClient(repo)
            client.greet()
            assert client.ask(2, wait=True)["files"]
            client.close()
            if any(done < saved for done in client.reports):
                faults.append("files that were saved were read again")
            if LiveIndex(repo).indexed:
                faults.append("the index is not whole")
            print(f"whole after {given.kills} kills; {saved:,} files were saved before the last start", flush=True)
    print("; ".join(faults) or "all limits are kept")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
