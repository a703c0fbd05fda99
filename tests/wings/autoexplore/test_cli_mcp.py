"""`reflectrl mcp`, asked by a real client over stdio: what it answers, refuses and never does."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from reflectrl.wings.autoexplore.locate.live import LiveIndex
from tests.projects import make_project

QUESTION = "where are retries configured?"
CANARY = "canary0451"
needs_mcp = pytest.mark.skipif(find_spec("mcp") is None, reason="the extra mcp is not installed")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


def ask(repo: Path, conversation: Callable[[Any], Awaitable[None]], *program: str, by: str = "--search") -> str:
    """Start a server for a repository, talk with it, and return what it wrote to stderr."""
    import anyio
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    words = [*(program or ("-m", "reflectrl")), "mcp", "--repo", str(repo), *filter(None, [by])]
    server = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ), cwd=repo.parent)
    errors = repo.parent / "stderr.txt"

    async def talk() -> None:
        with errors.open("w", encoding="utf-8") as log, anyio.fail_after(100):
            async with Client(stdio_client(server, errlog=log)) as client:
                await conversation(client)

    anyio.run(talk)
    return errors.read_text(encoding="utf-8")


async def located(client: Any, question: str, **arguments: Any) -> list[str]:
    """The paths with which a question is answered."""
    found = await client.call_tool("locate", {"question": question, **arguments})
    assert not found.is_error, found.content
    assert json.loads(found.content[0].text) == found.structured_content
    return [each["path"] for each in found.structured_content["files"]]


async def refused(client: Any, **arguments: Any) -> str:
    """What is said about arguments that are wrong."""
    found = await client.call_tool("locate", arguments)
    assert found.is_error and found.structured_content is None
    return str(found.content[0].text)


async def mistakes(client: Any) -> None:
    """Each is answered by an error, and the server goes on."""
    assert "question is empty" in await refused(client, question=" ")
    assert "no word to search for" in await refused(client, question="what is it?")
    for k in (0, -1, 51, 10**30):
        assert f"k is {k}; it must be from 1 to 50" in await refused(client, question=QUESTION, k=k)
    assert "at most 4,000" in await refused(client, question="retries " * 10_000)
    assert "question" in await refused(client, k=3)
    assert "integer" in await refused(client, question=QUESTION, k="many")
    assert "string" in await refused(client, question=["a"])
    missing = await client.call_tool("read_file", {"path": "config.toml"})
    assert missing.is_error and "read_file" in missing.content[0].text
    assert sorted(await located(client, f"{QUESTION} \x00\x1b[2J\u202e\ud7ff" + "🔎" * 9)) == [
        "config.toml",
        "net/retry.py",
    ]
    assert "locate has no argument 'repo'; it has question, k, wait" in await refused(
        client, question=QUESTION, repo="/etc"
    )


@needs_mcp
def test_a_client_asks_and_makes_mistakes(repo: Path) -> None:
    async def conversation(client: Any) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"locate", "outline", "read"}
        assert set(tools["locate"].input_schema["properties"]) == {"question", "k", "wait"}
        assert tools["locate"].input_schema["required"] == ["question"]
        assert all(tool.annotations.read_only_hint and not tool.annotations.open_world_hint for tool in tools.values())
        found = (await client.call_tool("locate", {"question": "how are pages loaded?", "k": None})).structured_content
        [first, *_] = found["files"]
        assert found["method"] == "search" and 0 < first.pop("probability") < 1
        assert first == {
            "path": "net/pages.py",
            "line": 1,
            "start": 1,
            "end": 1,
            "name": "",
            "reason": "its path says pages; a passage holds pages, loaded",
        }
        assert len(await located(client, QUESTION, k=1)) == 1
        assert await located(client, "pages", k=50) == ["net/pages.py"]
        assert await located(client, "bananas") == []
        await mistakes(client)

    said = ask(repo, conversation)
    assert said.startswith("reflectrl: serving") and "found by a learned search" in said
    assert said.count("\n") == 1


@needs_mcp
def test_files_are_outlined_and_read_line_by_line(repo: Path) -> None:
    (repo / "long.py").write_text("".join(f"def step{n}(): ...\n" for n in range(1000)), encoding="utf-8")

    async def conversation(client: Any) -> None:
        outlined = await client.call_tool("outline", {"path": "long.py"})
        assert outlined.content[0].text.startswith("1: function step0()\n2: function step1()")
        lines = (await client.call_tool("read", {"path": "long.py", "start": 3, "end": 4})).structured_content
        text = "def step2(): ...\ndef step3(): ..."
        assert lines == {"path": "long.py", "start": 3, "end": 4, "lines": 1001, "text": text}
        assert (await client.call_tool("read", {"path": "long.py"})).structured_content["end"] == 400
        for path in ("../outside", "/etc/passwd", "none.py", ""):
            missing = await client.call_tool("read", {"path": path})
            assert missing.is_error and "there is no file" in missing.content[0].text
        beyond = await client.call_tool("read", {"path": "long.py", "start": 5000})
        assert beyond.is_error and "lines 1 to 1001" in beyond.content[0].text
        other = await client.call_tool("read", {"path": "long.py", "repo": "/etc"})
        assert other.is_error and "read has no argument 'repo'; it has path, start, end" in other.content[0].text

    assert "Traceback" not in ask(repo, conversation)


@needs_mcp
def test_a_client_can_open_what_it_is_given(repo: Path) -> None:
    """Paths are raw, unless they cannot be sent; texts are those on the disk; remarks and limits are said."""
    names = ("a b.$id.py", "it's; touch x.py", "gro\u0308ße.py", "\x1b[2J.py", os.fsdecode(b"latin-\xe9.py"))
    for name in names:
        (repo / "odd").mkdir(exist_ok=True)
        (repo / "odd" / name).write_text("def platypus():\n    swims = True\n", encoding="utf-8")
    table = f"export const platypus = {list(range(5000))}\n"
    (repo / "table.ts").write_text(table, encoding="utf-8")
    many = "".join(f"def step_{n}(first, second):\n    return first\n" for n in range(9000))
    (repo / "many.py").write_text(many + "def numbat(): ...\n", encoding="utf-8")
    (repo / "test_numbat.py").write_text("def test_numbat(): ...\n", encoding="utf-8")

    async def conversation(client: Any) -> None:
        paths = await located(client, "where does the platypus swim?", k=20)
        assert set(paths) >= {f"odd/{name}" for name in names[:4]} and len(paths) == 6
        for path in (*paths, f"./odd/{names[0]}", f"{repo}/odd/{names[0]}"):
            for tool in ("read",) if path == "table.ts" else ("read", "outline"):
                opened = await client.call_tool(tool, {"path": path})
                assert not opened.is_error and "platypus" in opened.content[0].text, path
        whole = (await client.call_tool("read", {"path": "table.ts"})).structured_content
        assert whole == {"path": "table.ts", "start": 1, "end": 2, "lines": 2, "text": table}
        last = (await client.call_tool("read", {"path": "many.py", "start": 18_001, "end": 18_001})).structured_content
        assert last["text"] == "def numbat(): ..." and last["lines"] == 18_002
        piece = (await client.call_tool("read", {"path": "many.py"})).structured_content
        assert (piece["end"], piece["next_start"], piece["next_column"]) == (400, 401, 1)
        assert piece["cut"] == "cut here: read on with start=401, column=1"
        found = (await client.call_tool("locate", {"question": "numbat"})).structured_content
        assert found["files"] == [] and found["left_out"] == {"a test": 1}
        assert any(remark.startswith("many.py: searched only in part") for remark in found["remarks"])
        assert any(remark.startswith("1 entry left out as tests") for remark in found["remarks"])
        assert await located(client, "test_numbat.py") == ["test_numbat.py"]
        outlined, start, lines = [], 1, list[str]()
        while start:
            part = await client.call_tool("outline", {"path": "many.py", "start": start})
            outlined.append(part.content[0].text)
            *definitions, end = outlined[-1].split("\n")
            lines += definitions if "go on with start=" in end else [*definitions, end]
            start = int(end.rpartition("=")[2].rstrip(")")) if "go on with start=" in end else 0
        assert len(lines) == 9001 and max(map(len, outlined)) < 21_000 and lines[-1] == "18001: function numbat()"

    assert "Traceback" not in ask(repo, conversation)


@needs_mcp
def test_answers_follow_the_repository(repo: Path) -> None:
    async def conversation(client: Any) -> None:
        (repo / "early.py").write_text("RETRIES = 1  # before the first question\n", encoding="utf-8")
        assert sorted(await located(client, "retries")) == ["config.toml", "early.py", "net/retry.py"]
        (repo / "net" / "deep").mkdir()
        (repo / "early.py").rename(repo / "net" / "deep" / "moved.py")
        assert sorted(await located(client, "retries")) == ["config.toml", "net/deep/moved.py", "net/retry.py"]
        (repo / ".gitignore").write_text("deep/\n", encoding="utf-8")
        assert sorted(await located(client, "retries")) == ["config.toml", "net/retry.py"]
        (repo / "net" / "pages.py").write_text("RETRIES = 4  # retries of pages\n", encoding="utf-8")
        (repo / "net" / "retry.py").unlink()
        (repo / "net" / "new.py").write_text("def retries(): ...\n", encoding="utf-8")
        assert sorted(await located(client, "retries")) == ["config.toml", "net/new.py", "net/pages.py"]
        repo.rename(repo.with_name("elsewhere"))
        assert "there is no folder" in await refused(client, question="retries")
        repo.symlink_to(repo.with_name("elsewhere"))
        assert "link to another folder" in await refused(client, question="retries")
        repo.unlink()
        repo.mkdir()
        assert "it is empty" in await refused(client, question="retries")
        (repo / "late.py").write_text("retries = 5\n", encoding="utf-8")
        assert await located(client, "retries") == ["late.py"]

    assert "Traceback" not in ask(repo, conversation)


WITNESS = """
import os, sys

