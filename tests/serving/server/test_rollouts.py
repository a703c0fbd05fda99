"""Online RL whose rollouts a real server plays: the same episodes, measured lag, and what may go wrong."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from benchmarks.forks import Fork
from reflectrl import runs as pipeline
from reflectrl.core.config import RLConfig, from_dict, load_recipe
from reflectrl.core.config.recipe import Recipe
from reflectrl.core.envs import make
from reflectrl.core.types import Episode, UserError
from reflectrl.learn.online import train_online
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.runs.folder import RunFolder
from reflectrl.runs.players import load_models, make_policy, make_reflector
from reflectrl.serving.remote.config import RolloutsConfig
from reflectrl.serving.remote.rollouts import ServedRollouts
from tests.forked import forks
from tests.serving.server.served import Change, Running, root, running, stingy

__all__ = ["root", "running"]

SETTINGS: dict[str, Any] = {
    "name": "tiny",
    "arms": ["reflect-rl"],
    "env": {"name": "corridor", "train": 6, "validation": 3, "test": 3},
    "model": {"layers": 1, "width": 16, "heads": 2, "mixed_precision": "off", "context": 128},
    "play": {"reflection_tokens": 8},
    "teach": {"negatives": 1, "tasks": 5},
    "sft": {"steps": 5, "batch_size": 8, "eval_every": 5, "eval_rows": 8},
    "rl": {
        "algorithm": "ppo", "updates": 4, "episodes": 6, "eval_every": 4, "eval_episodes": 2, "update_epochs": 2,
        "lr": 3e-3, "temperature": 2.0, "replay_episodes": 2, "curriculum": "none",
    },
    "eval": {"sampling": ["greedy"], "splits": ["test"]},
}  # fmt: skip


def recipe_of(**changes: Any) -> Recipe:
    """The recipe with some keys of its sections changed."""
    merged = {key: {**value, **changes.get(key, {})} if isinstance(value, dict) else value for key, value in
              {**SETTINGS, "rollouts": {}}.items()}  # fmt: skip
    return from_dict(Recipe, merged, "tiny")


def fine_tuned(root: Path, rank: int) -> tuple[Recipe, RunFolder]:
    recipe, folder = recipe_of(model={"lora_rank": rank}), root / f"pair{rank}"
    pipeline.run(recipe, folder, "sft")
    return recipe, RunFolder(folder)


@pytest.fixture(scope="session")
def pair(root: Path) -> tuple[Recipe, RunFolder]:
    """A pair of models that is fine-tuned."""
    return fine_tuned(root, 0)


@pytest.fixture(scope="session")
def adapters(root: Path) -> tuple[Recipe, RunFolder]:
    """The same as two adapters of one model."""
    return fine_tuned(root, 4)


@pytest.fixture(params=["pair", "adapters"])
def either(request: pytest.FixtureRequest) -> tuple[Recipe, RunFolder]:
    found: tuple[Recipe, RunFolder] = request.getfixturevalue(request.param)
    return found


Played = tuple[list[list[tuple[Any, ...]]], list[dict[str, Any]], dict[str, Any]]


def learned(pair: tuple[Recipe, RunFolder], settings: RolloutsConfig | None = None, **rl: Any) -> Played:
    """Train the pair's policy; returns what was played in each update, the metrics, and the weights."""
    recipe, run = pair
    config: RLConfig = replace(recipe.rl, **rl)
    policy_lm, reflector_lm = load_models(recipe, run.path, 0, "reflect-rl", before_rl=True)
    assert policy_lm is not None and reflector_lm is not None
    given = (make_policy(recipe, policy_lm), make_reflector(recipe, reflector_lm), partial(make, recipe.env), config, 0)
    rollouts = EpisodeRollouts(*given) if settings is None else ServedRollouts(settings, run.path / "served", *given)
    played, metrics = [], []

    def log(line: dict[str, Any]) -> None:
        metrics.append(line)
        if line["step"] < config.updates:
            played.append([told(episode) for episode in rollouts.latest.played])

    train_online(rollouts, config, 0, log)
    return played, metrics, policy_lm.weights()


