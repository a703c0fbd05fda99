"""`locate` with an agent behind it: who answers, what is printed, and that nothing leaves the machine."""

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
from reflectrl.wings.autoexplore.locate.agent import Agent
from reflectrl.wings.autoexplore.locate.answers import Locator

QUESTION = "How is a cage opened with its key?"


def locate(repo: Path, *words: str) -> int:
    return main(["locate", QUESTION, "--repo", str(repo), *words])


def test_the_named_agent_answers_and_says_so(repo: Path, agent_folder: Path, capsys: Any) -> None:
    assert locate(repo, "--model", str(agent_folder), "-k", "2") == 0
    out, err = capsys.readouterr()
    assert err == "reflectrl: the agent tiny (sft, seed 0) walks through the repository; nothing leaves this machine\n"
    first, *_ = out.splitlines()
    assert first.startswith(" 1  ") and "%" not in first
    assert sum(line[:4].strip().isdigit() for line in out.splitlines()) == 2


def test_an_agent_in_the_environment_answers_too(
    repo: Path, agent_folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(card.VARIABLE, str(agent_folder))
    assert locate(repo) == 0
    assert capsys.readouterr().err.count("the agent tiny") == 1
    assert locate(repo, "--search") == 0 and locate(repo, "--names-only") == 0
    err = capsys.readouterr().err
    assert "this is a learned search" in err and "this is search over names only" in err
    monkeypatch.delenv(card.VARIABLE)
    assert locate(repo) == 0
    assert "this is a learned search" in capsys.readouterr().err


def test_the_walk_can_be_read(repo: Path, agent_folder: Path, capsys: Any) -> None:
    assert locate(repo, "--model", str(agent_folder), "--trace") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("# ") and lines[1].startswith("> ") and re.search(r" \(p = [01]\.\d\d\)$", lines[1])
    assert all(character.isprintable() for line in lines for character in line)


def test_json_holds_ranking_and_walk(repo: Path, agent_folder: Path, capsys: Any) -> None:
    assert locate(repo, "--model", str(agent_folder), "--json", "-k", "1") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["method"], found["model"], len(found["files"])) == ("agent", "tiny (sft, seed 0)", 1)
    assert found["ranking"][0] == {"path": found["files"][0]["path"], "probability": found["files"][0]["score"]}
    assert {"action", "probability", "reflection", "output"} == set(found["walk"][0])


def test_mistakes_are_one_line(repo: Path, agent_folder: Path, tmp_path: Path, capsys: Any) -> None:
    for words, about in (
        (["--model", str(tmp_path)], "not an agent's folder"),
        (["--model", str(agent_folder), "--search"], "drop either"),
        (["--modle", "x"], "did you mean '--model'"),
    ):
        assert locate(repo, *words) == 2
        out, err = capsys.readouterr()
        assert out == "" and about in err and err.count("\n") == 1


def test_two_thousand_words(repo: Path, agent_folder: Path, capsys: Any) -> None:
    question = " ".join(f"word{i}" for i in range(1_999)) + " cage"
    assert main(["locate", question, "--repo", str(repo), "--model", str(agent_folder)]) == 0


def test_locators_share_an_agent(repo: Path, agent_folder: Path) -> None:
    agent = Agent.load(agent_folder)
    Locator(repo, agent=agent).locate(QUESTION, 3)  # reads the system prompt, which the agent keeps from then on
    answer = Locator(repo, agent=agent).locate(QUESTION, 3)
    assert answer == Locator(repo, agent=agent).locate(QUESTION, 3)
    assert answer.method == "agent" and answer.walked is not None
    assert [hit.path for hit in answer.files] == [path for path, _ in answer.walked.ranking[:3]]


WITNESS = """
import sys

def witness(event, arguments):
    wrote = event == "open" and isinstance(arguments[2], int) and arguments[2] & 3 and arguments[0] != "/dev/null"
    if wrote or event.split(".")[0] in ("socket", "subprocess") or event in ("os.system", "os.exec", "os.fork"):
        print(event, arguments, file=sys.stderr)

from reflectrl.cli import main
sys.dont_write_bytecode = True
sys.addaudithook(witness)
sys.exit(main(sys.argv[1:]))
"""


def test_nothing_is_sent_written_or_started(repo: Path, agent_folder: Path) -> None:
    words = ["locate", QUESTION, "--repo", str(repo), "--model", str(agent_folder)]
    done = subprocess.run(
        [sys.executable, "-B", "-c", WITNESS, *words],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.startswith(" 1  ")
    assert done.stderr.count("\n") == 1 and "nothing leaves this machine" in done.stderr
