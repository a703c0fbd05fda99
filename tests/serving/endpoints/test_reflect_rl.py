"""Online RL of our policy while a model behind an address writes its reflections."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from reflectrl.cli import main
from reflectrl.core.episodes import read_episodes
from tests.serving.endpoints.scripted import ChatServer, interrupted, serving

RECIPE = """
arms = ["speaker"]
env = {name = "corridor", train = 4, validation = 2, test = 2, horizon = 5}
model = {layers = 1, width = 16, heads = 2, mixed_precision = "off"}
teach = {negatives = 1, noise = [0.0]}
sft = {steps = 4, batch_size = 8, eval_every = 2, eval_rows = 8}
rl = {updates = 4, episodes = 4, eval_every = 2, eval_episodes = 2, replay_episodes = 2, temperature = 2.0}
eval = {splits = ["test"]}
endpoint = {base_url = "URL", model = "m", retries = 0, concurrency = 2}
players.speaker.style = "reflect-rl"
"""


def said(request: dict[str, Any]) -> str:
    """A reflection that depends on the state."""
    return f"Reflection: number {sum(map(ord, request['messages'][-1]['content'])) % 97}."


def words(folder: Path, url: str, *more: str) -> list[str]:
    path = folder / "r.toml"
    path.write_text(RECIPE.replace("URL", url), encoding="utf-8")
    return ["run", str(path), "--trust", "--folder", str(folder / "run"), *more]


def weights(folder: Path, name: str = "rl-speaker") -> dict[str, torch.Tensor]:
    return load_file(folder / "run" / "checkpoints" / "seed0" / name / "model.safetensors")


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == "rl"]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of a finished run, and the questions that it asked."""
    pytest.importorskip("openai")
    folder = tmp_path_factory.mktemp("undisturbed")
    with serving() as server:
        server.reply = said
        assert main(words(folder, server.url)) == 0
        return folder, [json.dumps(request["messages"]) for request in server.requests]


def test_the_policy_learns_with_reflections_that_are_asked_for_once_per_state(
    undisturbed: tuple[Path, list[str]],
) -> None:
    folder, asked = undisturbed
    assert len(set(asked)) == len(asked) > 4
    assert not same(weights(folder), weights(folder, "policy"))
    assert [line["step"] for line in metrics(folder)] == [0, 1, 2, 3, 4]
    played = list(read_episodes(folder / "run" / "episodes" / "eval-speaker-seed0-test-full-greedy.jsonl"))
    texts = [step.reflection for episode in played for step in episode.steps]
    assert texts and all(text is not None and text.startswith("number ") for text in texts)
    assert {episode.provenance["policy"] for episode in played} == {"rl-speaker"}
    # More steps were played than states were met, and each answer is in the journal.
    journal = (folder / "run" / "endpoints" / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    assert sum("answer" in json.loads(line) for line in journal) == len(asked) < metrics(folder)[-2]["env_steps"]


def test_after_a_spent_budget_and_the_servers_death_it_ends_as_if_nothing_had_been(
    undisturbed: tuple[Path, list[str]], tmp_path: Path, capsys: Any
) -> None:
    whole, all_asked = undisturbed

    def run(url: str, *more: str) -> int:
        return main(words(tmp_path, url, *more))

    requests = interrupted(run, said, len(all_asked), capsys)
    asked = [json.dumps(request["messages"]) for request in requests]
    assert len(set(asked)) == len(asked) and set(asked) == set(all_asked)
    assert same(weights(tmp_path), weights(whole)) and metrics(tmp_path) == metrics(whole)


def test_another_model_is_another_training(undisturbed: tuple[Path, list[str]], tmp_path: Path, capsys: Any) -> None:
    folder, _ = undisturbed
    recipe = folder / "run" / "recipe.toml"
    assert main(["run", str(recipe), "--trust", "--folder", str(folder / "run"), "--endpoint.model", "other"]) == 2
    assert "endpoint.model" in capsys.readouterr().err


def test_drawn_reflections_are_asked_for_at_every_step(server: ChatServer, tmp_path: Path) -> None:
    server.reply = said
    assert main([*words(tmp_path, server.url, "--play.reflection_temperature", "1.0"), "--rl.eval_episodes", "1"]) == 0
    assert {request["temperature"] for request in server.requests} == {1.0}
    assert len(server.requests) >= metrics(tmp_path)[-2]["env_steps"]