base, root = sys.argv[1:3]
quiet = ("socket.connect", "socket.bind", "socket.sendto", "subprocess.Popen", "os.system", "os.exec", "os.fork",
         "os.posix_spawn", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate",
         "os.chmod", "os.chown", "os.utime", "shutil.", "tempfile.")

def witness(event, arguments):
    wrong = event.startswith(quiet)
    if event == "open" and not isinstance(arguments[0], int):
        path = os.path.abspath(os.fsdecode(arguments[0]))
        inside = path == root or path.startswith(root + "/")
        wrong = bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) or (path.startswith(base) and not inside)
        if os.fsdecode(arguments[0]).find("/") < 0:  # relative to a folder that is open: never through a link
            wrong = wrong and not arguments[2] & os.O_NOFOLLOW
    if wrong:
        os.write(2, f"WITNESS {event} {arguments}\\n".encode())

from reflectrl.cli import main
sys.dont_write_bytecode = True
sys.addaudithook(witness)
sys.exit(main(sys.argv[3:]))
"""


def snapshot(folder: Path) -> dict[str, Any]:
    return {
        str(path): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in sorted(folder.rglob("*"))
        if path.name != "stderr.txt"
    }


@needs_mcp
def test_nothing_outside_is_read_and_nothing_is_written(repo: Path) -> None:
    outside = repo.parent / "outside"
    outside.mkdir()
    (outside / "secret.py").write_text(f"{CANARY} = 'retries'\n", encoding="utf-8")
    (repo / "folder").symlink_to(outside, target_is_directory=True)
    (repo / "linked.py").symlink_to(outside / "secret.py")
    os.mkfifo(repo / "pipe.py")
    before = snapshot(repo.parent)

    async def conversation(client: Any) -> None:
        for question in (CANARY, f"../outside/secret.py {CANARY}", f"{outside}/secret.py", "/etc/passwd root"):
            inside = {"config.toml", "net/pages.py", "net/retry.py"}  # share the word "py" at most
            assert set(await located(client, question)) <= inside
        assert sorted(await located(client, QUESTION)) == ["config.toml", "net/retry.py"]
        assert (await client.list_resources()).resources == [] and (await client.list_prompts()).prompts == []
        with pytest.raises(Exception, match="(?i)unknown resource|not found"):
            await client.read_resource(f"file://{outside}/secret.py")

    said = ask(repo, conversation, "-B", "-c", WITNESS, str(repo.parent), str(repo), by="--no-cache")
    assert "WITNESS" not in said and CANARY not in said
    assert snapshot(repo.parent) == before


def test_the_witness_sees_what_is_wrong(repo: Path) -> None:
    code = WITNESS.replace(
        "from reflectrl.cli import main", "def main(words): open(base + '/x'), open(root + '/y', 'w')"
    )
    words = [sys.executable, "-c", code, str(repo.parent), str(repo)]
    (repo.parent / "x").touch()
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr.count("WITNESS open") == 2


MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
MESSAGES = [
    {
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
    },
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/call", "params": {"name": "locate", "arguments": {"question": QUESTION}}},
]


def served(repo: Path, data: bytes) -> dict[Any, Any]:
    """Send everything at once, end stdin, and return id → answer. Those without an id are a list under None."""
    words = [sys.executable, "-m", "reflectrl", "mcp", "--repo", str(repo)]
    done = subprocess.run(words, input=data, capture_output=True, check=True)
    answers: dict[Any, Any] = {None: []}
    for line in done.stdout.splitlines():
        message = json.loads(line)
        for each in message if isinstance(message, list) else [message]:
            if each["id"] is None:
                answers[None].append(each["error"])
            else:
                assert each["id"] not in answers
                answers[each["id"]] = each["result"] if "result" in each else each["error"]
    return answers


def call(request: Any, name: str, arguments: Any) -> dict[str, Any]:
    return {"id": request, "method": "tools/call", "params": {"name": name, "arguments": arguments}}


@needs_mcp
def test_whatever_is_sent_is_answered_even_after_the_end_of_stdin(repo: Path) -> None:
    messages = [
        *MESSAGES,
        call(3, "locate", {"question": "retries \ud800"}),
        call(4, "read", {"path": "\udcff.py"}),
        call(5, "locate", {"question": 5}),
        call(6, "read", {"path": "config.toml", "start": "x"}),
        call(7, "locate", [1]),
        {"id": 8, "method": 5},
        {"id": 9, "method": "tools/call", "params": []},
        {"id": "\ud800", "method": "ping"},
        {"id": 1.5, "method": "ping"},
        {"id": None, "method": "ping"},
        {"id": 10, "method": "no/such\ud800"},
        call(11, "locate\ud800", {}),
    ]
    lines = [json.dumps({"jsonrpc": "2.0", **message}).encode() for message in messages]
    lines += [
        b"garbage",
        b'{"jsonrpc": "2.0"}',
        b"",
        b"[]",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"id": 12}',
        b'"text"',
        b"{",
    ]
    lines += [b'[{"jsonrpc": "2.0", "id": 13, "method": "ping"}, {"jsonrpc": "2.0", "method": "x"}, 3]', b"[1]"]
    lines += [b'{"jsonrpc": "2.0", "id": 14, "method": "ping"}']
    answers = served(repo, b"\n".join(lines))
    assert answers.keys() == {None, *range(1, 15), "\ud800"}
    assert answers[1]["serverInfo"]["name"] == "reflectrl" and answers[1]["protocolVersion"] == "2025-06-18"
    assert answers[2]["structuredContent"]["files"] and answers[3]["structuredContent"]["files"]
    assert answers[4]["isError"] and answers[11]["isError"]
    for request, about in (
        (5, "question: input should be a valid string"),
        (6, "start: input should be a valid integer"),
    ):
        said = answers[request]["content"][0]["text"]
        assert about in said and "pydantic" not in said and "http" not in said
    assert answers[7]["code"] == -32602
    assert answers[8]["code"] == answers[9]["code"] == answers[12]["code"] == answers[13]["code"] == -32600
    assert "no batches" in answers[13]["message"] and answers[10]["code"] == -32601
    assert len(answers[None]) == 10 and {error["code"] for error in answers[None]} == {-32700, -32600}


@needs_mcp
@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-"])
def test_closed_streams(repo: Path, closed: str) -> None:
    command = f'exec "$0" -m reflectrl mcp --repo "$1" {closed}'
    done = subprocess.run(["sh", "-c", command, sys.executable, str(repo)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "") and "Traceback" not in done.stderr


@needs_mcp
def test_the_early_greeting_is_that_of_the_sdk(repo: Path) -> None:
    import anyio
    from mcp.client import Client

    from reflectrl.wings.autoexplore.locate.answers import Locator
    from reflectrl.wings.autoexplore.locate.mcp import make_server
    from reflectrl.wings.autoexplore.locate.wire import about, greeting

    legacy, modern = MESSAGES[0], {"id": 1, "method": "server/discover", "params": {"_meta": MODERN}}

    async def compare(mode: str, message: dict[str, Any], name: str) -> None:
        async with Client(make_server(Locator(repo, lasting=True, behind=True)), mode=mode) as client:
            said = getattr(client.session, name).model_dump(by_alias=True, exclude_none=True)
        greeted = greeting({"jsonrpc": "2.0", **message}, about(repo.name))
        assert greeted is not None
        assert {**said, "protocolVersion": ""} == {**greeted, "protocolVersion": ""}

    anyio.run(compare, "legacy", legacy, "initialize_result")
    anyio.run(compare, "auto", modern, "discover_result")
    assert greeting({"jsonrpc": "2.0", **MESSAGES[2]}, about("x")) is None


class Server:
    """Server for a repository, spoken to line by line."""

    def __init__(self, repo: Path) -> None:
        words = [sys.executable, "-m", "reflectrl", "mcp", "--repo", str(repo)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.send(MESSAGES[0])
        assert self.answer(1)[0]["serverInfo"]

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, request: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the answer to a request, and what was notified before."""
        assert self.process.stdout is not None
        notified = list[dict[str, Any]]()
        for line in self.process.stdout:
            message = json.loads(line)
            if message.get("id") == request:
                return message["result"], notified
            notified.append(message["params"])
        raise AssertionError(f"no answer to {request}")

    def children(self) -> list[int]:
        """Return the processes that it has forked."""
        tasks = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(child) for child in tasks.read_text().split()]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@needs_mcp