def told(episode: Episode) -> tuple[Any, ...]:
    """What makes an episode the same as another."""
    turns = tuple(turn.text for step in episode.steps for turn in step.turns)
    return episode.task.id, episode.seed, tuple(step.action for step in episode.steps), turns


def test_without_lag_a_server_plays_the_very_episodes_that_are_played_here(
    either: tuple[Recipe, RunFolder], running: Running
) -> None:
    there_before = running.models()
    here, alone, own = learned(either)
    there, metrics, weights = learned(either, RolloutsConfig((running.url,)))
    assert here == there
    assert sum(len(update) for update in there) == 4 * 6
    for name, tensor in own.items():
        assert weights[name] == pytest.approx(tensor, abs=1e-4)
    for before, line in zip(alone[:-1], metrics[:-1], strict=True):
        assert line["success"] == before["success"] and line["steps"] == before["steps"]
        assert (line["lag"], line["lag_max"], line["labels_missing"], line["ratio_clipped"]) == (0, 0, 0, 0)
        assert line["ratio_mean"] == pytest.approx(1, abs=1e-4) and line["requests_per_second"] > 0
    assert set(running.models()) <= set(there_before), "what the training loaded is dropped in the end"
    assert not (either[1].path / "served").exists()


def test_with_lag_it_is_measured_and_the_ratio_leaves_one(either: tuple[Recipe, RunFolder], running: Running) -> None:
    here, _, _ = learned(either)
    there, metrics, _ = learned(either, RolloutsConfig((running.url,), every=2))
    assert [line.get("lag") for line in metrics] == [0, 1, 0, 1, None]
    assert here[0] == there[0]
    assert metrics[1]["ratio_max"] > 1.001 > 1.0001 > metrics[2]["ratio_max"], metrics


def test_two_addresses_share_the_work(pair: tuple[Recipe, RunFolder], running: Running, root: Path) -> None:
    other = Running(root)
    try:
        there = learned(pair, RolloutsConfig((running.url, other.url), prompts=2), updates=1)[0]
        assert there == learned(pair, updates=1)[0]
        assert other.models() == []
    finally:
        other.kill()


def test_reflections_drawn_at_random_are_the_same_again(root: Path, running: Running) -> None:
    recipe, folder = recipe_of(play={"reflection_temperature": 1.0}), root / "drawn"
    pipeline.run(recipe, folder, "sft")
    first, again = (learned((recipe, RunFolder(folder)), RolloutsConfig((running.url,)), updates=1) for _ in range(2))
    assert first[0] == again[0]
    texts = {text for episode in first[0][0] for text in episode[3]}
    assert len(texts) > 6


def test_where_one_token_is_left_a_server_draws_what_is_drawn_here(
    pair: tuple[Recipe, RunFolder], running: Running
) -> None:
    only = recipe_of(play={"reflection_temperature": 1.0, "top_k": 1}), pair[1]
    assert learned(only, RolloutsConfig((running.url,)), updates=1)[0] == learned(only, updates=1)[0]


# ---- servers that answer otherwise -----------------------------------------------------------------------------------


OURS = ("allowed_token_ids", "logprob_token_ids", "return_tokens_as_token_ids", "stop_token_ids")
"""What vLLM and our server know, and the standard does not."""


def test_a_server_that_only_knows_the_standard_serves_as_well(pair: tuple[Recipe, RunFolder], running: Running) -> None:
    with stingy(running, without=OURS) as url:
        there, metrics, _ = learned(pair, RolloutsConfig((url,), logprobs=1000), updates=2)
    assert there == learned(pair, updates=2)[0]
    assert metrics[0]["labels_missing"] == 0


def only_two(choice: dict[str, Any]) -> None:
    """The two likeliest of all that was asked for."""
    top = choice["logprobs"]["top_logprobs"]
    choice["logprobs"]["top_logprobs"] = [dict(sorted(one.items(), key=lambda pair: -pair[1])[:2]) for one in top]


def unlike(choice: dict[str, Any]) -> None:
    """Another model's numbers."""
    for top in choice["logprobs"]["top_logprobs"]:
        for place, name in enumerate(top):
            top[name] -= 3.0 * place


def silent(choice: dict[str, Any]) -> None:
    choice["logprobs"] = None


