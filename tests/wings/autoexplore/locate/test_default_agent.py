"""The agent that ships in the package: small, loaded without the transformers library, and better than nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from reflectrl.pipeline.artifacts import POLICY, REFLECTOR
from reflectrl.wings.autoexplore.finder import Finder
from reflectrl.wings.autoexplore.locate.agent import Agent
from reflectrl.wings.autoexplore.locate.card import SHIPPED, read_card
from reflectrl.wings.autoexplore.locate.light import load_light
from reflectrl.wings.autoexplore.repository import Repository

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def finder() -> Finder:
    return Finder(Repository.open(ROOT))


@pytest.fixture(scope="module")
def agent() -> Agent:
    return Agent.load(SHIPPED)


def test_it_is_small_and_says_what_it_is() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*.safetensors")) <= 16 * 2**20
    card = read_card(SHIPPED)
    assert card.recipe == "autoexplore" and {"validation", "test"} <= {row["split"] for row in card.figures}
    assert all(load_light(SHIPPED / player, 1024) is not None for player in (POLICY, REFLECTOR))


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("What does the manual say about tools for an IDE assistant?", "docs"),
        ("Which class gives an IDE assistant its tool?", "code"),
        ("Where is it documented how a repository is searched?", "docs"),
        ("Which function cuts words into their parts?", "code"),
    ],
)
def test_it_tells_from_the_question_which_kind_of_file_answers(
    agent: Agent, finder: Finder, question: str, kind: str
) -> None:
    walked = agent.walk(finder, question)
    assert walked.strides[-1].action.startswith(f"id {kind} ")
    assert f"The answer is in {kind}." in str(walked.strides[-1].reflection)


def test_it_answers_by_default() -> None:
    words = [sys.executable, "-m", "reflectrl", "locate", "where is BM25 computed?", "--repo", str(ROOT), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"})
    answer = json.loads(done.stdout)
    assert answer["method"] == "agent" and answer["files"] and "the agent autoexplore" in done.stderr
