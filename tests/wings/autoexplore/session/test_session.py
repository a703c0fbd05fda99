"""Sessions through their requests and the command line, with real containers where bubblewrap is installed."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.session.execution import Limits
from reflectrl.wings.autoexplore.session.requests import REQUESTS, Session
from tests.wings.autoexplore.session.test_overlay import applied, digests, write_all


def has_containers() -> bool:
    if shutil.which("bwrap") is None:
        return False
    trial = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


contained = pytest.mark.skipif(not has_containers(), reason="needs bubblewrap and the right to make containers")
LIMITS = Limits(seconds=10.0, memory=2**30, output=500, file_size=2**20)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    write_all(folder)
    return folder


def python(code: str) -> dict[str, object]:
    return {"do": "run", "command": [sys.executable, "-c", code]}


# ---- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ("read", "a request is an object"),
        ({"path": "x"}, "a request is an object"),
        ({"do": "reed", "path": "x"}, "did you mean 'read'"),
        ({"do": "read"}, "read needs 'path'"),
        ({"do": "read", "path": 3}, "must be a string"),
        ({"do": "read", "path": "README.md", "repo": "/etc"}, "no argument 'repo'"),
        ({"do": "run", "command": "rm -rf /"}, "list of strings"),
        ({"do": "run", "command": ["true"]}, "not allowed"),
        ({"do": "read", "path": "absent.md"}, "there is no such file"),
        ({"do": "ls", "path": "absent"}, "no folder"),
    ],
)
def test_a_request_that_cannot_be_carried_out_says_why(root: Path, request_: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Session(root).do(request_)


def test_every_request_is_answered(root: Path) -> None:
    session = Session(root)
    assert session.do({"do": "ls"})["folders"] == ["app", "data", "docs", "tests"]
    assert session.do({"do": "find", "question": "where is TIMEOUT set?"})["files"][0]["path"] == "app/settings.py"
    assert session.do({"do": "read", "path": "README.md"})["text"].startswith("# Mailer")
    session.do({"do": "write", "path": "new.txt", "text": "x\n"})
    session.do({"do": "replace", "path": "app/settings.py", "old": "= 3", "new": "= 5"})
    session.do({"do": "delete", "path": "README.md"})
    reply = session.do({"do": "restore", "path": "README.md"})
    assert reply == session.do({"do": "changed"}) and len(reply["changed"]) == 2
    assert "+RETRIES = 5" in session.do({"do": "patch"})["patch"]
    answered = {"ls", "find", "read", "write", "replace", "delete", "restore", "changed", "patch"}
    assert answered == set(REQUESTS) - {"run"}


# ---- containers ------------------------------------------------------------------------------------------------------


@contained
def test_a_command_changes_the_session_and_not_the_disk(root: Path) -> None:
    before, session = digests(root), Session(root, LIMITS)
    session.do({"do": "write", "path": "app/settings.py", "text": "RETRIES = 5\n"})
    code = (
        "import os, pathlib; p = pathlib.Path('app/settings.py'); print(p.read_text())\n"
        "p.write_text('RETRIES = 7\\n'); os.remove('README.md'); pathlib.Path('out.log').write_text('done\\n')\n"
        "os.makedirs('__pycache__', exist_ok=True); pathlib.Path('__pycache__/x.pyc').write_bytes(b'x' * 20)"
    )
    ran = session.do(python(code))
    assert ran["status"] == 0 and "RETRIES = 5" in ran["output"]
    assert ran["changed"] == ["README.md", "app/settings.py", "out.log"]
    assert digests(root) == before
    after = applied(root, session.do({"do": "patch"})["patch"])
    assert after["app/settings.py"] == b"RETRIES = 7\n" and after["out.log"] == b"done\n" and "README.md" not in after


@contained
@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("import socket; socket.create_connection(('127.0.0.1', 9), 2)", "OSError|ConnectionRefused|unreachable"),
        ("import socket; socket.create_connection(('192.0.2.1', 80), 2)", "unreachable"),
        ("import os; print(sorted(os.environ))", r"\['HOME', 'LANG', "),
        ("import os; print(os.path.exists('/home'), os.path.exists('/var'), os.getppid())", "False False [01]"),
        ("open('/usr/planted', 'w')", "Read-only file system"),
        ("x = bytearray(3 * 2**30)", "MemoryError"),
        ("open('large', 'wb').write(b'x' * 2**22)", "File too large|^$"),
        ("print('x' * 100_000)", "x" * 500),
    ],
)
def test_a_command_reaches_nothing_outside(root: Path, code: str, shown: str) -> None:
    import re

    ran = Session(root, LIMITS).do(python(code))
    assert re.search(shown, ran["output"]), ran
    assert len(ran["output"]) <= LIMITS.output


@contained
def test_a_command_sees_no_other_file_of_the_user(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("a secret of mine\n")
    ran = Session(root, LIMITS).do(python(f"import os; print(os.path.exists({str(tmp_path / 'secret.txt')!r}))"))
    assert ran["output"] == "False\n"


@contained
def test_a_program_that_is_not_there_is_named(root: Path) -> None:
    with pytest.raises(UserError, match="no program 'absent'"):
        Session(root, LIMITS).do({"do": "run", "command": ["absent"]})


@contained
def test_programs_beside_this_python_are_there_even_below_the_containers_own_tmp(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as prefix:
        program = Path(prefix) / "bin" / "hello"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\necho hello\n", encoding="utf-8")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "prefix", prefix)
        ran = Session(root, LIMITS).do({"do": "run", "command": ["hello"]})
    assert (ran["status"], ran["output"]) == (0, "hello\n")


@contained
def test_a_command_that_does_not_end_is_ended(root: Path) -> None:
    session = Session(root, Limits(seconds=0.5))
    assert session.do(python("import time; print('begun', flush=True); time.sleep(60)"))["status"] is None


@contained
def test_a_link_that_a_command_plants_leads_nowhere(root: Path) -> None:
    session = Session(root, LIMITS)
    ran = session.do(python("import os; os.remove('README.md'); os.symlink('/etc/passwd', 'README.md')"))
    assert ran["changed"] == [] and "root:" not in session.do({"do": "read", "path": "README.md"})["text"]


def test_without_bubblewrap_commands_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(root))
    with pytest.raises(UserError, match="install bubblewrap"):
        Session(root, LIMITS)


# ---- the command line ------------------------------------------------------------------------------------------------


def session(root: Path, lines: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "reflectrl", "session", "--repo", str(root), *options]
    return subprocess.run(command, input="\n".join([*lines, ""]), capture_output=True, text=True, check=False)


def test_a_program_asks_in_json_lines(root: Path, tmp_path: Path) -> None:
    before, patch = digests(root), tmp_path / "changes.patch"
    requests = [
        '{"do": "replace", "path": "app/settings.py", "old": "= 3", "new": "= 5"}',
        "no json",
        '{"do": "patch"}',
    ]
    ended = session(root, requests, "--json", "--patch", str(patch))
    changed, mistake, shown = map(json.loads, ended.stdout.splitlines())
    assert ended.returncode == 0 and changed["ok"] and not mistake["ok"] and "not valid JSON" in mistake["error"]
    assert patch.read_text() == shown["patch"] and digests(root) == before
    assert applied(root, patch.read_text())["app/settings.py"] == b"RETRIES = 5\nTIMEOUT = 10\n"
    again = session(root, requests, "--json", "--patch", str(patch))
    assert again.returncode == 2 and "exists already" in again.stderr


HALF = [
    {"do": "write", "path": "s.py", "text": "\ud800"},
    {"do": "write", "path": "\ud800.py", "text": "x"},
    {"do": "write", "path": "a\0.py", "text": "x"},
    {"do": "replace", "path": "app/settings.py", "old": "\udfff", "new": "x"},
    {"do": "replace", "path": "app/settings.py", "old": "= 3", "new": "\udc80"},
    {"do": "find", "question": "where is \ud83d?"},
    {"do": "read", "path": "\ud800"},
    {"do": "ls", "path": "\ud800"},
    {"do": "delete", "path": "\ud800\0"},
    {"do": "restore", "path": "\ud800"},
    {"do": "\ud800"},
    {"\ud800": 1, "do": "ls"},
    {"do": ["ls"]},
    {"do": "write", "path": "s.py", "text": 1e999},
]


def test_each_hostile_request_is_answered_and_the_next_one_too(root: Path) -> None:
    requests = [*map(json.dumps, HALF), "[" * 300_000, '{"do":' * 100_000, '"', '{"do": "ls"} {"do": "ls"}', "NaN"]
    data = "\n".join([*requests, '{"do": "changed"}', ""]).encode() + b'\xff\xfe"\n{"do": "changed"}\n'
    command = [sys.executable, "-m", "reflectrl", "session", "--repo", str(root), "--json"]
    ended = subprocess.run(command, input=data, capture_output=True, check=False)
    *answers, last, undecodable, again = map(json.loads, ended.stdout.splitlines())
    assert ended.returncode == 0 and b"Traceback" not in ended.stderr
    assert len(answers) == len(requests) and not any(answer["ok"] for answer in (*answers, undecodable))
    assert last == again == {"ok": True, "changed": []}


def test_a_person_s_mistake_is_reported_and_the_session_goes_on(root: Path) -> None:
    lines = ["reed README.md", "read", 'replace app/settings.py "= 3" "= 5"', "read 'unclosed", "read app/settings.py"]
    ended = session(root, lines)
    assert ended.returncode == 0 and "did you mean 'read'" in ended.stdout and "usage: read FILE" in ended.stdout
    assert "modified  app/settings.py" in ended.stdout and "    1  RETRIES = 5" in ended.stdout
    assert "changed in this session only: app/settings.py;" in ended.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--repo", "/nowhere"], "there is no folder"),
        (["--sekonds", "3"], "unknown option"),
        (["--seconds", "0"], "above 0"),
    ],
)
def test_bad_options_end_with_one_line(tmp_path: Path, options: list[str], message: str) -> None:
    command = [sys.executable, "-m", "reflectrl", "session", *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode == 2 and message in ended.stderr and "Traceback" not in ended.stderr