def strange(choice: dict[str, Any]) -> None:
    choice["logprobs"]["top_logprobs"] = [{"token_id:0": -0.1}]


def broken(choice: dict[str, Any]) -> None:
    choice["logprobs"]["top_logprobs"] = [dict.fromkeys(top, "much") for top in choice["logprobs"]["top_logprobs"]]


def misnumbered(choice: dict[str, Any]) -> None:
    choice["index"] = 7


@pytest.mark.parametrize(
    ("change", "reflector", "message"),
    [
        (silent, False, "returned no log-probabilities"),
        (silent, True, "returned texts without log-probabilities"),
        (strange, False, "no log-probability of any label"),
        (unlike, False, "a model that differs from this run's"),
        (broken, False, "log-probabilities that are not numbers"),
        (misnumbered, False, "the answer is not 3 completions"),
    ],
)
def test_an_answer_that_cannot_be_used_ends_the_training_with_one_line(
    pair: tuple[Recipe, RunFolder], running: Running, change: Change, reflector: bool, message: str
) -> None:
    with stingy(running, change) as url, pytest.raises(UserError) as found:
        learned(pair, RolloutsConfig((url,), reflector=reflector))
    assert re.search(message, str(found.value)) and "\n" not in str(found.value)
    assert "http://127.0.0.1" in str(found.value) or "rollouts.servers" in str(found.value)


def test_labels_that_are_not_returned_are_counted_and_never_chosen(
    pair: tuple[Recipe, RunFolder], running: Running
) -> None:
    with stingy(running, only_two) as url:
        played, metrics, _ = learned(pair, RolloutsConfig((url,), tolerance=100.0, reflector=False), updates=2)
    assert all(0 < line["labels_missing"] < 1 for line in metrics[:-1])
    assert all(line["ratio_mean"] < 1 for line in metrics[:1]), "the learner knows the labels that were left out"
    assert played[0]


# ---- a server that dies ----------------------------------------------------------------------------------------------

RECIPE = """
name = "tiny"
arms = ["reflect-rl"]
env = {name = "corridor", train = 6, validation = 3, test = 3}
model = {layers = 1, width = 16, heads = 2, mixed_precision = "off", context = 128}
play.reflection_tokens = 8
teach = {negatives = 1, tasks = 5}
sft = {steps = 5, batch_size = 8, eval_every = 5, eval_rows = 8}
rl = {algorithm = "ppo", updates = 8, episodes = 6, eval_every = 2, eval_episodes = 2, curriculum = "none"}
eval = {sampling = ["greedy"], splits = ["test"]}
rollouts = {servers = ["URL"], every = 2, retries = 1}
"""
"""State is saved at every second update."""


TRAINED = "checkpoints/seed0/rl-reflect-rl/model.safetensors"


@pytest.fixture(scope="session")
def undisturbed(root: Path, running: Running) -> Path:
    """A run of that recipe."""
    pipeline.run(load_recipe(written(root / "undisturbed", running.url), trust=True), root / "undisturbed")
    return root / "undisturbed"


def written(folder: Path, url: str) -> Path:
    """The recipe of a run, as a file."""
    recipe = folder.with_suffix(".toml")
    recipe.write_text(RECIPE.replace("URL", url), encoding="utf-8")
    return recipe


