"""Texts in hindsight that a model writes: the reflector after SFT, or a model behind an address."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import reflectrl
from benchmarks.gradients import PLAIN
from reflectrl import runs as pipeline
from reflectrl.cli import main
from reflectrl.core.config import Recipe, RLConfig
from reflectrl.core.envs import make
from reflectrl.core.episodes import without_reflections
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Choice, Episode, Observation, Step, Task
from reflectrl.methods.hindsight import (
    HindsightConfig,
    HindsightTexts,
    endpoint_asks,
    endpoint_texts,
    hindsight_rollouts,
    reflector_texts,
)
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import Policy, Reflector
from reflectrl.runs.graph import planned
from reflectrl.serving.endpoints.client import Endpoint
from reflectrl.serving.endpoints.config import EndpointConfig, TeacherConfig
from tests.learn.conftest import Rooms
from tests.methods.conftest import Resumed, same_weights
from tests.runs.alone import of_methods, require_made_alone
from tests.serving.endpoints.scripted import ChatServer, interrupted, serving

Like = Callable[..., Recipe]


def needed(recipe: Recipe, arm: str) -> tuple[str, ...]:
    """Return the inputs of an arm's training."""
    return planned(recipe)[f"hindsight {arm} (seed 0)"].inputs


# ---- the reflector ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("carries", [False, True])
def test_a_reflector_writes_what_it_writes_at_play(
    pair: Callable[..., tuple[LanguageModel, LanguageModel]], history: bool, carries: bool
) -> None:
    policy_lm, reflector_lm = pair("qwen2")
    make_env = partial(make, {"name": "corridor", "train": 4, "history": history, "impossible": "hidden"})
    tasks = make_env().tasks("train")
    jobs = [Job(tasks[i % len(tasks)], i) for i in range(6)]
    policy, speaking = Policy(policy_lm), Reflector(reflector_lm, 6, carries=carries)
    played = sorted(rollout(jobs, make_env, policy, speaking), key=lambda episode: episode.seed)
    at_play = [step.reflection for episode in played for step in episode.steps]
    assert len(set(at_play)) > 1 and len({len(episode.steps) for episode in played}) > 1
    again = Reflector(reflector_lm, 6, carries=carries)
    assert reflector_texts(again, list(without_reflections(played))) == at_play


def test_equal_states_are_written_about_once(pair: Callable[..., tuple[LanguageModel, LanguageModel]]) -> None:
    _, reflector_lm = pair("llama")
    episodes = [walk("red", "left", "right"), walk("red", "left", "left"), walk("blue", "right")]
    reflector = Reflector(reflector_lm, 6)
    texts = reflector_texts(reflector, episodes)
    assert texts[:2] == texts[2:4] and len(texts) == 5
    assert (reflector.lookups, reflector.hits) == (5, 2)  # two states of the red rooms are met twice
    assert reflector_texts(reflector, episodes) == texts and reflector.hits == 7


@pytest.mark.parametrize("more", [(), ("model.lora_rank=2", "hindsight.teacher=initial")])
def test_a_pair_is_distilled_by_its_own_reflector(tmp_path: Path, like: Like, more: tuple[str, ...]) -> None:
    arms = "hindsight,hindsight-only,no-hindsight"
    settings = ("hindsight.text=reflector", "hindsight.gate=all", "rl.updates=2", "env.test=2", "eval.sampling=greedy")
    recipe, folder = like(f"arms={arms}", *settings, *more), tmp_path / "run"
    pair = ("sft policy (seed 0)", "sft reflector (seed 0)")
    assert needed(recipe, "hindsight") == needed(recipe, "hindsight-only") == pair
    assert needed(recipe, "no-hindsight") == pair[:1]
    pipeline.run(recipe, folder)
    for arm in ("hindsight", "hindsight-only"):
        lines = [json.loads(line) for line in (folder / f"metrics/seed0-{arm}.jsonl").read_text().splitlines()]
        assert lines[0]["hindsight_share"] == 1 and lines[0]["auxiliary_loss"] > 0
        assert reflectrl.load_agent(folder, arm).reflector is None  # nothing is written at play
    require_made_alone(recipe, folder, of_methods(recipe), tmp_path / "alone")


