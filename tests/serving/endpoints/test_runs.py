"""Whole runs with a teacher, contestants and a reflector behind an address on this machine, which knows the expert."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from reflectrl import runs as pipeline
from reflectrl.cli import main
from reflectrl.core.config import load_recipe, read_recipe
from reflectrl.core.envs import make
from reflectrl.core.episodes import EpisodeLog, read_episodes
from reflectrl.core.players import RandomPlayer
from reflectrl.core.players.simple import AnalystPlayer, ExpertPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.runs.runner import run_recipe
from tests.serving.endpoints.scripted import ChatServer, completion

RECIPE = """
name = "endpoints"
arms = ["random", "sft", "reflect-rl", "dagger", "actor", "thinker", "reactor", "paired", "speaker"]
env = {name = "corridor", train = 4, validation = 2, test = 3}
model = {layers = 1, width = 16, heads = 2, mixed_precision = "off"}
play.reflection_tokens = 8
teach = {by = "endpoint", negatives = 1, noise = [0.0]}
sft = {steps = 4, batch_size = 8, eval_every = 2, eval_rows = 8}
rl = {updates = 2, episodes = 4, eval_every = 1, eval_episodes = 2, replay_episodes = 2}
eval = {splits = ["test"], batch = 3, repeats = 2}

[endpoint]
base_url = "URL"
model = "llama3:8b"
key_env = "TEST_KEY"
timeout = 20
max_requests = 2000

[players.actor]
style = "act"
[players.thinker]
style = "reason"
[players.reactor]
style = "react"
[players.paired]
style = "pair"
[players.speaker]
style = "reflector"
"""
KEY = "sk-secret-of-the-run"


def best(text: str) -> str:
    """The expert's action in the corridor, as one can see it in the text."""
    row = re.findall(r"^[.AaDK ]+$", text, re.MULTILINE)[-1].split()
    here = next(i for i, mark in enumerate(row) if mark in "Aa")
    goal, there = ("D", "open") if "a" in row else ("K", "take")
    return there if goal not in row else "right" if row.index(goal) > here else "left"


def expert(request: dict[str, Any]) -> bytes:
    """A model that plays and explains well, and is clumsy in the form at times."""
    asked, action = request["messages"][-1]["content"], best(request["messages"][1]["content"])
    if "Now act" in asked:
        text = f"Action: {action}"
    elif "Do not act yet" in asked:
        text = f"The goal lies {action}."
    elif "Reflection: <" in asked:
        text = f"<think>hm</think>Reflection: It goes on.\nAction: {action}"
    else:
        text = f"I would go **{action}**."
    return completion(text, (50, 10))


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)


def recipe_of(folder: Path, server: ChatServer, *overrides: str) -> Any:
    path = folder / "recipe.toml"
    path.write_text(RECIPE.replace("URL", server.url), encoding="utf-8")
    return load_recipe(path, overrides, trust=True)


def rows(run: Path) -> dict[str, dict[str, Any]]:
    found = json.loads((run / "results.json").read_text(encoding="utf-8"))["summary"]
    return {row["arm"]: row for row in found if row["stage"] == "full"}