@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: [0])(0)) < 2, reason="one processor forks nothing")
@pytest.mark.skipif(sys.platform != "linux", reason="children are listed in /proc")
def test_a_large_repository_is_answered_from_its_first_second_on(tmp_path: Path) -> None:
    repo = tmp_path / "large"
    for number in range(1000):
        path = repo / f"part{number % 20}" / f"file{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"def step_{number}():\n    return 'apple'\n")
    meta = {"_meta": {"progressToken": "t"}}
    first = Server(repo)
    try:
        stopped, other = first.children()
        os.kill(stopped, signal.SIGSTOP)  # before the index is begun; it holds back one chunk of files
        first.send(MESSAGES[1])
        first.send({"id": 2, "method": "tools/list"})
        assert len(first.answer(2)[0]["tools"]) == 3
        question = {"name": "locate", "arguments": {"question": "where is step 7?", "k": 3}, **meta}
        first.send({"id": 3, "method": "tools/call", "params": question})
        partial, progress = first.answer(3)
        said = partial["structuredContent"]
        assert said["files"] and said["is_sure"] is False and "of 1,000 files so far" in said["remarks"][0]
        done = [each["progress"] for each in progress]
        assert done and done == sorted(set(done)) and done[-1] < 1000 and progress[-1]["progressToken"] == "t"
    finally:
        first.close()
    deadline = time.monotonic() + 10
    while (is_running(stopped) or is_running(other)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(stopped) and not is_running(other)
    saved = len(LiveIndex(repo, refreshed=False).corpus)
    assert 0 < saved < 1000
    second = Server(repo)
    try:
        question = {"name": "locate", "arguments": {"question": "step 999", "k": 1, "wait": True}, **meta}
        second.send(MESSAGES[1])
        second.send({"id": 2, "method": "tools/call", "params": question})
        whole, progress = second.answer(2)
        assert whole["structuredContent"]["remarks"] == [] and whole["structuredContent"]["files"]
        assert all(saved <= each["progress"] for each in progress)
        assert LiveIndex(repo).indexed == 0
        repo.rename(tmp_path / "lagre")
        second.send({"id": 3, "method": "tools/call", "params": {**question, "arguments": {"question": "step"}}})
        gone, _ = second.answer(3)
        assert gone["isError"] and "there is no folder" in gone["content"][0]["text"]
        assert "lagre" not in gone["content"][0]["text"]
    finally:
        second.close()


@needs_mcp
def test_an_interrupt_ends_it_at_once(repo: Path) -> None:
    words = [sys.executable, "-m", "reflectrl", "mcp", "--repo", str(repo)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps({"jsonrpc": "2.0", **MESSAGES[0]}).encode() + b"\n")
        server.stdin.flush()
        server.stdout.readline()
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == -signal.SIGINT


@needs_mcp
def test_a_reader_that_has_left_is_not_worth_a_line(repo: Path) -> None:
    words = [sys.executable, "-m", "reflectrl", "mcp", "--repo", str(repo)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        assert server.stdin is not None and server.stdout is not None and server.stderr is not None
        server.stdout.close()
        server.stdin.write(b"".join(json.dumps({"jsonrpc": "2.0", **one}).encode() + b"\n" for one in MESSAGES))
        server.stdin.close()
        [line] = server.stderr.read().splitlines()
        assert line.startswith(b"reflectrl: serving") and server.wait(60) == 141


@needs_mcp
@pytest.mark.parametrize(
    ("words", "about"),
    [
        (["--repo", "projcet"], "there is no folder 'projcet' (did you mean 'project'?)"),
        (["--repo", "project/config.toml"], "is a file"),
        (["--repo", "empty"], "it is empty"),
        (["--rpeo", "project"], "did you mean '--repo'"),
    ],
)
def test_mistakes_before_the_server_starts(repo: Path, capfd: Any, monkeypatch: Any, words: Any, about: str) -> None:
    from reflectrl.cli import main

    monkeypatch.chdir(repo.parent)
    (repo.parent / "empty").mkdir()
    assert main(["mcp", *words]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("reflectrl: ") and err.count("\n") == 1 and about in err


def test_without_the_extra(repo: Path) -> None:
    code = "import sys; sys.modules['mcp'] = None; from reflectrl.cli import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", code, "mcp", "--repo", str(repo)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "(or make setup EXTRA=mcp)" in done.stderr
