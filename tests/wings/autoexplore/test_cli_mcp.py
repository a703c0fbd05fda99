"""`reflectrl mcp`, asked by a real client over stdio: what it answers, refuses and never does."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

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


MESSAGES = [
    {
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
    },
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/call", "params": {"name": "locate", "arguments": {"question": QUESTION}}},
]


@needs_mcp
def test_stdout_holds_the_protocol_and_nothing_else(repo: Path) -> None:
    words = [sys.executable, "-m", "reflectrl", "mcp", "--repo", str(repo)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(b'garbage\n{"jsonrpc": "2.0"}\n\n[]\n\xff\xfe\n' + b"[" * 200_000 + b"\n")
        for message in MESSAGES:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        server.stdin.flush()
        answers = [answer for answer in map(json.loads, [server.stdout.readline() for _ in range(7)]) if answer["id"]]
        server.stdin.close()
        assert server.stdout.read() == b"" and server.wait(60) == 0
    assert [answer["id"] for answer in answers] == [1, 2] and answers[1]["result"]["structuredContent"]["files"]


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