def test_teach_sft_rl_and_eval_with_endpoints_in_one_table(server: ChatServer, tmp_path: Path, capsys: Any) -> None:
    server.reply = expert
    run = tmp_path / "run"
    pipeline.run(recipe_of(tmp_path, server), run)
    shown = capsys.readouterr()
    assert "4 episodes from http://127.0.0.1" in shown.out and "requests and" in shown.out
    assert "pass@2" in shown.out
    taught = list(read_episodes(run / "episodes" / "teach-seed0-train.jsonl"))
    assert len(taught) == 4 and all(episode.success for episode in taught)
    assert {step.reflection for episode in taught for step in episode.steps} == {"It goes on."}
    table = rows(run)
    assert set(table) == {"random", "sft", "reflect-rl", "dagger", "actor", "thinker", "reactor", "paired", "speaker"}
    for name in ("actor", "thinker", "reactor", "paired"):
        assert table[name]["success"] == 1.0 and table[name]["pass@2"] == 1.0 and table[name]["episodes"] == 6
    spoken = list(read_episodes(run / "episodes" / "eval-speaker-seed0-test-full-greedy.jsonl"))
    assert all(step.turns[0].text.startswith("The goal lies") for one in spoken for step in one.steps)
    assert {one.provenance["endpoint"] for one in spoken} == {"llama3:8b at 127.0.0.1"}
    page = (run / "report.html").read_text(encoding="utf-8")
    assert '<th scope="col" class="n">pass@2</th>' in page and "at least one of k attempts" in page
    assert main(["export-agent", str(run), "--arm", "sft", "--out", str(tmp_path / "agent")]) == 0
    travelling = read_recipe(tmp_path / "agent" / "recipe.toml")
    assert not travelling.sections["players"] and not travelling.sections["endpoint"].base_url
    walked = list(read_episodes(run / "episodes" / "dagger-seed0-train.jsonl"))[len(taught) :]
    assert [step.label for one in walked for step in one.steps].count("positive") == sum(
        len(one.steps) for one in walked
    )
    asked = len(server.requests)
    (run / "episodes" / "eval-actor-seed0-test-full-greedy.jsonl").unlink()
    pipeline.run(recipe_of(tmp_path, server), run)
    assert len(server.requests) == asked and rows(run) == table  # answered from the journal
    for path in [path for path in run.rglob("*") if path.is_file()]:
        data = path.read_bytes()
        assert KEY.encode() not in data, path
        assert b"Legal actions:" not in data and b"You act in a text" not in data, path
    assert KEY not in shown.out + shown.err and "Legal actions" not in shown.out + shown.err


SMALL = """
arms = ["random", "actor"]
env = {name = "corridor", train = 4, validation = 2, test = 8}
eval = {splits = ["test"], batch = 2, sampling = ["greedy"]}
endpoint = {base_url = "URL", model = "m", retries = 0}
[players.actor]
"""


def refusing(cell: int) -> Any:
    """An expert that refuses a question where one stands in this cell. -1 refuses all."""

    def reply(request: dict[str, Any]) -> Any:
        row = re.findall(r"^[.AaDK ]+$", request["messages"][1]["content"], re.MULTILINE)[-1].split()
        if cell < 0 or row[cell] in "Aa":
            return 400, b'{"error": {"message": "the prompt exceeds the context length"}}'
        return expert(request)

    return reply


def test_a_refused_question_costs_an_episode_and_not_the_run(server: ChatServer, tmp_path: Path, capsys: Any) -> None:
    server.reply = refusing(0)
    (tmp_path / "recipe.toml").write_text(SMALL.replace("URL", server.url), encoding="utf-8")
    words = ["run", str(tmp_path / "recipe.toml"), "--trust", "--folder", str(tmp_path / "run")]
    assert main(words) == 0
    shown = capsys.readouterr()
    row, asked = rows(tmp_path / "run")["actor"], len(server.requests)
    lost = round(row["refused"] * 8)
    assert 0 < lost < 8 and row["success"] == 1 - row["refused"] and row["episodes"] == 8
    assert f"actor: the server refused a question in {lost} of 8 episodes, lost if it was to act" in shown.out
    assert "the prompt exceeds the context length; a smaller `history`" in shown.err and shown.err.count("note:") == 1
    assert '<th scope="col" class="n">refused</th>' in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    (tmp_path / "run" / "episodes" / "eval-actor-seed0-test-full-greedy.jsonl").unlink()
    assert main(words) == 0
    assert rows(tmp_path / "run")["actor"] == row and len(server.requests) == asked
    assert main([*words[:-1], str(tmp_path / "unread"), "--endpoint.refused", "unread"]) == 0
    unread = rows(tmp_path / "unread")["actor"]
    assert (unread["success"], unread["episodes"], unread["unread"]) == (1.0, 8 - lost, lost / 8)
    assert f"actor: {lost} of 8 episodes left out, in which the server refused a question" in capsys.readouterr().out


def test_an_arm_of_which_no_episode_is_left_has_no_results(server: ChatServer, tmp_path: Path, capsys: Any) -> None:
    server.reply = refusing(-1)
    (tmp_path / "recipe.toml").write_text(SMALL.replace("URL", server.url), encoding="utf-8")
    words = ["run", str(tmp_path / "recipe.toml"), "--trust", "--folder", str(tmp_path / "run")]
    assert main([*words, "--endpoint.refused", "unread"]) == 0
    assert set(rows(tmp_path / "run")) == {"random"}
    assert "actor: no results, since the server refused a question in every episode" in capsys.readouterr().out


