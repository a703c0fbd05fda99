"""`reflectrl locate`: its answers, what it prints of hostile repositories, and the one line with which it refuses."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.wings.autoexplore.locate import card
from tests.projects import make_project

QUESTION = "where are retries configured?"


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(card.VARIABLE, raising=False)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


def test_files_are_ranked_with_their_reasons(repo: Path, capsys: Any) -> None:
    assert main(["locate", QUESTION, "--repo", str(repo)]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("reflectrl: this is a learned search") and err.count("\n") == 1
    lines = out.splitlines()
    assert sorted(line[4:].split("  ")[0] for line in lines[::2]) == ["config.toml:2", "net/retry.py:1-2"]
    assert sorted(lines[1::2]) == ["      retries = 3", "      retries = config['retries']"]
    shares = [int(share) for share in re.findall(r"  (\d+) %  \(", out)]
    assert len(shares) == 2 and shares == sorted(shares, reverse=True) and sum(shares) < 100
    assert "(its path says retries; a passage holds retries)" in out and "  retries  " in out


def test_search_may_be_asked_for_and_takes_no_walk(repo: Path, capsys: Any) -> None:
    assert main(["locate", QUESTION, "--search", "--repo", str(repo)]) == 0
    assert capsys.readouterr().err.startswith("reflectrl: this is a learned search")
    assert main(["locate", QUESTION, "--trace", "--repo", str(repo)]) == 0
    assert "--trace shows nothing" in capsys.readouterr().err


def test_json_is_all_that_is_on_stdout(repo: Path, capsys: Any) -> None:
    assert main(["locate", *["how", "are", "pages", "loaded?"], "-k", "1", "--json", "--repo", str(repo)]) == 0
    found = json.loads(capsys.readouterr().out)
    [hit] = found["files"]
    assert found["method"] == "search" and isinstance(hit.pop("score"), float)
    assert 0 < hit.pop("probability") < 1
    assert hit == {
        "path": "net/pages.py",
        "words": ["pages", "loaded"],
        "line": 1,
        "text": "# how pages are loaded",
        "start": 1,
        "end": 1,
        "name": "",
        "why": "its path says pages; a passage holds pages, loaded",
    }


def test_a_definition_is_named_with_its_lines(repo: Path, capsys: Any) -> None:
    (repo / "net" / "cache.py").write_text(
        'import os\n\n\ndef evict_oldest(cache):\n    """Drop the oldest entry."""\n    cache.popitem()\n\n\nX = 1\n'
    )
    assert main(["locate", "where is the oldest cache entry evicted?", "-k", "1", "--repo", str(repo)]) == 0
    assert capsys.readouterr().out.startswith(" 1  net/cache.py:4-6  evict_oldest  ")


def test_questions_of_a_file_are_answered_line_by_line(repo: Path, tmp_path: Path, capsys: Any) -> None:
    asked = tmp_path / "asked.jsonl"
    asked.write_text('{"id": 7, "question": "how are pages loaded?"}\n\n{"question": "retries"}\n', encoding="utf-8")
    assert main(["locate", "--questions", str(asked), "-k", "1", "--repo", str(repo)]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["id"], first["question"]) == (7, "how are pages loaded?")
    assert first["files"][0]["path"] == "net/pages.py" and second["files"][0]["path"] in ("config.toml", "net/retry.py")


def test_mistakes_in_a_file_of_questions_name_the_line(repo: Path, tmp_path: Path, capsys: Any) -> None:
    asked = tmp_path / "asked.jsonl"
    for line, about in (
        ("{", ":2: not valid JSON"),
        ('{"question":' * 300_000, ":2: not valid JSON: too deeply nested"),
        ("[]", "line 2: expected an object"),
        ('{"question": "is it?"}', "line 2: "),
    ):
        asked.write_text(f'{{"question": "retries"}}\n{line}\n', encoding="utf-8")
        assert about in refusal(capsys, "--questions", str(asked), "--repo", str(repo))
    assert "No such file" in refusal(capsys, "--questions", str(tmp_path / "none"), "--repo", str(repo))
    os.mkfifo(tmp_path / "pipe")
    for endless in (str(tmp_path / "pipe"), "/dev/zero", "/proc/kmsg"):
        assert "not a regular file" in refusal(capsys, "--questions", endless, "--repo", str(repo))
    assert "not both" in refusal(capsys, QUESTION, "--questions", str(asked))


def test_the_first_file_opens_in_the_editor(repo: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    said, editor = tmp_path / "said", tmp_path / "vim"
    editor.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {said}\n', encoding="utf-8")
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    assert main(["locate", "how are pages loaded?", "--open", "--repo", str(repo)]) == 0
    assert said.read_text().split("\n")[:2] == ["+1", str(repo / "net" / "pages.py")]
    monkeypatch.delenv("VISUAL")
    monkeypatch.delenv("EDITOR", raising=False)
    capsys.readouterr()
    assert main(["locate", QUESTION, "--open", "--repo", str(repo)]) == 2
    assert "set EDITOR" in capsys.readouterr().err


def test_names_only(repo: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(repo)
    assert main(["locate", "--names-only", "retries and pages"]) == 0
    assert capsys.readouterr().out == " 1  net/pages.py  (pages)\n 2  net/retry.py  (retries)\n"


def test_a_question_that_nothing_answers(repo: Path, capsys: Any) -> None:
    assert main(["locate", "bananas", "--repo", str(repo)]) == 0
    out, err = capsys.readouterr()
    assert out == "" and "no file shares a word" in err


def hostile(root: Path) -> None:
    names = ["a\x1b[2Jretry.py", "b\nretry.py", "c\u202eretry.py", "; touch retry"]
    for name in [*names, os.fsdecode(b"d\xffretry.py")]:
        (root / name).write_bytes(b"retry \x1b]0;title\x07 \xe2\x80\xae \x9b31m \xff\n")


def test_hostile_names_and_contents_send_nothing_to_the_terminal(repo: Path, capsys: Any) -> None:
    from reflectrl.wings.autoexplore.index import Filters
    from reflectrl.wings.autoexplore.repository import Repository

    hostile(repo)
    everything = Repository.open(repo, Filters(non_ascii=False, hidden=False))
    assert len(everything) == 8
    assert main(["locate", "retry", "--repo", str(repo)]) == 0
    assert main(["locate", "retry", "--json", "--repo", str(repo)]) == 0
    out, err = capsys.readouterr()
    assert all(character == "\n" or character.isprintable() for character in out + err)
    assert '"; touch retry":1' in out and "read as Latin-1, because they are not UTF-8" in err


def test_hostile_hits_are_printed_with_escapes() -> None:
    from reflectrl.wings.autoexplore.cli.locate import described
    from reflectrl.wings.autoexplore.search import Hit

    for name in ("a\x1b[2J", "b\n", "c\u202e", os.fsdecode(b"d\xff")):
        place, text = described(Hit(name, 1.0, tuple("abcdefgh"), 3, "text")).split("\n")
        assert place.isprintable() and place.endswith("(a, b, c, d, e, f and 2 more)") and text.strip() == "text"


def refusal(capsys: Any, *words: str) -> str:
    """The line with which a command is refused."""
    assert main(["locate", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("reflectrl: ") and err.count("\n") == 1
    return err


def test_a_typo_in_the_path(repo: Path, capsys: Any) -> None:
    said = refusal(capsys, QUESTION, "--repo", str(repo.with_name("projcet")))
    assert "no folder" in said and f"did you mean {str(repo)!r}" in said


def test_a_file_instead_of_a_folder(repo: Path, capsys: Any) -> None:
    assert "is a file" in refusal(capsys, QUESTION, "--repo", str(repo / "config.toml"))


def test_an_empty_folder(tmp_path: Path, capsys: Any) -> None:
    assert "it is empty" in refusal(capsys, QUESTION, "--repo", str(tmp_path))


def test_a_repository_of_only_binaries(tmp_path: Path, capsys: Any) -> None:
    for i in range(3):
        (tmp_path / f"{i}.bin").write_bytes(bytes(range(256)))
    assert "3 (binary)" in refusal(capsys, QUESTION, "--repo", str(tmp_path))


@pytest.mark.parametrize(
    ("words", "about"),
    [
        ([], "question is empty"),
        ([""], "question is empty"),
        (["what is it?"], "no word to search for"),
        ([QUESTION, "--top", "0"], "--top"),
        ([QUESTION, "--top", "many"], "many"),
        ([QUESTION, "--jsn"], "did you mean '--json'"),
        ([QUESTION, "--repo", "a\0b"], "cannot be opened"),
    ],
)
def test_other_mistakes(words: list[str], about: str, capsys: Any) -> None:
    assert about in refusal(capsys, *words)


@pytest.mark.parametrize(
    "words",
    [
        ["--", "--retries: where?"],
        ["--retries: where?"],
        ["-k retries"],
        ["--json", "--", "-retries"],
        ["retries", "- where?", "--json"],
        ["--retries = 3 where?", "-k", "1"],
    ],
)
def test_a_question_may_begin_with_a_dash(repo: Path, capsys: Any, words: list[str]) -> None:
    assert main(["locate", "--repo", str(repo), *words]) == 0
    assert "retries" in capsys.readouterr().out


@pytest.mark.parametrize(
    "question",
    ["net/retry.py:2", "retry.py:2: error", 'File "net/retry.py", line 2, in f', "net/retry.py#L2", "retry.py(2)"],
)
def test_a_line_that_is_named_is_the_line(repo: Path, capsys: Any, question: str) -> None:
    (repo / "net" / "retry.py").write_text("# retry\n\nretry = 3\n".replace("\n\n", "\nmost = 2\n"), encoding="utf-8")
    assert main(["locate", question, "--json", "--repo", str(repo)]) == 0
    first = json.loads(capsys.readouterr().out)["files"][0]
    assert (first["path"], first["line"], first["text"]) == ("net/retry.py", 2, "most = 2")
    assert first["start"] <= 2 <= first["end"]


def test_a_line_that_is_not_there_is_ignored(repo: Path, capsys: Any) -> None:
    assert main(["locate", "net/retry.py:900", "--json", "--repo", str(repo)]) == 0
    assert json.loads(capsys.readouterr().out)["files"][0]["line"] in (1, 2)


@pytest.mark.parametrize("closed", ["<&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams(repo: Path, closed: str) -> None:
    command = f'exec "$0" -m reflectrl locate retries --repo "$1" {closed}'
    done = subprocess.run(["sh", "-c", command, sys.executable, str(repo)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert ("retry.py" in done.stdout) == (">&-" not in closed.replace("2>&-", ""))


def test_indexes_are_listed_and_cleared(repo: Path, capsys: Any) -> None:
    assert main(["locate", QUESTION, "--repo", str(repo)]) == 0
    capsys.readouterr()
    assert main(["locate", "--cache", "list"]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1 and str(repo) in out and "1 indexes" in err
    assert main(["locate", "--cache", "clear"]) == 0 and "removed 1 indexes" in capsys.readouterr().err
    assert main(["locate", "--cache", "list"]) == 0 and capsys.readouterr().out == ""
    assert main(["locate", "--cache", "shred"]) == 2


def test_two_thousand_words(repo: Path, capsys: Any) -> None:
    question = " ".join(f"word{i}" for i in range(1_999)) + " retries"
    assert main(["locate", question, "--repo", str(repo)]) == 0
    assert "word0" not in capsys.readouterr().out


def test_a_question_that_is_too_long(repo: Path, capsys: Any) -> None:
    question = " ".join(f"word{i}" for i in range(9_999)) + " retries"
    assert "ask in at most 20,000" in refusal(capsys, question, "--repo", str(repo))


WITNESS = """
import sys

def witness(event, arguments):
    wrote = event == "open" and isinstance(arguments[2], int) and arguments[2] & 3
    if wrote or event.split(".")[0] in ("socket", "subprocess") or event in ("os.system", "os.exec", "os.fork"):
        raise SystemError(f"{event} {arguments}")

from reflectrl.cli import main
sys.dont_write_bytecode = True
sys.addaudithook(witness)
sys.exit(main(sys.argv[1:]))
"""


def test_nothing_is_sent_written_or_started(repo: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-B", "-c", WITNESS, "locate", QUESTION, "--no-cache", "--repo", str(repo)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(" 1  ") and "config.toml:2" in done.stdout