def begin(recipe: Path, folder: Path, **env: str) -> Fork:
    """The command of a run, in a process of its own."""
    words = ["-m", "reflectrl", "run", str(recipe), "--trust", "--folder", str(folder)]
    return forks().start(words, env=os.environ | env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_server_that_dies_ends_the_run_with_one_line_and_the_same_command_goes_on(
    root: Path, undisturbed: Path
) -> None:
    server = Running(root)
    url, port = server.url, server.port
    recipe = written(root / "tiny", url)
    disturbed, metrics = begin(recipe, root / "disturbed"), root / "disturbed/metrics/seed0-rl-reflect-rl.jsonl"
    deadline = time.monotonic() + 400
    while not metrics.is_file() or metrics.read_text(encoding="utf-8").count("\n") < 4:
        assert time.monotonic() < deadline and disturbed.poll() is None
        time.sleep(0.01)
    server.kill()
    [line] = disturbed.communicate(timeout=400)[1].strip().splitlines()
    assert disturbed.returncode == 2 and f"server {url}: cannot connect" in line
    server = Running(root, port)
    try:
        again = begin(recipe, root / "disturbed")
        assert again.communicate(timeout=400)[1] == "" and again.returncode == 0
        assert server.models() == []
    finally:
        server.kill()
    assert (root / "disturbed" / TRAINED).read_bytes() == (undisturbed / TRAINED).read_bytes()
    lags = [json.loads(text.partition("}")[0] + "}").get("lag") for text in metrics.read_text().splitlines()]
    assert lags == [0, 1, 0, 1, 0, 1, 0, 1, None]


def test_two_ranks_ask_a_server_for_what_one_asks(root: Path, running: Running, undisturbed: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    recipe = written(root / "ranks", running.url)
    ranks = [begin(recipe, root / "ranks", RANK=rank, LOCAL_RANK=rank, **shared) for rank in "01"]
    assert [(rank.communicate(timeout=400)[1], rank.returncode) for rank in ranks] == [("", 0), ("", 0)]
    one, two = (load_file(folder / TRAINED) for folder in (undisturbed, root / "ranks"))
    for name, tensor in one.items():
        assert two[name] == pytest.approx(tensor, abs=1e-4)


# ---- the server itself -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def loaded(pair: tuple[Recipe, RunFolder], running: Running) -> str:
    """The name of a policy that the server has."""
    name = f"policy-of-{pair[1].path.name}"
    assert (
        running.ask("/load_lora_adapter", {"lora_name": name, "lora_path": str(pair[1].checkpoint(0, "policy"))})[0]
        == 200
    )
    return name


def test_one_token_is_scored_among_those_that_are_allowed(loaded: str, running: Running) -> None:
    body = {"model": loaded, "prompt": [[5, 6, 7], [8, 9]], "max_tokens": 1, "temperature": 0, "logprobs": 5}
    status, answer = running.ask(
        "/completions", {**body, "allowed_token_ids": [3, 11], "return_tokens_as_token_ids": True}
    )
    assert status == 200 and [choice["index"] for choice in answer["choices"]] == [0, 1]
    for choice in answer["choices"]:
        [top] = choice["logprobs"]["top_logprobs"]
        assert set(top) == {"token_id:3", "token_id:11"}
        assert sum(2.718281828459045**value for value in top.values()) == pytest.approx(1)
        assert choice["logprobs"]["tokens"] == [max(top, key=top.__getitem__)]
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


def test_texts_are_drawn_again_with_the_same_seed_and_keep_to_what_is_allowed(loaded: str, running: Running) -> None:
    body = {
        "model": loaded,
        "prompt": "You are at",
        "max_tokens": 12,
        "logprobs": 1,
        "return_tokens_as_token_ids": True,
    }
    first, again, other = (running.ask("/completions", {**body, "seed": seed})[1]["choices"][0] for seed in (1, 1, 2))
    assert first["logprobs"]["tokens"] == again["logprobs"]["tokens"] != other["logprobs"]["tokens"]
    assert len(first["logprobs"]["tokens"]) == len(first["logprobs"]["token_logprobs"]) <= 12
    few = running.ask("/completions", {**body, "allowed_token_ids": [20, 21]})[1]["choices"][0]
    assert set(few["logprobs"]["tokens"]) <= {"token_id:20", "token_id:21"} and few["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("path", "change", "status", "message"),
    [
        ("/completions", {"model": "other"}, 404, "the model 'other' is not loaded"),
        ("/completions", {"prompt": []}, 400, "prompt"),
        ("/completions", {"prompt": [10**6]}, 400, "token ids must be below"),
        ("/completions", {"allowed_token_ids": [10**6]}, 400, "token ids must be below"),
        ("/completions", {"max_tokens": 500}, 400, "do not fit the context of 128"),
        ("/completions", {"echo": True}, 400, "echo"),
        ("/completions", {"guided_choice": ["1"]}, 400, "guided_choice"),
        ("/completions", b"nothing", 400, "JSON"),
        ("/completions", {"prompt": "a" * 100_000}, 400, "does not fit the context of 128"),
        ("/completions", b"[" * 200_000, 400, "recursion limit"),
        ("/load_lora_adapter", {"lora_name": "new", "lora_path": "/etc"}, 400, "weights are loaded from below"),
        ("/load_lora_adapter", {"lora_name": "new", "lora_path": "a\0b"}, 400, "not a path"),
        ("/load_lora_adapter", {"lora_name": "new", "lora_path": "a" * 999}, 400, "not a path"),
        ("/unload_lora_adapter", {"lora_name": "other"}, 404, "not loaded"),
        ("/chat/completions", {}, 404, "Not Found"),
    ],
)
def test_a_wrong_request_is_refused_with_its_reason(
    loaded: str, running: Running, path: str, change: Any, status: int, message: str
) -> None:
    whole = {"model": loaded, "prompt": [5, 6], "max_tokens": 1}
    found = running.ask(path, whole | change if path == "/completions" and isinstance(change, dict) else change)
    assert found[0] == status and message in found[1]["error"]["message"]
    assert loaded in running.models()


def test_what_is_not_below_the_folder_is_not_loaded_whatever_its_path_says(
    loaded: str, running: Running, root: Path, tmp_path: Path
) -> None:
    shutil.copytree(root / "pair0/checkpoints/seed0/policy", tmp_path / "outside")
    (root / "link").symlink_to(tmp_path / "outside")
    for path in (root / "link", root / ".." / ".." / tmp_path.relative_to(root.parents[1]) / "outside"):
        status, answer = running.ask("/load_lora_adapter", {"lora_name": "new", "lora_path": str(path)})
        assert status == 400 and "from below" in answer["error"]["message"]
    (root / "link").unlink()
    assert "new" not in running.models()


def test_weights_that_are_links_out_of_the_folder_are_not_loaded(
    running: Running, pair: tuple[Recipe, RunFolder], root: Path, tmp_path: Path
) -> None:
    """A single file of a folder, in the folder itself or in one within it. A link that stays inside is followed."""
    weights = pair[1].checkpoint(0, "policy")
    shutil.copytree(weights, tmp_path / "outside")
    (tmp_path / "outside/further").mkdir()
    for number, (name, target, status) in enumerate(
        [
            ("model.safetensors", tmp_path / "outside/model.safetensors", 400),
            ("config.json", tmp_path / "outside/config.json", 400),
            ("further", tmp_path / "outside/further", 400),
            ("within/tokenizer.json", tmp_path / "outside/tokenizer.json", 400),
            ("model.safetensors", (weights / "model.safetensors").resolve(), 200),
        ]
    ):
        folder = root / f"linked{number}"
        shutil.copytree(weights, folder)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)
        body = {"lora_name": f"linked{number}", "lora_path": str(folder)}
        found, answer = running.ask("/load_lora_adapter", body)
        assert found == status and (status == 200 or f"{name} is a link; " in answer["error"]["message"]), answer
    assert running.ask("/unload_lora_adapter", {"lora_name": "linked4"})[0] == 200


def test_weights_that_cannot_be_loaded_are_said_to_be_that(running: Running, root: Path) -> None:
    (root / "empty").mkdir()
    status, answer = running.ask("/load_lora_adapter", {"lora_name": "none", "lora_path": str(root / "empty")})
    error = answer["error"]
    assert (status, error["code"], error["param"]) == (400, "not_loadable", "lora_path") and "empty" in error["message"]


def test_a_request_with_many_prompts_lets_others_have_the_model(loaded: str, running: Running) -> None:
    many = {"model": loaded, "prompt": [[5, 6, 7, i % 50] for i in range(50_000)], "max_tokens": 100}
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps(many), {"Content-Type": "application/json"})
    time.sleep(1)
    small = {"model": loaded, "prompt": [5, 6], "max_tokens": 1}
    assert [running.ask("/completions", small)[0] for _ in range(2)] == [200, 200]
    connection.sock.setblocking(False)
    with pytest.raises(BlockingIOError):  # the first is not answered yet
        connection.sock.recv(1)
    connection.close()


