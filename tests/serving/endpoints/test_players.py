"""Contestants and the teacher against a scripted server: clumsy, illegal, leaking and malformed answers."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.core.config import load_recipe
from reflectrl.core.envs import make
from reflectrl.core.episodes.schema import from_line, to_line
from reflectrl.core.evaluation import pass_at, rows_of
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Observation, Sampling, UserError
from reflectrl.models.players import Policy
from reflectrl.serving.endpoints.client import Endpoint
from reflectrl.serving.endpoints.config import EndpointConfig, PlayerConfig, TeacherConfig, player_settings
from reflectrl.serving.endpoints.contestants import CascadePlayer, EndpointPlayer
from reflectrl.serving.endpoints.teacher import EndpointTeacher, Question
from tests.serving.endpoints.scripted import ChatServer

SEEN = Observation("", "A K D\n", ("left", "right"))


def play(server: ChatServer, **settings: Any) -> Any:
    """One episode of a contestant in the corridor."""
    config = PlayerConfig(server.url, "m", **settings)
    section = {"name": "corridor", "train": 1, "horizon": 2}
    player = EndpointPlayer("big", Endpoint(config), config, 0.0)
    task = make(section).tasks("train")[0]
    [episode] = rollout([Job(task, 7, {"arm": "big", "sampling": "greedy", "seed": 0})], lambda: make(section), player)
    return episode


def test_an_illegal_answer_gets_one_more_turn(server: ChatServer) -> None:
    server.reply = lambda request: "right" if "not one of the legal" in request["messages"][-1]["content"] else "fly!"
    episode = play(server)
    assert (
        episode.steps[0].choice.player == "big"
        and episode.steps[0].observation.actions[episode.steps[0].action] == "right"
    )
    assert [message["role"] for message in server.requests[1]["messages"]] == ["system", "user", "assistant", "user"]


def test_what_stays_illegal_is_counted_and_left_to_chance(server: ChatServer) -> None:
    server.reply = lambda request: "fly!"
    episode = play(server)
    assert {step.choice.player for step in episode.steps} == {"illegal"}
    [row] = [row for row in rows_of([episode], make({"name": "corridor"}), 0.95) if row["stage"] == "full"]
    assert row["illegal"] == 1.0


def row_of(episode: Any) -> dict[str, Any]:
    [row] = [row for row in rows_of([episode], make({"name": "corridor"}), 0.95) if row["stage"] == "full"]
    return row


@pytest.mark.parametrize(
    ("message", "reason", "share"),
    [
        ({"content": "I think it is ri"}, "length", "cut"),
        ({"content": ""}, "content_filter", "filtered"),
        ({"content": None, "refusal": "I must not play."}, "stop", "declined"),
    ],
)
def test_an_answer_that_is_not_complete_is_counted_as_such_and_not_as_illegal(
    server: ChatServer, message: dict[str, Any], reason: str, share: str
) -> None:
    body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": reason}]}).encode()
    server.reply = lambda request: body
    episode = play(server)
    assert {step.choice.player for step in episode.steps} == {share}
    assert {name: row_of(episode).get(name) for name in (share, "illegal")} == {share: 1.0, "illegal": None}


def test_a_whole_action_in_an_answer_that_was_cut_off_is_played_and_counted(server: ChatServer) -> None:
    said = {"message": {"content": "Action: right\nObservation: You go"}, "finish_reason": "length"}
    server.reply = lambda request: json.dumps({"choices": [said]}).encode()
    episode = play(server)
    assert {step.choice.player for step in episode.steps} == {"big"} and row_of(episode)["cut"] == 1.0
    assert from_line(to_line(episode)) == episode


TOO_LONG = (400, b'{"error": {"message": "This model\'s maximum context length is 99 tokens.", "code": 400}}')


@pytest.mark.parametrize("style", ["act", "reason", "react"])
def test_an_episode_ends_lost_where_a_question_is_refused(server: ChatServer, style: str) -> None:
    server.script("right", *(["right"] if style == "react" else []), *[TOO_LONG] * 2)
    episode = play(server, style=style)
    assert [step.gave_up for step in episode.steps] == [False, True]
    assert not episode.success and episode.truncated and row_of(episode)["refused"] == 1.0


def test_a_question_that_is_refused_after_a_useless_answer_ends_the_episode(server: ChatServer) -> None:
    server.script("fly!", TOO_LONG)
    [step] = play(server).steps
    assert step.gave_up and step.choice.player == "refused"


def test_reasoning_and_reflections_stand_in_the_episode(server: ChatServer) -> None:
    server.reply = lambda request: "The key is near.\nAction: right"
    assert play(server, style="reason").steps[0].reflection == "The key is near."
    server.reply = lambda request: "right" if "Now act" in request["messages"][-1]["content"] else "It is far."
    assert play(server, style="react").steps[0].reflection == "It is far."


@pytest.mark.parametrize(("defer_below", "asked"), [(0.0, False), (0.999, True)])
def test_a_cascade_asks_where_our_policy_is_not_sure(
    server: ChatServer, pair: Any, defer_below: float, asked: bool
) -> None:
    server.reply = lambda request: "right"
    config = PlayerConfig(server.url, "m", style="cascade", defer_below=defer_below)
    policy = Policy(replace(pair("gpt2")[0], context=2048), Sampling(0.0))
    player = CascadePlayer(policy, EndpointPlayer("big", Endpoint(config), config, 0.0), config.defer_below)
    task = make({"name": "corridor"}).tasks("train")[0]
    [episode] = rollout([Job(task, 7)], lambda: make({"name": "corridor", "horizon": 2}), player)
    turn = episode.steps[0].choice
    assert turn is not None
    assert (turn.player, bool(server.requests)) == (("big", True) if asked else ("policy", False))
    assert player.lookups == len(episode.steps)


def teacher(server: ChatServer, folder: Path, **settings: Any) -> EndpointTeacher:
    return EndpointTeacher(
        Endpoint(EndpointConfig(server.url, "m", concurrency=1)),
        TeacherConfig(**settings),
        folder / "r" / "aside.jsonl",
    )


def test_a_leak_is_asked_for_again_with_the_reason(server: ChatServer, tmp_path: Path) -> None:
    server.script("Reflection: The hint says left.", "Reflection: The key lies on the left.")
    [lesson] = teacher(server, tmp_path).lessons([Question(SEEN, "left", None, ("t", 0))])
    assert (lesson.reflection, lesson.action) == ("The key lies on the left.", 0)
    assert "gives away" in server.requests[1]["messages"][-1]["content"]
    assert not (tmp_path / "r").exists()


def test_what_stays_unusable_is_kept_aside_once(server: ChatServer, tmp_path: Path) -> None:
    server.reply = lambda request: "Reflection: I was told to."
    for _ in range(2):
        asked = teacher(server, tmp_path, attempts=2)
        [lesson] = asked.lessons([Question(SEEN, "left", None, ("t", 3))])
        assert lesson.reflection is None and asked.dropped == 1
    [row] = [json.loads(line) for line in (tmp_path / "r" / "aside.jsonl").read_text().splitlines()]
    assert (row["task"], row["step"], row["answer"]) == ("t", 3, "Reflection: I was told to.")
    assert "gives away" in row["problem"]


def test_a_negative_speaks_of_the_wrong_step(server: ChatServer, tmp_path: Path) -> None:
    server.script("Reflection: That led away.")
    teacher(server, tmp_path).lessons([Question(SEEN, "left", "right", ("t", 1))])
    assert '"right", was a mistake' in server.requests[0]["messages"][-1]["content"]


def test_a_teachers_refused_question_is_set_aside_and_not_asked_again(server: ChatServer, tmp_path: Path) -> None:
    server.script(TOO_LONG, "Reflection: The key lies on the left.")
    asked = teacher(server, tmp_path, attempts=3)
    questions = [
        Question(SEEN, "left", None, ("t", 0)),
        Question(replace(SEEN, state="K A D\n"), "left", None, ("t", 1)),
    ]
    lessons = asked.lessons(questions)
    assert [lesson.reflection for lesson in lessons] == [None, "The key lies on the left."]
    assert len(server.requests) == 2 and asked.dropped == 1
    assert "the server refused the question" in (tmp_path / "r" / "aside.jsonl").read_text()


def test_a_reflection_that_was_cut_off_loses_its_last_sentence(server: ChatServer, tmp_path: Path) -> None:
    said = {"message": {"content": "Reflection: The key is near. It li"}, "finish_reason": "length"}
    server.reply = lambda request: json.dumps({"choices": [said]}).encode()
    [lesson] = teacher(server, tmp_path).lessons([Question(SEEN, "left", None, ("t", 0))])
    assert lesson.reflection == "The key is near."


@pytest.mark.parametrize(
    ("k", "n", "c", "expected"), [(1, 4, 1, 0.25), (2, 4, 1, 0.5), (2, 4, 4, 1.0), (3, 4, 0, 0.0), (2, 3, 2, 1.0)]
)
def test_pass_at_k_is_the_chance_that_a_draw_holds_a_win(k: int, n: int, c: int, expected: float) -> None:
    assert pass_at(k, n, c) == pytest.approx(expected)


# ---- recipes and the command line ------------------------------------------------------------------------------------


def recipe(folder: Path, text: str) -> Any:
    path = folder / "r.toml"
    path.write_text(text, encoding="utf-8")
    return load_recipe(path, trust=True)


def test_a_key_meant_for_one_server_is_not_sent_to_another(tmp_path: Path) -> None:
    shared = 'endpoint = {base_url = "http://a/v1", model = "m", key_env = "KEY", timeout = 3.0}\n'
    found = recipe(tmp_path, shared + '[players]\nhere = {}\nthere = {base_url = "http://b/v1", model = "n:8b"}\n')
    here, there = player_settings(found, "here"), player_settings(found, "there")
    assert (here.base_url, here.key_env) == ("http://a/v1", "KEY")
    assert (there.base_url, there.key_env, there.timeout) == ("http://b/v1", "", 3.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("players.a.modle = 'x'", "unknown key 'players.a.modle' (did you mean 'model'?)"),
        ("players.a.style = 'fly'", "'players.a.style' is 'fly'"),
        ("players.a.max_cost = 3.0", "set endpoint.max_cost"),
        ("players.a = 3", "players.a must be a table"),
        ("endpoint.key_env = 'sk-pasted-key'", "name of an environment variable"),
        ("endpoint.base_url = 'http://u:pasted-key@h/v1'", "a user or a password"),
        ("arms = ['nobody']", "unknown arm 'nobody'"),
        ("arms = ['a']\nplayers.a.style = 'act'", "endpoint.base_url is missing"),
    ],
)
def test_bad_settings_are_one_line(tmp_path: Path, capsys: Any, monkeypatch: Any, text: str, words: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.toml").write_text(f"{text}\nenv.name = 'corridor'\n", encoding="utf-8")
    assert main(["run", "r.toml"]) == 2
    err = capsys.readouterr().err
    assert words in err.replace("players.a.base_url", "endpoint.base_url") and err.count("\n") == 1
    assert "pasted" not in err


def endless(handler: Any) -> None:
    """Send a little, time and again."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:  # until nobody listens
        handler.wfile.write(b"a")
        handler.wfile.flush()
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((404, b'{"error": {"message": "no model m"}}'), "error 404: no model m"),
        ((401, b'{"error": {"message": "wrong key"}}'), "error 401: wrong key"),
        ((200, b"a" * 10_000_000), "larger than answer_kib"),
        (endless, "no answer within 0.5 s"),
        (None, "cannot connect"),
    ],
)
def test_a_bad_server_is_one_line_and_exit_code_2(
    server: ChatServer, tmp_path: Path, capsys: Any, monkeypatch: Any, reply: Any, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    server.reply = lambda request: reply
    url = server.url if reply else "http://127.0.0.1:9/v1"
    section = (
        f"endpoint = {{base_url = '{url}', model = 'm', retries = 0, timeout = {0.5 if reply is endless else 60}}}"
    )
    text = f"arms = ['a']\nenv.name = 'corridor'\n{section}\n[players.a]\n"
    (tmp_path / "r.toml").write_text(text, encoding="utf-8")
    assert main(["run", "r.toml", "--trust"]) == 2
    err = capsys.readouterr().err
    assert words in err and url in err and err.count("\n") == 1


@pytest.mark.parametrize("fault", [endless, (401, b'{"error": "wrong key"}'), (200, b"a" * 10_000_000)])
def test_what_was_paid_for_before_a_fault_is_kept(server: ChatServer, tmp_path: Path, capsys: Any, fault: Any) -> None:
    seconds = 3 if fault is endless else 60
    where = f"base_url = '{server.url}', model = 'm', retries = 0, timeout = {seconds}, concurrency = 1"
    small = "env = {name = 'corridor', test = 3, horizon = 3}\neval = {splits = ['test'], sampling = ['greedy']}\n"
    text = f"arms = ['a']\n{small}endpoint = {{{where}}}\n[players.a]\n"
    (tmp_path / "r.toml").write_text(text, encoding="utf-8")
    words = ["run", str(tmp_path / "r.toml"), "--trust", "--folder", str(tmp_path / "run")]
    server.script("right", "right", fault)
    assert main(words) == 2 and capsys.readouterr().err.count("\n") == 1
    paid = [json.dumps(request) for request in server.requests[:2]]
    server.reply = lambda request: "right"
    assert main(words) == 0
    assert len(server.requests) > 3
    assert not set(paid) & {json.dumps(request) for request in server.requests[2:]}


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    from reflectrl.runs.arms import select_arms

    found = recipe(tmp_path, "players.sft.style = 'act'\n")
    with pytest.raises(UserError, match="is already the name of an arm"):
        select_arms(["sft"], found)


@pytest.mark.parametrize("style", ["act", "reflector"])
def test_an_arm_that_asks_a_model_is_not_exported(tmp_path: Path, capsys: Any, style: str) -> None:
    player = f"{{base_url = 'http://h/v1', model = 'm', style = '{style}'}}"
    recipe(tmp_path, f"arms = ['a']\nenv.name = 'corridor'\nplayers.a = {player}\n")
    (tmp_path / "r.toml").rename(tmp_path / "recipe.toml")
    assert main(["export-agent", str(tmp_path), "--trust", "--arm", "a", "--out", str(tmp_path / "mine")]) == 2
    assert "the arm 'a' asks m at h, which cannot be exported" in capsys.readouterr().err
    assert not (tmp_path / "mine").exists()
