"""The program that measures the search baselines: what it counts, and what it leaves out."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.autoexplore_search import main
from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.making.imported import find_repo, gold_files, read_imported

QUESTIONS: list[dict[str, Any]] = [
    {"repo": "owner/My.Tool", "question": "how are requests retried?", "gold": ["src/retry.py"], "dominant": True},
    {"repo": "owner/My.Tool", "question": "how are requests retried?", "gold": ["tool/pages.py"]},
    {"repo": "owner/My.Tool", "question": "what is it?", "gold": ["retry.py"]},
    {"repo": "owner/My.Tool", "question": "where are the tests?", "gold": ["tests/test_retry.py"]},
    {"repo": "owner/tool", "question": "how are requests retried?", "gold": ["retry.py"]},
]


@pytest.fixture
def repos(tmp_path: Path) -> Path:
    root = tmp_path / "repos" / "my_tool-1.0" / "src"
    (root / "tool").mkdir(parents=True)
    (root / "retry.py").write_text("how requests are retried\n", encoding="utf-8")
    (root / "tool" / "pages.py").write_text("requests for pages\n", encoding="utf-8")
    return tmp_path / "repos"


def asked(folder: Path, questions: list[dict[str, Any]]) -> Path:
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps({"source": "made", **each}) + "\n" for each in questions), encoding="utf-8")
    return path


def test_rates_and_what_is_left_out(repos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(asked(repos.parent, QUESTIONS)), "--repos", str(repos), "--json"])
    found = {(row["source"], row["baseline"]): row for row in json.loads(capsys.readouterr().out)}
    row = found["made", "whole files"]
    assert (row["questions"], row["no repository"], row["gold not there"]) == (3, 1, 1)
    assert (row["acc@1"], row["acc@3"], row["MRR"]) == pytest.approx((1 / 3, 2 / 3, 0.5))
    assert found["made, dominant", "whole files"]["acc@1"] == 1
    assert found["all", "names only"]["acc@3"] == pytest.approx(1 / 3)


def test_the_sets_of_a_library(repos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = {
        "id": "x",
        "repo": "tool",
        "source": "docs",
        "question": "how are requests retried?",
        "gold": ["src/retry.py"],
    }
    (repos / "my_tool-1.0").rename(repos / "tool")
    (repos.parent / "questions").mkdir()
    (repos.parent / "questions" / "test.jsonl").write_text(json.dumps(made), encoding="utf-8")
    (repos.parent / "repos.jsonl").write_text('{"name": "tool", "split": "test"}', encoding="utf-8")
    main(["test", "--library", str(repos.parent), "--json"])
    assert json.loads(capsys.readouterr().out)[0]["acc@1"] == 1


def test_a_repository_is_found_by_its_name_or_by_the_only_version(repos: Path) -> None:
    assert find_repo("owner/My.Tool", repos) == repos / "my_tool-1.0"
    assert find_repo("owner/my", repos) is None
    (repos / "my-tool-2.0").mkdir()
    assert find_repo("owner/My.Tool", repos) is None
    (repos / "My.Tool").mkdir()
    assert find_repo("owner/My.Tool", repos) == repos / "My.Tool"


def test_leading_folders_of_a_gold_path_may_be_left_out() -> None:
    files = ["a/io/image.py", "a/io/table.py", "b/io/table.py", "table.py"]
    assert gold_files(["io/image.py"], files) == {"a/io/image.py"}
    assert gold_files(["io/table.py", "mage.py"], files) == set()
    assert gold_files(["table.py"], files) == {"table.py"}


def test_a_package_does_not_have_the_folder_that_encloses_it() -> None:
    assert gold_files(["lib/tool/axis.py", "src/x.py", "doc/tool/axis.py"], ["tool/axis.py"]) == {"tool/axis.py"}


def test_a_line_that_is_no_question_is_named(tmp_path: Path) -> None:
    path = asked(tmp_path, [{"repo": "a/b", "question": "why?"}])
    with pytest.raises(UserError, match=":1: not a question"):
        read_imported(path)