def test_names_are_used_once_and_dropping_one_leaves_the_others(
    either: tuple[Recipe, RunFolder], running: Running
) -> None:
    where = str(either[1].checkpoint(0, "policy"))
    first, second = ({"lora_name": f"{number}-of-{either[1].path.name}", "lora_path": where} for number in "12")
    assert running.ask("/load_lora_adapter", first)[0] == 200
    status, answer = running.ask("/load_lora_adapter", first)
    assert status == 400 and "already been loaded" in answer["error"]["message"]
    assert running.ask("/load_lora_adapter", second)[0] == 200
    assert running.ask("/unload_lora_adapter", {"lora_name": first["lora_name"]})[0] == 200
    body = {"prompt": [5, 6], "max_tokens": 1}
    assert running.ask("/completions", {**body, "model": second["lora_name"]})[0] == 200
    assert running.ask("/completions", {**body, "model": first["lora_name"]})[0] == 404


@pytest.mark.parametrize("tokens", [1, 4])
def test_the_smallest_temperature_takes_the_likeliest(loaded: str, running: Running, tokens: int) -> None:
    body = {"model": loaded, "prompt": [5, 6, 7], "max_tokens": tokens, "return_tokens_as_token_ids": True}
    coldest = {**body, "logprobs": 1, "temperature": 1e-320, "seed": 1}
    greedy = {**body, "logprobs": 1, "temperature": 0}
    found = [running.ask("/completions", asked) for asked in (coldest, greedy)]
    assert [status for status, _ in found] == [200, 200]
    (cold, likeliest) = (answer["choices"][0]["logprobs"]["tokens"] for _, answer in found)
    assert cold == likeliest


