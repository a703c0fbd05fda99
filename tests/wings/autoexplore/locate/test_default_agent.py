"""The agent that ships in the package: small, loaded without the transformers library, and better than nothing."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from reflectrl.models.light import load_light
from reflectrl.runs.state import POLICY, REFLECTOR
from reflectrl.wings.autoexplore.finder import Finder
from reflectrl.wings.autoexplore.locate.agent import Agent
from reflectrl.wings.autoexplore.locate.card import SHIPPED, read_card
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


LIGHT = """
import re, sys
from importlib.metadata import packages_distributions, requires

wanted, allowed = sys.argv[1].split(","), {"reflectrl", "pip"}
while wanted:  # what the packages themselves require, but not their extras
    name = re.match("[A-Za-z0-9_.-]+", wanted.pop())[0].lower().replace("_", "-")
    if name not in allowed:
        allowed.add(name)
        wanted += [one for one in requires(name) or () if ";" not in one]
homes = packages_distributions()

class Missing:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in homes and not any(home.lower().replace("_", "-") in allowed for home in homes[top]):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from reflectrl.cli import main
sys.exit(main(sys.argv[2:]))
"""
"""Runs the command line as if nothing were installed but some packages."""


def in_a_light_install(*words: str) -> subprocess.CompletedProcess[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    packages = re.search(r"^LIGHT := (.*)$", makefile, re.MULTILINE)
    assert packages is not None
    program = [sys.executable, "-c", LIGHT, packages[1].replace(" ", ","), *words]
    return subprocess.run(program, capture_output=True, text=True, check=False)


def test_it_answers_where_only_that_is_installed_what_make_locate_installs() -> None:
    question = ["locate", "where is BM25 computed?", "--repo", str(ROOT / "src"), "--json"]
    done = in_a_light_install(*question)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "agent"


def test_what_a_light_install_lacks_is_said_in_one_line(tmp_path: Path) -> None:
    done = in_a_light_install("run", "taxi", "--folder", str(tmp_path / "run"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert " is not installed here, only what `locate` needs; for the rest, in the checkout" in done.stderr


def test_it_answers_by_default() -> None:
    words = [sys.executable, "-m", "reflectrl", "locate", "where is BM25 computed?", "--repo", str(ROOT), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"})
    answer = json.loads(done.stdout)
    assert answer["method"] == "agent" and answer["files"] and "the agent autoexplore" in done.stderr
