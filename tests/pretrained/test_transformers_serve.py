"""A server of somebody else's, `transformers serve`, with a tiny model: as contestant and as reflector of a run."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from reflectrl import pipeline
from reflectrl.cli import main
from reflectrl.config import load_recipe
from reflectrl.episodes import read_episodes

RECIPE = """
name = "served"
arms = ["sft", "actor", "speaker"]
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


def test_a_contestant_and_a_reflector_behind_another_server(address: str, instruct: Path, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.replace("URL", address).replace("MODEL", str(instruct)), encoding="utf-8")
    pipeline.run(load_recipe(path), tmp_path / "run")
    rows = json.loads((tmp_path / "run/results.json").read_text(encoding="utf-8"))["rows"]
    assert {row["arm"]: row["episodes"] for row in rows} == {"sft": 2, "actor": 2, "speaker": 2}
    spoken = list(read_episodes(tmp_path / "run/episodes/eval-speaker-seed0-test-full-greedy.jsonl"))
    assert all(step.turns[0].player == "speaker" for episode in spoken for step in episode.steps)
    asked = [json.loads(line) for line in (tmp_path / "run/endpoints/journal.jsonl").read_text().splitlines()]
    assert sum("answer" in line for line in asked) >= 4  # a question per different state at least


def test_it_can_be_watched(address: str, instruct: Path, capsys: Any) -> None:
    url = f"{address}?model={instruct}&max_tokens=4"
    assert main(["play", "corridor", "--horizon", "3", "--player", url]) == 0
    assert "after" in capsys.readouterr().out
