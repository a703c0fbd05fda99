"""Files as they are handed out, and files that a question names."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.locate.answers import Locator
from reflectrl.wings.autoexplore.locate.originals import MOST_CHARACTERS, MOST_LINES, Mentions, Originals
from reflectrl.wings.autoexplore.names import shown, unescaped

CODE = {
    "stats/mean.py": "def mean(values):\n    return sum(values) / len(values)\n",
    "lib/run.js": "class Run {}\n// x\n",
}
LIKE_TESTS = {
    "stats/t_test.py": "def welch(a, b):\n    return a - b\n",
    "lib/commands/test.js": "class Test extends Command {}\n",
    "api/openapi-spec.yaml": "openapi: 3.0.0\n",
    "tests/unit/test_mean.py": "def test_mean():\n    assert mean([1]) == 1\n",
    "spec/odd name.spec.rb": "describe mean\n",
    "conftest.py": "import pytest\n",
}


def write(root: Path, files: dict[str, Any]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return write(tmp_path / "repo", {**CODE, **LIKE_TESTS})


AS_THEY_ARE = {
    "wide.csv": ",".join(map(str, range(3000))) + "\n" + ",".join(map(str, range(3000))) + "\n",
    "table.ts": f"export const table = {list(range(3000))}\n",
    "logo.py": f'LOGO = "{"iD88gRGWPbyZr2nu0Fusqskl2K1PTGDHJUmncmVVcnIHpT36" * 40}"\n',
    "notebook.ipynb": json.dumps({"cells": [{"source": ["a = 1"], "outputs": ["picture"]}]}),
    "windows.txt": "first\r\nsecond\r\n",
    "marked.py": "\ufeffa = 1\n",
    "old.txt": "die größe\n".encode("latin-1"),
    "wide.txt": "die größe\n".encode("utf-16"),
    "short.py": "a",
    "empty.py": "",
}


@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_a_file_is_read_as_it_is(tmp_path: Path, name: str) -> None:
    data = AS_THEY_ARE[name]
    root = write(tmp_path, {name: data})
    passage = Originals(root).passage(name)
    expected = data if isinstance(data, str) else "die größe\n"
    assert (passage.text, passage.lines) == (expected, expected.count("\n") + 1) and not passage.is_cut
    assert passage.encoding == {"old.txt": "latin-1", "wide.txt": "utf-16"}.get(name, "utf-8")


def test_a_long_file_is_read_piece_by_piece(tmp_path: Path) -> None:
    lines = [*(f"line {n}" for n in range(30_000)), "x" * (2 * MOST_CHARACTERS + 5), "", "the end"]
    originals = Originals(write(tmp_path, {"long.txt": "\n".join(lines)}))
    first = originals.passage("long.txt")
    assert (first.start, first.end, first.lines, first.next) == (
        1,
        MOST_LINES,
        30_003,
        (MOST_LINES + 1, 1),
    ) and first.is_cut
    assert originals.passage("long.txt", 29_999, 29_999).text == "line 29998"
    assert not originals.passage("long.txt", 29_999, 29_999).is_cut
    before = originals.passage("long.txt", 30_000)  # the next line does not fit, so it begins the next passage
    assert before.text == "line 29999" and before.next == (30_001, 1)
    pieces = [originals.passage("long.txt", 30_001, column=1 + n * MOST_CHARACTERS) for n in range(3)]
    assert "".join(piece.text for piece in pieces) == lines[30_000] + "\n\nthe end"
    assert [piece.next for piece in pieces] == [(30_001, MOST_CHARACTERS + 1), (30_001, 2 * MOST_CHARACTERS + 1), None]
    (tmp_path / "long.txt").write_text("\n".join(reversed(lines)))
    assert originals.passage("long.txt", 1, 2).text == "the end\n"  # the text that was kept is not of this version


def test_a_path_may_be_given_in_several_ways(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = repo.with_name("link")
    link.symlink_to(repo)
    monkeypatch.chdir(repo)
    for root in (repo, link, "."):
        originals = Originals(root)
        for path in (
            "stats/mean.py",
            "./stats/mean.py",
            f"{repo}/stats/mean.py",
            "stats//mean.py",
            "lib/../stats/mean.py",
        ):
            assert originals.passage(path).path == "stats/mean.py"
        assert root != link or originals.passage(f"{link}/stats/mean.py").path == "stats/mean.py"


@pytest.mark.parametrize(
    "name",
    ["My Project/a b.py", "a.$id.tsx", "it's.py", 'quo"te.py', "back\\slash.py", "new\nline.py", "\x1b[2J.py",
     "größe.py", "gro\u0308ße.py", "a\u202eb.py", os.fsdecode(b"latin-\xe9.py"), "trailing .py", "a&b;c.py",
     '"quoted.py"', "\\x41.py"],
)  # fmt: skip
def test_any_name_can_be_read_raw_and_as_it_is_shown(tmp_path: Path, name: str) -> None:
    originals = Originals(write(tmp_path, {name: "some text\n"}))
    for form in (name, shown(name), f"./{name}", f"{tmp_path}/{name}"):
        assert originals.passage(form).path == name
    assert unescaped(shown(name)) in (name, None)


def test_what_is_left_out_cannot_be_read_and_the_message_says_why(repo: Path) -> None:
    write(
        repo,
        {".gitignore": "*.log\n", "a.log": "secret\n", ".env": "secret\n", "a.bin": bytes(range(256)), "b/c": "text\n"},
    )
    (repo / "link.py").symlink_to(repo / "a.log")
    originals = Originals(repo)
    for path, about in (
        ("a.log", "left out (ignored by git)"),
        (".env", "left out (hidden)"),
        ("link.py", "left out (a link)"),
        ("a.bin", "a binary file"),
        ("b", "there is no file"),
        ("b/c/d", "there is no file"),
        ("b/c/", "there is no file"),
        ("../repo/../outside", "there is no file"),
        ("/etc/passwd", "there is no file"),
        ("", "there is no file"),
        (".", "there is no file"),
        ("a\0b", "there is no file"),
        ("\udcff\ud800", "there is no file"),
        ("n" * 5000, "there is no file"),
    ):
        with pytest.raises(UserError) as error:
            originals.passage(path)
        assert about in str(error.value) and str(error.value).isprintable()
    for path in LIKE_TESTS:
        assert originals.passage(path).text == LIKE_TESTS[path]
    for arguments in ((0,), (-1,), (3, 2), (9,), (1, 1, 0), (1, 1, 99)):
        with pytest.raises(UserError, match="has the lines 1 to 3|has 17 characters"):
            originals.passage("stats/mean.py", *arguments)


def test_an_outline_does_not_stop_early(tmp_path: Path) -> None:
    many = "".join(f"def step_{n}(first, second):\n    return first\n\n\n" for n in range(6000))
    originals = Originals(write(tmp_path, {"many.py": many, "longer.py": many * 8}))
    outlined = originals.outline("many.py")
    assert outlined.is_whole and [definition.line for definition in outlined.definitions] == list(range(1, 24_000, 4))
    assert not originals.outline("longer.py").is_whole


@pytest.mark.parametrize("path", LIKE_TESTS)
@pytest.mark.parametrize("form", ["{}", "./{}", "`{}`", "what does {} do?", "{}:12", "/home/me/repo/{}"])
def test_an_exact_path_finds_its_file_first(repo: Path, path: str, form: str) -> None:
    files = Locator(repo, cached=False).locate(form.format(path), 3).files
    assert files[0].path == path


@pytest.mark.parametrize("path", LIKE_TESTS)
def test_an_exact_name_finds_its_file(repo: Path, path: str) -> None:
    write(repo, {f"other/{number}.py": f"def mean_{number}():\n    'a test of {path}'\n" for number in range(9)})
    locator = Locator(repo, cached=False)
    for question in (path.rpartition("/")[2], f"why does {path.rpartition('/')[2]} fail?"):
        answer = locator.locate(question, 3)
        assert path in [hit.path for hit in answer.files] and len(answer.files) <= 3
        assert answer.is_sure is None  # of a file that is not searched, no probability is known


def test_searched_files_keep_their_ranks(repo: Path) -> None:
    write(repo, {f"lib/part{number}/index.js": f"// part {number} runs\n" for number in range(4)})
    locator = Locator(repo, cached=False)
    first = [hit.path for hit in locator.locate("lib/part3/index.js", 2).files]
    assert first[0] == "lib/part3/index.js" and len(first) == 2
    assert {hit.path for hit in locator.locate("index.js", 4).files} == {
        f"lib/part{number}/index.js" for number in range(4)
    }
    answer = locator.locate("where does a class run a mean of values?", 5)
    assert "lib/run.js" in [hit.path for hit in answer.files] and not any("test" in hit.path for hit in answer.files)


def test_a_name_without_a_word_finds_its_file(tmp_path: Path) -> None:
    locator = Locator(write(tmp_path, {**CODE, "a/is.py": "some text of a file\n"}), cached=False)
    assert [hit.path for hit in locator.locate("a/is.py", 1).files] == ["a/is.py"]
    with pytest.raises(UserError, match="no word to search for"):
        locator.locate("is it?", 1)


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("where is a.py?", ["a.py", "lib/a.py"]),
        ("where is lib/a.py?", ["lib/a.py"]),
        ("where is src/a.py?", []),
        ("a.pyc or xa.py or a.py.txt or -a.py", []),
        ("A.PY", ["a.py", "lib/a.py"]),
        ("see (a.py), or a.py.", ["a.py", "lib/a.py"]),
        ("run", ["run"]),
        ("how do I run it?", []),
        ("deep/lib/a.py", ["lib/a.py"]),
        ("File /home/me/repo/a.py, line 3", ["a.py"]),
        ("File /home/me/repo/lib/a.py, line 3", ["lib/a.py"]),
        ("./a.py and ../a.py", ["a.py"]),
    ],
)
def test_names_in_a_question(question: str, names: list[str]) -> None:
    assert Mentions(question, Path("/src/repo")).of(["a.py", "lib/a.py", "run", "b.py"]) == names


def test_what_is_left_out_is_said(repo: Path, capsys: Any) -> None:
    write(repo, {"__test__/verify.sh": "echo mean\n"})
    assert main(["locate", "where is the mean of values?", "--json", "--repo", str(repo)]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    about = "7 entries left out as tests; a question that names such a file finds it"
    assert about in answer["remarks"] and answer["left_out"] == {"a test": 7} and about in err
    assert not any("__test__" in each["path"] for each in answer["files"])
    assert main(["locate", "mean", "--names-only", "--repo", str(repo)]) == 0
    assert about in capsys.readouterr().err
