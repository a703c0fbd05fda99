"""A teacher behind an address, for taxi: teach, SFT, RL and evaluation in one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reflectrl import make_env
from reflectrl import runs as pipeline
from reflectrl.core.config import load_recipe
from reflectrl.core.episodes import read_episodes
from tests.serving.endpoints.scripted import completion, serving

ENV = {"name": "taxi", "train": 6, "validation": 2, "test": 4}
RECIPE = """
name = "taxi-endpoint"
arms = ["sft", "reflect-rl"]
env = {name = "taxi", train = 6, validation = 2, test = 4}
model = {layers = 1, width = 16, heads = 2, mixed_precision = "off"}
play.reflection_tokens = 8
teach = {by = "endpoint", negatives = 1, noise = [0.0]}
sft = {steps = 4, batch_size = 8, eval_every = 2, eval_rows = 8}
rl = {updates = 2, episodes = 4, eval_every = 1, eval_episodes = 2, curriculum = "none", replay_episodes = 2}
eval = {splits = ["test"], stages = ["full"]}
endpoint = {base_url = "URL", model = "m", timeout = 20}
"""


def shortest_ways() -> dict[str, str]:
    """What the expert does in every state on its ways, by the text of the state."""
    known = {}
    for split in ("train", "validation", "test"):
        env = make_env(ENV)
        for task in env.tasks(split, "full"):
            env.reset(options={"task": task})
            done = False
            while not done:
                action, seen = env.teacher.expert_action(env), env.observe()
                known[seen.state] = seen.actions[action]
                done = any(env.step(action)[2:4])
    return known


def test_teach_sft_rl_and_eval_with_a_teacher_behind_an_address(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    known = shortest_ways()

    def reply(request: dict[str, Any]) -> bytes:
        asked = request["messages"][1]["content"]
        [action] = {action for state, action in known.items() if state.strip() in asked}
        return completion(f"Reflection: It is not far.\nAction: {action}", (50, 10))

    with serving() as server:
        server.reply = reply
        path = tmp_path / "recipe.toml"
        path.write_text(RECIPE.replace("URL", server.url), encoding="utf-8")
        pipeline.run(load_recipe(path, trust=True), tmp_path / "run")
    taught = list(read_episodes(tmp_path / "run/episodes/teach-seed0-train.jsonl"))
    assert len(taught) == 6 and all(episode.success for episode in taught)
    assert {step.reflection for episode in taught for step in episode.steps if step.label == "positive"} == {
        "It is not far."
    }
    rows = json.loads((tmp_path / "run/results.json").read_text(encoding="utf-8"))["rows"]
    assert {(row["arm"], row["episodes"]) for row in rows} == {("sft", 4), ("reflect-rl", 4)}