def test_a_killed_distillation_ends_with_the_same_weights(tmp_path: Path, like: Like, resumed: Resumed) -> None:
    settings = ("hindsight.text=reflector", "hindsight.gate=all", "rl.updates=3", "env.test=2", "eval.sampling=greedy")
    recipe, folder = like("arms=hindsight", *settings), tmp_path / "run"
    pipeline.run(recipe, folder, "eval")
    copy = resumed(folder, recipe, "hindsight", 2)
    weights = Path("checkpoints", "seed0", "hindsight", "model.safetensors")
    assert same_weights(folder / weights, copy / weights)


@pytest.mark.parametrize("text", ["analyst", "continuations", "outcome", "observation"])
def test_other_texts_need_no_reflector_and_keep_their_inputs(like: Like, text: str) -> None:
    recipe = like("arms=hindsight", f"hindsight.text={text}", "endpoint.model=other")
    [artifact] = of_methods(recipe).values()
    assert artifact.inputs == ("sft policy (seed 0)",)
    assert artifact.settings == ("env", "model", "play", "rl", "hindsight")
    assert not [key for key in planned(recipe) if "reflector" in key]


@pytest.mark.parametrize("text", ["reflector", "endpoint"])
def test_texts_of_a_model_need_a_writer(text: Any) -> None:
    with pytest.raises(ValueError, match=f"text '{text}' needs a writer"):
        HindsightTexts(Rooms, HindsightConfig(text=text), seed=0)


# ---- a model behind an endpoint --------------------------------------------------------------------------------------


def walk(colour: str, *actions: str) -> Episode:
    """Return the episode of the rooms in which these actions are taken."""
    env = Rooms()
    task = Task(f"full-{colour}", "rooms", {"colour": colour}, "train", "full")
    env.reset(options={"task": task})
    steps, success = [], False
    for name in actions:
        seen = env.observe()
        action = seen.actions.index(name)
        _, reward, _, _, info = env.step(action)
        steps.append(Step(seen, (Choice("policy", name, choice=action),), action, float(reward)))
        success = info["success"]
    return Episode(task, tuple(steps), success, False, 0)


def words_of(request: dict[str, Any]) -> str:
    """Return the question of a request."""
    return str(request["messages"][-1]["content"])


@pytest.fixture
def server() -> Iterator[ChatServer]:
    pytest.importorskip("openai")
    with serving() as server:
        yield server


def test_a_question_tells_what_followed() -> None:
    first, last = (ask.messages for ask in endpoint_asks([walk("red", "left", "right")], TeacherConfig()))
    assert [message["role"] for message in first] == ["system", "user"]
    assert first[1]["content"].startswith(
        "A red room, number 0.\n\nLegal actions:\n- right\n- left\n- wait\n"
        'For you alone: the small model chose "left" here. Then it saw:\n'
        "A red room, number 1.\nThe episode was lost 2 steps later.\nLooking back, "
    )
    assert 'chose "right" here. The episode was lost 1 step later.\nLooking back, ' in last[1]["content"]
    won = endpoint_asks([walk("red", "left", "left")], TeacherConfig())
    assert "The episode was won 1 step later." in won[1].messages[1]["content"]
    cut = endpoint_asks([replace(walk("red", "left"), truncated=True)], TeacherConfig(max_tokens=50))
    assert "The episode was cut off 1 step later." in cut[0].messages[1]["content"]
    assert (cut[0].max_tokens, cut[0].temperature) == (50, 0.0)


def test_what_followed_is_the_new_part_of_the_history_and_the_next_state() -> None:
    seen = [Observation("Day 1.\n", "A hall.\n", ("go",)), Observation("Day 1.\n> go\nDay 2.\n", "A yard.\n", ("go",))]
    steps = tuple(Step(observation, (), 0, 0.0) for observation in seen)
    first, _ = endpoint_asks([Episode(Task("t", "t"), steps, False, False, 0)], TeacherConfig())
    asked = first.messages[1]["content"]
    assert asked.startswith("Day 1.\nA hall.\n") and "Then it saw:\n> go\nDay 2.\nA yard.\nThe episode" in asked