def test_any_name_will_do_for_an_adapter(adapters: tuple[Recipe, RunFolder], running: Running) -> None:
    """Also those that torch has for itself, and two that differ in a dot."""
    where = str(adapters[1].checkpoint(0, "policy"))
    for name in ("keys", "training", "a.b", "a-b", "../x", "ü"):
        loading = running.ask("/load_lora_adapter", {"lora_name": name, "lora_path": where})
        assert loading == (200, {"loaded": name})
    for name in ("keys", "training", "a.b", "../x", "ü"):
        assert running.ask("/unload_lora_adapter", {"lora_name": name})[0] == 200
    assert running.ask("/completions", {"model": "a-b", "prompt": [5, 6], "max_tokens": 1})[0] == 200
    assert running.ask("/unload_lora_adapter", {"lora_name": "a-b"})[0] == 200


@pytest.mark.parametrize("leaves", [False, True])
def test_what_nobody_waits_for_is_not_computed_to_its_end(
    root: Path, pair: tuple[Recipe, RunFolder], leaves: bool
) -> None:
    """Texts that take minutes, which the client or the server gives up; soon the next request has the model."""
    server = Running(root, 0, "--timeout", "60" if leaves else "4")
    try:
        where = str(pair[1].checkpoint(0, "policy"))
        while "p" not in server.models():  # the first request waits for torch to be imported
            server.ask("/load_lora_adapter", {"lora_name": "p", "lora_path": where})
        endless = {"model": "p", "prompt": [[5, 6, i % 50] for i in range(20_000)], "max_tokens": 120}
        if leaves:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            connection.request("POST", "/v1/completions", json.dumps(endless), {"Content-Type": "application/json"})
            time.sleep(1)
            connection.close()
        else:
            assert server.ask("/completions", endless)[0] == 503
        small = {"model": "p", "prompt": [5, 6], "max_tokens": 1}
        assert 200 in (server.ask("/completions", small)[0] for _ in range(4))
    finally:
        server.process.terminate()
        assert server.process.communicate(timeout=60) == ("stopped\n", "")


def test_a_token_is_asked_for_where_one_is_set(
    root: Path, pair: tuple[Recipe, RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_TOKEN", "a-long-secret")
    server = Running(root, 0, "--token-env", "SERVER_TOKEN")
    try:
        assert server.ask("/models")[0] == 401
        with pytest.raises(UserError, match="error 401 from /models"):
            learned(pair, RolloutsConfig((server.url,)), updates=1)
        assert learned(pair, RolloutsConfig((server.url,), key_env="SERVER_TOKEN"), updates=1)[0]
    finally:
        server.kill()
