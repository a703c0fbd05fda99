"""A server of somebody else's, `transformers serve`, with a tiny model: as contestant and as reflector of a run."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from reflectrl import runs as pipeline
from reflectrl.cli import main
from reflectrl.core.config import load_recipe
from reflectrl.core.episodes import read_episodes
from reflectrl.core.types import Episode
from reflectrl.serving.endpoints.client import Ask, Endpoint
from reflectrl.serving.endpoints.config import PlayerConfig
from reflectrl.serving.endpoints.local import LocalModel

RECIPE = """
name = "served"
arms = ["sft", "actor", "speaker", "here", "murmur"]
env = {name = "corridor", train = 2, validation = 1, test = 2, horizon = 4}
model = {layers = 1, width = 16, heads = 2, mixed_precision = "off"}
play.reflection_tokens = 8
teach = {negatives = 0, noise = [0.0]}
sft = {steps = 2, batch_size = 4, eval_every = 2, eval_rows = 4}
eval = {splits = ["test"], stages = ["full"]}
endpoint = {base_url = "URL", model = "MODEL", timeout = 60}

[players.actor]
max_tokens = 4
[players.speaker]
style = "reflector"
max_tokens = 4
[players.here]
local = "MODEL"
max_tokens = 4
[players.murmur]
local = "MODEL"
style = "reflector"
max_tokens = 4
"""


@pytest.fixture(scope="module")
def address(instruct: Path) -> Iterator[str]:
    for module in ("fastapi", "uvicorn", "openai", "transformers.cli.transformers"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["serve", str(instruct), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    command = [sys.executable, "-m", "transformers.cli.transformers", *words]
    process = subprocess.Popen(
        command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        end = time.monotonic() + 240
        while True:
            try:
                urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
                break
            except (URLError, ConnectionError, TimeoutError):
                assert process.poll() is None, process.stderr.read()[-2000:].decode() if process.stderr else ""
                assert time.monotonic() < end, "it does not answer"
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.communicate()


def words_of(played: Sequence[Episode]) -> list[str | None]:
    return [step.reflection for episode in played for step in episode.steps]


def test_a_contestant_and_a_reflector_behind_another_server(address: str, instruct: Path, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.replace("URL", address).replace("MODEL", str(instruct)), encoding="utf-8")
    pipeline.run(load_recipe(path, trust=True), tmp_path / "run")
    rows = json.loads((tmp_path / "run/results.json").read_text(encoding="utf-8"))["rows"]
    assert {row["arm"]: row["episodes"] for row in rows} == dict.fromkeys(
        ("sft", "actor", "speaker", "here", "murmur"), 2
    )
    played = {
        arm: list(read_episodes(tmp_path / f"run/episodes/eval-{arm}-seed0-test-full-greedy.jsonl"))
        for arm in ("actor", "here", "speaker", "murmur")
    }
    for there, here in (("actor", "here"), ("speaker", "murmur")):  # the same model, in its own server and in ours
        assert [[step.action for step in one.steps] for one in played[there]] == [
            [step.action for step in one.steps] for one in played[here]
        ]
    assert words_of(played["speaker"]) == words_of(played["murmur"])
    assert {one.provenance["endpoint"] for one in played["murmur"]} == {str(instruct)}
    asked = [json.loads(line) for line in (tmp_path / "run/endpoints/journal.jsonl").read_text().splitlines()]
    assert sum("answer" in line for line in asked) >= 4  # a question per different state at least


def test_the_same_model_says_the_same_in_its_own_server_and_in_ours(address: str, instruct: Path) -> None:
    asks = [
        Ask([{"role": "system", "content": "Rules."}, {"role": "user", "content": f"Room {n} of 5"}], 24)
        for n in (1, 2, 3, 2)
    ]
    there = Endpoint(PlayerConfig(base_url=address, model=str(instruct)))
    here = LocalModel(str(instruct), batch=2)
    said: list[int] = []
    answers = here.complete_all(asks, said.append)
    assert answers == [answer.strip() for answer in there.complete_all(asks)] and all(answers)
    assert answers[1] == answers[3]
    assert said == [3, 4] and here.complete_all(asks) == answers


def test_it_can_be_watched(address: str, instruct: Path, capsys: Any) -> None:
    url = f"{address}?model={instruct}&max_tokens=4"
    assert main(["play", "corridor", "--horizon", "3", "--player", url]) == 0
    assert "after" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('local = "no-such-folder"', "model 'no-such-folder' is neither a folder nor the name of a model"),
        ('local = "MODEL"\nbase_url = "http://127.0.0.1:1/v1"', "'local' and 'base_url' are two models"),
        ('local = "MODEL"\nmax_tokens = 4000', "its context has"),
        ('local = "BARE"', "has no chat template"),
    ],
)
def test_a_local_model_that_cannot_play(
    chat_model: Any, instruct: Path, tmp_path: Path, capsys: Any, table: str, said: str
) -> None:
    table = table.replace("MODEL", str(instruct)).replace("BARE", str(chat_model(None)) if "BARE" in table else "")
    begin = RECIPE[: RECIPE.index("endpoint =")].replace('"sft", "actor", "speaker", "here", "murmur"', '"here"')
    path = tmp_path / "recipe.toml"
    path.write_text(f"{begin}\n[players.here]\n{table}\n", encoding="utf-8")
    assert main(["run", str(path), "--trust", "--folder", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err