def test_answers_become_texts_of_one_line_within_the_limits(
    server: ChatServer, pair: Callable[..., tuple[LanguageModel, LanguageModel]]
) -> None:
    policy = Policy(pair("llama")[0])
    endpoint, config = Endpoint(EndpointConfig(server.url, "m", retries=0)), TeacherConfig(longest=30)
    episodes = [walk("red", "left", "right"), walk("red", "left", "right"), walk("blue", "right")]
    answers = {
        "A red room, number 0": "Reflection: This is\nthe first room.",
        "A red room, number 1": "<think>Hm.</think>",
        "A blue room, number 0": "Go left and left, and never right, whatever there is.",
    }

    def reply(request: dict[str, Any]) -> str:
        return next(answer for state, answer in answers.items() if words_of(request).startswith(state))

    server.reply = reply
    texts = endpoint_texts(endpoint, config, policy, episodes)
    assert texts == ["This is the first room.", None] * 2 + ["Go left and left, and never ri"]
    assert len(server.requests) == 3 and server.requests[0]["max_tokens"] == 300
    # A text that the context cannot hold beside the state is cut further.
    narrow = Policy(replace(policy.lm, context=len(policy.prompt(episodes[2].steps[0].observation, "")) + 14))
    [short] = endpoint_texts(endpoint, config, narrow, episodes[2:])
    assert short and texts[4] is not None and texts[4].startswith(short) and len(short) < 30


def test_the_teacher_reads_the_answers(server: ChatServer, tiny: Callable[..., LanguageModel]) -> None:
    server.reply = lambda request: "Reflection: go left." if "number 0" in words_of(request)[:25] else ""
    policy = Policy(tiny())
    writer = partial(endpoint_texts, Endpoint(EndpointConfig(server.url, "m")), TeacherConfig(), policy)
    texts = HindsightTexts(Rooms, HindsightConfig(text="endpoint", gate="all"), seed=1, writer=writer)
    rollouts = hindsight_rollouts(policy, Rooms, RLConfig(**{**PLAIN, "episodes": 12}), texts)
    batch = rollouts.collect(0, None)
    steps = [step for episode in rollouts.latest.learned for step in episode.steps]
    answers = texts.texts(rollouts.policy, rollouts.latest.learned)
    assert set(answers) == {"go left.", None}
    teacher_NA, gates_N, _ = texts.taught(rollouts, batch, answers)
    assert gates_N.tolist() == [float(answer is not None) for answer in answers]  # an empty answer teaches nothing
    for step, answer, teacher_A in zip(steps, answers, teacher_NA, strict=True):
        seen = step.observation
        with torch.no_grad():
            logits_A = policy.logits([policy.prompt(seen, answer)], [seen.actions])[0][0, : len(seen.actions)]
        torch.testing.assert_close(teacher_A[: len(seen.actions)], logits_A.log_softmax(-1))


RECIPE = """
arms = ["hindsight"]
env = {name = "corridor", train = 4, validation = 2, test = 2, horizon = 5}
model = {layers = 1, width = 16, heads = 2, mixed_precision = "off"}
teach = {negatives = 1, noise = [0.0]}
sft = {steps = 4, batch_size = 8, eval_every = 2, eval_rows = 8}
rl = {updates = 4, episodes = 4, eval_every = 2, eval_episodes = 2, temperature = 2.0}
eval = {splits = ["test"]}
hindsight = {text = "endpoint", gate = "all"}
endpoint = {base_url = "URL", model = "m", retries = 0, concurrency = 2}
"""


def command(folder: Path, url: str, *more: str) -> list[str]:
    path = folder / "r.toml"
    path.write_text(RECIPE.replace("URL", url), encoding="utf-8")
    return ["run", str(path), "--folder", str(folder / "run"), *more]