def test_azure_teaches(server: ChatServer, tmp_path: Path) -> None:
    server.reply = expert
    azure = ("endpoint.api=azure", "endpoint.api_version=2024-10-21", "endpoint.model=deployed")
    run_recipe(recipe_of(tmp_path, server, 'arms=["sft"]', *azure), tmp_path / "run", "teach")
    assert len(list(read_episodes(tmp_path / "run/episodes/teach-seed0-train.jsonl"))) == 4
    assert set(server.paths) == {"/v1/openai/deployments/deployed/chat/completions?api-version=2024-10-21"}
    assert {headers["api-key"] for headers in server.headers} == {KEY} and set(server.keys) == {None}


def test_what_another_model_says_at_length_is_cut_where_the_policys_context_ends(
    server: ChatServer, tmp_path: Path
) -> None:
    said = "The goal lies to the right. " * 400
    server.reply = lambda request: completion(said, (50, 600))
    run = tmp_path / "run"
    pipeline.run(recipe_of(tmp_path, server, 'arms=["speaker"]', "teach.by=teacher", "model.context=256"), run)
    spoken = list(read_episodes(run / "episodes" / "eval-speaker-seed0-test-full-greedy.jsonl"))
    heard = {step.turns[0].text for one in spoken for step in one.steps}
    assert heard and all(text and text in said and len(text) < 1000 for text in heard)


def test_play_watches_a_model_behind_an_address(server: ChatServer, capsys: Any) -> None:
    server.reply = expert
    assert main(["play", "corridor", "--player", f"{server.url}?model=llama3:8b&style=react&key_env=TEST_KEY"]) == 0
    out, error = capsys.readouterr()
    assert "won after" in out and "The goal lies" in out and KEY not in out + error
    assert {request["model"] for request in server.requests} == {"llama3:8b"}
    assert {request["temperature"] for request in server.requests} == {0.0}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "name the model"),
        ("?model=m&styl=act", "unknown key 'styl' (did you mean 'style'?)"),
        ("?model=m&style=loud", "'style'"),
        ("?model=m&style=pair", "works only as an arm of a run"),
        ("?model=m&style=reflect-rl", "works only as an arm of a run"),
        ("?model=m&key_env=NO_SUCH_KEY", "no variable NO_SUCH_KEY"),
    ],
)
def test_an_address_that_cannot_be_a_player(server: ChatServer, capsys: Any, query: str, said: str) -> None:
    assert main(["play", "corridor", "--player", server.url + query]) == 2
    assert said in capsys.readouterr().err and not server.requests


def test_recorded_demonstrations_get_the_reflections_that_they_lack(server: ChatServer, tmp_path: Path) -> None:
    env = make({"name": "corridor", "train": 4, "validation": 2, "test": 3})
    with EpisodeLog(tmp_path / "demos.jsonl") as log:
        jobs = [Job(task, n) for n, task in enumerate(env.tasks("train"))]
        for player, speaker in ((ExpertPlayer(), None), (RandomPlayer(), None), (ExpertPlayer(), AnalystPlayer())):
            for episode in rollout(jobs, lambda: env, player, speaker, batch=1):
                log.append(episode)
    server.reply = lambda request: "Reflection: It is said from outside."
    given = (f"teach.log={tmp_path / 'demos.jsonl'}", "teacher.ask=log", "arms=sft", "teach.validation_tasks=1")
    pipeline.run(recipe_of(tmp_path, server, *given), tmp_path / "run", until="teach")
    taught = list(read_episodes(tmp_path / "run" / "episodes" / "teach-seed0-train.jsonl"))
    labelled = [step for one in taught if one.success for step in one.steps if step.label]
    said = {step.reflection for step in labelled}
    assert "It is said from outside." in said and len(said) > 1  # and what the analyst had said before
    asked = [request["messages"][1]["content"] for request in server.requests]
    assert all(f'the best action now is "{best(text)}"' in text for text in asked)
