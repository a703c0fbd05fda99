"""Agents: trained players in a folder of their own, which plays like the run that they came from."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import reflectrl
from reflectrl import runs as pipeline
from reflectrl.api import Agent
from reflectrl.cli import main
from reflectrl.core.config import Recipe
from reflectrl.core.types import UserError
from reflectrl.runs.card import read_card
from reflectrl.tools.exporting.agents import export_agent


def told(agent: Agent, tasks: int = 3) -> list[tuple[int, str | None, float]]:
    """What an agent does and writes on some tasks, and how sure it is."""
    env, done = reflectrl.make_env("corridor", test=tasks), []
    for task in env.tasks("test"):
        env.reset(options={"task": task})
        agent.reset()
        while not env.done:
            action = agent.act(env.observe())
            done.append((action, agent.reflection, round(max(agent.probabilities.values()), 4)))
            env.step(action)
    return done


def test_it_plays_like_the_run_wherever_it_lies(copy: Path, tmp_path: Path, capsys: Any) -> None:
    wanted = told(reflectrl.load_agent(copy, "reflect-rl"))
    assert any(reflection for _, reflection, _ in wanted)
    assert main(["export-agent", str(copy), "--out", str(tmp_path / "mine")]) == 0
    assert "tiny (reflect-rl, seed 0)" in capsys.readouterr().out
    shutil.rmtree(copy)
    (tmp_path / "mine").rename(tmp_path / "elsewhere")
    assert told(reflectrl.load_agent(tmp_path / "elsewhere")) == wanted
    assert main(["play", "corridor", "--player", str(tmp_path / "elsewhere"), "--split", "test"]) == 0
    assert "after" in capsys.readouterr().out


def test_an_arm_without_reflections(finished: Path, tmp_path: Path) -> None:
    export_agent(finished, "sft", 0, tmp_path / "sft")
    assert main(["play", "corridor", "--player", f"{tmp_path / 'sft'}:sft"]) == 0
    with pytest.raises(UserError, match="is an agent of the arm 'sft', not 'reflect-rl'"):
        reflectrl.load_agent(tmp_path / "sft", "reflect-rl")


def test_numpy_alone_decides_as_torch_does(finished: Path, tmp_path: Path) -> None:
    export_agent(finished, "sft", 0, tmp_path / "agent")
    states, options = ["A F\nF G\nLast: none\n", "F F\nA G\nLast: down\n"], ["left", "down", "right"]
    agent = reflectrl.load_agent(tmp_path / "agent")
    expected = [agent.decide(state, options) for state in states]
    code = (
        "import sys, json, reflectrl\n"
        f"agent = reflectrl.load_agent({str(tmp_path / 'agent')!r}, runtime='numpy')\n"
        f"found = [agent.decide(state, {options!r}) for state in {states!r}]\n"
        "print(json.dumps([agent.name, 'torch' in sys.modules, [[one.choice, one.confidence] for one in found]]))"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    name, imported, found = json.loads(said)
    assert (name, imported) == ("sft", False)
    assert [choice for choice, _ in found] == [decision.choice for decision in expected if decision]
    assert [p for _, p in found] == pytest.approx([d.confidence for d in expected if d], abs=1e-2)


def test_two_adapters_on_one_backbone(like: Callable[..., Recipe], small_model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    pipeline.run(like("arms=sft", f"model.source={small_model}", "model.lora_rank=2"), run, "sft")
    export_agent(run, "sft", 0, tmp_path / "mine")
    wanted = told(reflectrl.load_agent(run, "sft"))
    shutil.rmtree(run)
    assert told(reflectrl.load_agent(tmp_path / "mine")) == wanted
    weights = sum(path.stat().st_size for path in (tmp_path / "mine").rglob("*.safetensors"))
    assert weights < (small_model / "model.safetensors").stat().st_size  # the backbone stays where it is


def test_the_card_says_what_it_is_and_the_recipe_keeps_no_paths(finished: Path, tmp_path: Path) -> None:
    card = export_agent(finished, "reflect-rl", 0, tmp_path / "mine", half=True)
    assert read_card(tmp_path / "mine") == card
    assert (card.recipe, card.arm, card.seed, card.environment) == ("tiny", "reflect-rl", 0, "corridor")
    assert card.env == {"horizon": reflectrl.make_env("corridor").horizon} and card.play.reflection_tokens == 8
    assert {row["arm"] for row in card.figures} == {"reflect-rl"} and {row["split"] for row in card.figures} >= {"test"}
    texts = [path.read_text(encoding="utf-8") for path in (tmp_path / "mine").rglob("*.[tj][os][mo][ln]")]
    assert len(texts) >= 4 and not [text for text in texts if str(finished) in text]
    full = (finished / "checkpoints").rglob("model.safetensors")
    assert (tmp_path / "mine/policy/model.safetensors").stat().st_size < 0.7 * next(full).stat().st_size


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (["--arm", "random"], "plays without a model"),
        (["--arm", "stf"], "did you mean 'sft'"),
        (["--arm", "no-reflection"], "has no arm 'no-reflection'"),
        (["--seed", "3"], "has no seed 3"),
        (["--sed", "3"], "did you mean '--seed'"),
    ],
)
def test_what_cannot_be_exported(finished: Path, tmp_path: Path, capsys: Any, words: list[str], about: str) -> None:
    assert main(["export-agent", str(finished), "--out", str(tmp_path / "mine"), *words]) == 2
    assert about in capsys.readouterr().err and not (tmp_path / "mine").exists()


def test_damaged_agents_are_refused_in_one_line(finished: Path, tmp_path: Path) -> None:
    export_agent(finished, "sft", 0, tmp_path / "mine")
    path = tmp_path / "mine" / "policy" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UserError, match="model.safetensors"):
        reflectrl.load_agent(tmp_path / "mine")
    card = tmp_path / "mine" / "agent.json"
    card.write_text(json.dumps({**json.loads(card.read_text(encoding="utf-8")), "schema": 9}), encoding="utf-8")
    with pytest.raises(UserError, match="schema 1"):
        read_card(tmp_path / "mine")