def said(request: dict[str, Any]) -> str:
    """Return a text that depends on the question."""
    return f"Reflection: number {sum(map(ord, words_of(request))) % 97}."


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "run" / "checkpoints" / "seed0" / "hindsight" / "model.safetensors")


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "run" / "metrics" / "seed0-hindsight.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return the folder of a finished run, and the questions that it asked."""
    pytest.importorskip("openai")
    folder = tmp_path_factory.mktemp("undisturbed")
    with serving() as server:
        server.reply = said
        assert main(command(folder, server.url, "--trust")) == 0
        return folder, [words_of(request) for request in server.requests]


def test_a_run_asks_about_each_step_once_and_nothing_at_play(undisturbed: tuple[Path, list[str]]) -> None:
    folder, asked = undisturbed
    assert 4 < len(asked) == len(set(asked)) <= 4 * 4 * 5
    assert all("For you alone: the small model chose" in question for question in asked)
    assert [line["hindsight_share"] for line in metrics(folder)[:4]] == [1.0] * 4
    assert metrics(folder)[0]["auxiliary_loss"] > 0
    journal = (folder / "run" / "endpoints" / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    assert sum("answer" in json.loads(line) for line in journal) == len(asked)
    assert reflectrl.load_agent(folder / "run", "hindsight").reflector is None  # needs no trust: it asks nobody
    export = ["export-agent", str(folder / "run"), "--arm", "hindsight", "--out", str(folder / "agent"), "--trust"]
    assert main(export) == 0
    assert reflectrl.load_agent(folder / "agent", "hindsight").reflector is None


def test_after_a_spent_budget_and_the_servers_death_it_ends_as_if_nothing_had_been(
    undisturbed: tuple[Path, list[str]], tmp_path: Path, capsys: Any
) -> None:
    whole, all_asked = undisturbed

    def run(url: str, *more: str) -> int:
        trust = ["--trust"] if more else []  # the first time only: the run remembers it
        return main(command(tmp_path, url, *trust, *more))

    asked = [words_of(request) for request in interrupted(run, said, len(all_asked), capsys)]
    assert len(set(asked)) == len(asked) and set(asked) == set(all_asked)
    one, other = weights(tmp_path), weights(whole)
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items()) and metrics(tmp_path) == metrics(whole)


def test_the_largest_number_of_requests_is_printed_before_the_first(
    server: ChatServer, tmp_path: Path, capsys: Any
) -> None:
    server.reply = said
    assert main(command(tmp_path, server.url, "--trust", "--endpoint.max_requests", "1")) == 2
    assert f"texts in hindsight by {server.url}: at most 80 requests" in capsys.readouterr().out


def test_a_file_from_elsewhere_asks_nobody(server: ChatServer, tmp_path: Path, capsys: Any) -> None:
    assert main(command(tmp_path, server.url)) == 2
    error = capsys.readouterr().err
    assert server.url in error and "--trust" in error and error.count("\n") == 1 and not server.requests


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (["--endpoint.base_url", ""], "endpoint.base_url is missing; name the server and its model"),
        (["--endpoint.model", ""], "endpoint.model is missing; name the server and its model"),
        (["--hindsight.text", "endpoints"], "hindsight.text"),
        (["--rl.reverse", "0.5"], "arm 'hindsight' plays whole episodes again"),
    ],
)
def test_what_does_not_go_together_is_one_line(tmp_path: Path, capsys: Any, settings: list[str], error: str) -> None:
    assert main(command(tmp_path, "http://127.0.0.1:9/v1", "--trust", *settings)) == 2
    printed = capsys.readouterr().err
    assert error in printed and printed.count("\n") == 1 and not (tmp_path / "run").exists()


def test_another_model_or_length_is_another_training(like: Like) -> None:
    recipe = like("arms=hindsight", "hindsight.text=endpoint", "endpoint.model=m", "endpoint.base_url=http://127.0.0.1")
    [artifact] = of_methods(recipe).values()
    assert artifact.inputs == ("sft policy (seed 0)",)
    assert {"endpoint.model", "endpoint.base_url", "endpoint.local", "teacher.longest"} <= set(artifact.settings)
    assert not {"endpoint.key_env", "endpoint.retries", "endpoint.max_cost"} & set(artifact.settings)
