"""Agents: from a run folder to a folder of their own, and from there to an answer."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.core.types import UserError
from reflectrl.tools.exporting.agents import export_agent
from reflectrl.wings.autoexplore.finder import Finder
from reflectrl.wings.autoexplore.locate import card as cards
from reflectrl.wings.autoexplore.locate.agent import Agent
from reflectrl.wings.autoexplore.locate.card import VARIABLE, read_card
from reflectrl.wings.autoexplore.repository import Repository

QUESTION = "How is a cage opened\nwith its key?"


@pytest.fixture(scope="module")
def agent(agent_folder: Path) -> Agent:
    return Agent.load(agent_folder)


@pytest.fixture(scope="module")
def finder(repo: Path) -> Finder:
    return Finder(Repository.open(repo))


def test_an_agent_walks_to_an_answer(agent: Agent, finder: Finder) -> None:
    first = agent.walk(finder, QUESTION)
    walked = agent.walk(finder, QUESTION)
    assert [stride.action for stride in walked.strides] == [
        step.observation.actions[step.action] for step in walked.episode.steps
    ]
    assert all(0 <= (stride.probability or -1) <= 1 and stride.reflection is not None for stride in walked.strides)
    assert {path for path, _ in walked.ranking} <= set(finder.repository.files)
    assert agent.walk(finder, QUESTION) == walked  # greedy, and nothing is left over from the time before
    # The first walk reads the system prompt, and later ones keep it, so on some processors they are rounded otherwise.
    assert [(stride.action, stride.reflection, stride.output) for stride in first.strides] == [
        (stride.action, stride.reflection, stride.output) for stride in walked.strides
    ]
    assert dict(first.ranking) == pytest.approx(dict(walked.ranking), abs=1e-6)


def test_the_identified_file_comes_first_then_the_probable_ones_then_those_of_the_search(
    agent: Agent, finder: Finder
) -> None:
    for question in (QUESTION, "When does an animal get fed?", "what about animals and keys of cages"):
        walked = agent.walk(finder, question)
        last = walked.strides[-1]
        paths, probs = zip(*walked.ranking, strict=True)
        offered = len(last.offered)
        assert last.identified in (None, paths[0])
        start = 0 if last.identified is None else 1
        assert list(probs[start:offered]) == sorted(probs[start:offered], reverse=True)
        assert set(paths[:offered]) == set(last.offered) and not any(probs[offered:])
        assert len(set(paths)) == len(paths)


def test_a_question_without_a_word_is_refused(agent: Agent, finder: Finder) -> None:
    with pytest.raises(UserError, match="no word to search for"):
        agent.walk(finder, "what is it?")


def test_words_that_are_nowhere_still_get_an_answer(agent: Agent, finder: Finder) -> None:
    assert agent.walk(finder, "bananas").episode.steps


def test_the_card_says_what_it_is(agent_folder: Path) -> None:
    card = read_card(agent_folder)
    assert (card.recipe, card.arm, card.seed, card.name) == ("tiny", "sft", 0, "tiny (sft, seed 0)")
    assert (card.env.hits, card.env.horizon, card.env.page, card.play.scoring) == (2, 6, 20, "trie")
    assert {row["split"] for row in card.figures} == {"validation", "test"}


def test_one_may_go_without_a_reflector(run_folder: Path, tmp_path: Path, finder: Finder) -> None:
    export_agent(run_folder, "sft-no-reflection", 0, tmp_path / "plain")
    assert not (tmp_path / "plain" / "reflector").exists()
    walked = Agent.load(tmp_path / "plain").walk(finder, QUESTION)
    assert all(stride.reflection is None for stride in walked.strides)


def test_half_as_large_it_answers_alike(run_folder: Path, tmp_path: Path, agent: Agent, finder: Finder) -> None:
    for name, half in (("full", False), ("half", True)):
        export_agent(run_folder, "sft", 0, tmp_path / name, half)
    full, half = ((tmp_path / name / "policy/model.safetensors").stat().st_size for name in ("full", "half"))
    assert half < 0.6 * full
    assert json.loads((tmp_path / "half/policy/reflectrl.json").read_text())["base"] == ""  # not where it was made
    first, second = (dict(one.walk(finder, QUESTION).ranking) for one in (agent, Agent.load(tmp_path / "half")))
    assert first == pytest.approx(second, abs=0.02)


def test_export_by_the_command_line(run_folder: Path, tmp_path: Path, capsys: Any) -> None:
    words = ["export-agent", str(run_folder), "--arm", "sft", "--out", str(tmp_path / "mine")]
    assert main(words) == 0 and main(words) == 0  # an agent that is there is replaced
    assert "tiny (sft, seed 0)" in capsys.readouterr().out
    assert read_card(tmp_path / "mine").arm == "sft"


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (["--arm", "expert"], "plays without a model"),
        (["--arm", "stf"], "did you mean 'sft'"),
        (["--arm", "reflect-rl"], "has no arm 'reflect-rl'"),
        (["--arm", "sft", "--seed", "3"], "has no seed 3"),
        (["--arm", "sft", "--sed", "3"], "did you mean '--seed'"),
    ],
)
def test_what_cannot_be_exported(run_folder: Path, tmp_path: Path, capsys: Any, words: list[str], about: str) -> None:
    assert main(["export-agent", str(run_folder), "--out", str(tmp_path / "mine"), *words]) == 2
    assert about in capsys.readouterr().err and not (tmp_path / "mine").exists()


def test_nothing_else_is_overwritten(run_folder: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "diary.txt").write_text("dear diary", encoding="utf-8")
    assert main(["export-agent", str(run_folder), "--arm", "sft", "--out", str(tmp_path)]) == 2
    assert "agent's folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["diary.txt"]
    assert main(["export-agent", str(tmp_path), "--arm", "sft", "--out", str(tmp_path / "mine")]) == 2
    assert "not a run folder" in capsys.readouterr().err


def test_which_agent_is_used(agent_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(agent_folder))
    found = cards.agent_folder()
    assert found is not None and Agent.load(found).card.recipe == "tiny"
    assert cards.agent_folder(str(tmp_path)) == tmp_path


def test_an_agent_that_needs_its_critic_is_refused(agent_folder: Path, tmp_path: Path) -> None:
    guided = Path(shutil.copytree(agent_folder, tmp_path / "guided"))
    (guided / "policy" / "heads.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="needs its critic to play"):
        Agent.load(guided)


def test_broken_agents_are_refused_in_one_line(agent_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not an agent's folder"):
        Agent.load(tmp_path)
    broken = tmp_path / "broken"
    shutil.copytree(agent_folder, broken)
    card = json.loads((broken / "agent.json").read_text(encoding="utf-8"))
    for text, about in (
        ("{", "cannot be read"),
        (json.dumps({**card, "schema": 9}), "schema 1"),
        (json.dumps({**card, "colour": 1}), "unknown key 'colour'"),
        (json.dumps({**card, "play": {"scoring": "loud"}}), "play.scoring"),
    ):
        (broken / "agent.json").write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=about):
            Agent.load(broken)
    (broken / "agent.json").write_text(json.dumps(card), encoding="utf-8")
    shutil.rmtree(broken / "policy")
    with pytest.raises(UserError, match="no policy/"):
        Agent.load(broken)


def test_the_library_of_models_is_not_imported() -> None:
    program = "import sys, reflectrl.wings.autoexplore.locate.agent; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_agent_for_something_else_is_refused(agent_folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(agent_folder, other)
    card = json.loads((other / "agent.json").read_text(encoding="utf-8"))
    assert card["environment"] == "autoexplore"
    card |= {"environment": "corridor", "env": {"horizon": 9}}
    (other / "agent.json").write_text(json.dumps(card), encoding="utf-8")
    with pytest.raises(UserError, match="is an agent for 'corridor'; agents answer questions with autoexplore"):
        Agent.load(other)
