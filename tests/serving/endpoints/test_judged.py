"""A judge behind an address that ranks the episodes of a task, whose standing is a reward of online RL."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.core.config import RLConfig
from reflectrl.core.envs import make
from reflectrl.core.types import Choice, Episode, Step
from reflectrl.serving.endpoints.client import Endpoint
from reflectrl.serving.endpoints.config import EndpointConfig, JudgeConfig
from reflectrl.serving.endpoints.judged import JudgedShaping
from reflectrl.serving.endpoints.ranking import rank_episodes, transcript
from tests.serving.endpoints.scripted import ChatServer

RECIPE = """
arms = ["rl-only"]
env = {name = "corridor", train = 4, validation = 2, test = 2, horizon = 5}
model = {layers = 1, width = 16, heads = 2, mixed_precision = "off"}
rl = {updates = 2, episodes = 4, group = 2, baseline = "dr-grpo", eval_every = 1, eval_episodes = 2}
eval = {splits = ["test"], stages = ["full"]}
endpoint = {base_url = "URL", model = "m", retries = 0}
judge = {coef = 1.0, instead = true}
"""


def walk(*actions: str) -> Episode:
    """An episode of the corridor in which these actions are taken."""
    env = make({"name": "corridor", "train": 1, "horizon": 99})
    [task] = env.tasks("train")
    env.reset(options={"task": task})
    steps = []
    for name in actions:
        seen = env.observe()
        action = seen.actions.index(name)
        reward = env.step(action)[1]
        steps.append(Step(seen, (Choice("p", name, choice=action),), action, float(reward)))
    return Episode(task, tuple(steps), False, True, len(actions))


def shorter(request: dict[str, Any]) -> str:
    """A judge that prefers what took fewer actions."""
    first, second = (
        part.partition("</attempt>")[0] for part in request["messages"][-1]["content"].split("<attempt>")[1:]
    )
    return "TIE" if first.count("\n>") == second.count("\n>") else "AB"[first.count("\n>") > second.count("\n>")]


def test_episodes_of_a_task_are_ranked_in_both_orders(server: ChatServer) -> None:
    server.reply = shorter
    group = [walk("right", "left", "right"), walk("right"), walk("left", "right"), walk("right")]
    judge = Endpoint(EndpointConfig(server.url, "m"))
    assert rank_episodes([group, [walk("left")]], judge, 6000, 8) == [[0.0, 1.0, 0.5, 1.0], [0.5]]
    assert len(server.requests) == 6  # of three different episodes
    server.reply = lambda request: "A"  # whatever stands first: ranks nobody
    assert rank_episodes([group], Endpoint(EndpointConfig(server.url, "n")), 6000, 8) == [[0.5] * 4]


def test_a_verdict_that_cannot_be_read_is_no_tie(server: ChatServer) -> None:
    group = [walk("right"), walk("left"), walk("right", "left")]
    first = transcript(group[0], 6000)

    def reply(request: dict[str, Any]) -> str:
        text = request["messages"][-1]["content"]
        return "Hm." if first not in text or text.index(first) > text.index("Attempt B") else "A"

    server.reply, counts = reply, Counter[str]()
    assert rank_episodes([group], Endpoint(EndpointConfig(server.url, "m")), 6000, 8, counts) == [[1.0, 0.0, 0.0]]
    assert counts == {"verdicts": 6, "unread_verdicts": 4}


def test_a_training_by_a_judge_that_cannot_be_read_ends_with_one_line(
    server: ChatServer, tmp_path: Path, capsys: Any
) -> None:
    server.reply = lambda request: "Both have their merits."
    path = tmp_path / "r.toml"
    text = RECIPE.replace("episodes = 4, group = 2", "episodes = 16, group = 4")
    path.write_text(text.replace("URL", server.url), encoding="utf-8")
    assert main(["run", str(path), "--trust", "--folder", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert "verdicts cannot be read as A, B or TIE; raise judge.max_tokens" in err and err.count("\n") == 1


def test_a_training_names_the_verdicts_that_cannot_be_read(server: ChatServer, tmp_path: Path) -> None:
    server.reply = shorter
    path = tmp_path / "r.toml"
    path.write_text(RECIPE.replace("URL", server.url), encoding="utf-8")
    assert main(["run", str(path), "--trust", "--folder", str(tmp_path / "run")]) == 0
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in metrics if "verdicts" in row][-1]
    assert last["verdicts"] == len(server.requests) and last["unread_verdicts"] == 0


def test_a_long_episode_is_shown_by_its_ends() -> None:
    whole, cut = transcript(walk(*["right", "left"] * 20), 10**6), transcript(walk(*["right", "left"] * 20), 200)
    assert "> left" in whole and whole.endswith("(The goal was not reached.)")
    assert len(cut) < 250 and cut.startswith(whole[:100]) and "[...]" in cut and whole.endswith(cut[-60:])


def test_a_standing_is_paid_at_the_end_beside_the_environment_or_alone() -> None:
    episode = walk("right", "left")
    ranked = Episode(episode.task, episode.steps, False, True, 0, {"standing": 0.75})
    env, own = make({"name": "corridor"}), [step.reward for step in episode.steps]
    beside, alone = (JudgedShaping(JudgeConfig(2.0, instead), RLConfig(), env) for instead in (False, True))
    assert beside(ranked).tolist() == pytest.approx([own[0], own[1] + 1.5])
    assert alone(ranked).tolist() == pytest.approx([0.0, 1.5])
    assert alone(episode).tolist() == pytest.approx([0.0, 1.0])  # not judged: in the middle


def test_a_run_learns_from_it_within_the_budget_and_asks_nothing_twice(
    server: ChatServer, tmp_path: Path, capsys: Any
) -> None:
    server.reply = shorter
    path = tmp_path / "r.toml"
    path.write_text(RECIPE.replace("URL", server.url), encoding="utf-8")
    words = ["run", str(path), "--trust", "--folder", str(tmp_path / "run")]
    assert main([*words, "--endpoint.max_requests", "1"]) == 2
    out, err = capsys.readouterr()
    assert "a judge at http://127.0.0.1" in out and "at most 8 requests" in out
    assert "the budget is spent (max_requests = 1)" in err and err.count("\n") == 1
    assert main([*words, "--endpoint.max_requests", "100"]) == 0
    asked = [json.dumps(request) for request in server.requests]
    assert 1 < len(asked) <= 8 and len(set(asked)) == len(asked)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('group = 2, baseline = "dr-grpo", ', "", "set rl.group to at least 2"),
        ('base_url = "URL", ', "", "endpoint.base_url is missing"),
        ("judge =", 'rollouts = {servers = ["http://127.0.0.1:9/v1"]}\njudge =', "cannot be combined with [rollouts]"),
    ],
)
def test_what_does_not_go_with_a_judge_is_one_line(tmp_path: Path, capsys: Any, old: str, new: str, said: str) -> None:
    path = tmp_path / "r.toml"
    path.write_text(RECIPE.replace(old, new).replace("URL", "http://127.0.0.1:9/v1"), encoding="utf-8")
    assert main(["run", str(path), "--trust", "--folder", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
