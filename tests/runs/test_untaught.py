"""Environments that nobody can teach: reward alone trains the arms that need no teacher, the others are refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from reflectrl import runs as pipeline
from reflectrl.core.config import load_recipe
from reflectrl.core.envs.base import Outcome, TextEnv
from reflectrl.core.envs.teacher import Teacher
from reflectrl.core.episodes import read_episodes
from reflectrl.core.types import Task, UserError
from reflectrl.runs.graph import planned

RECIPE = """
name = "untaught"
arms = ["random", "rl-only"]
env.name = "{}:{}"
model = {{layers = 1, width = 16, heads = 2, mixed_precision = "off"}}
teach.negatives = 1
sft = {{steps = 3, batch_size = 4, eval_every = 3}}
rl = {{updates = 2, episodes = 4, eval_every = 1, eval_episodes = 2}}
"""


class Doors(TextEnv):
    """Open the door whose colour the note names."""

    colours = ("red", "green", "blue")

    def __init__(self) -> None:
        super().__init__(horizon=4)

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        first = {"train": 0, "validation": 6, "test": 9}[split]
        return [Task(f"doors-{i}", "doors", {"note": i}, split) for i in range(first, first + (6 if not first else 3))]

    def begin(self, task: Task) -> None:
        self.note = self.colours[task.payload["note"] % 3]

    def apply(self, action: str) -> Outcome:
        return Outcome(1.0, True, True) if action == self.note else Outcome(-0.1)

    def state(self) -> str:
        return f"The note says {self.note}.\n"

    def legal_actions(self) -> Sequence[str]:
        return self.colours


class Expert(Teacher):
    def expert_action(self, env: Any) -> int:
        return int(env.colours.index(env.note))


class TaughtDoors(Doors):
    teacher = Expert()


def recipe(tmp_path: Path, env: type[TextEnv], *overrides: str) -> Any:
    path = tmp_path / "untaught.toml"
    path.write_text(RECIPE.format(__name__, env.__name__), encoding="utf-8")
    return load_recipe(path, overrides, trust=True)


def test_reward_is_enough(tmp_path: Path) -> None:
    run = tmp_path / "run"
    pipeline.run(recipe(tmp_path, Doors), run)
    assert (run / "checkpoints/seed0/rl-rl-only/reflectrl.json").is_file() and (run / "report.html").is_file()
    assert not list(run.glob("episodes/teach-*"))
    played = list(read_episodes(run / "episodes/random-seed0.jsonl"))
    assert [episode.task.id for episode in played] == [f"doors-{i}" for i in range(6)] * 10
    assert len({tuple(step.action for step in episode.steps) for episode in played[::6]}) > 1  # played anew each time
    assert all(step.action in range(3) for episode in played for step in episode.steps)


def test_the_same_recipe_and_seed_give_the_same_random_play(tmp_path: Path) -> None:
    for name in ("run", "again"):
        pipeline.run(recipe(tmp_path, Doors), tmp_path / name, "sft")
    first, again = (tmp_path / name / "episodes/random-seed0.jsonl" for name in ("run", "again"))
    assert first.read_bytes() == again.read_bytes()


@pytest.mark.usefixtures("typed")
@pytest.mark.parametrize(
    ("env", "arms", "message"),
    [
        (Doors, "sft-no-reflection,rl-only", "Doors has no expert, which arm 'sft-no-reflection' would need; "),
        (Doors, "sft,expert", "Doors has no expert, which arms 'sft', 'expert' would"),
        (Doors, "oracle", "Doors has no expert, which arm 'oracle' would need"),
        (TaughtDoors, "no-reflection,reflect-rl", "TaughtDoors has no analyst, which arm 'reflect-rl' would need"),
        (TaughtDoors, "baseline", "TaughtDoors has no baseline, which arm 'baseline' would need"),
    ],
)
def test_arms_that_need_a_teacher_are_refused_by_name(
    env: type[TextEnv], arms: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        pipeline.run(recipe(tmp_path, env, f"arms={arms}"), tmp_path / "run")
    assert message in str(caught.value) and "--arms rl-only" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_an_expert_without_an_analyst_teaches_policies_that_read_no_reflections(tmp_path: Path) -> None:
    pipeline.run(recipe(tmp_path, TaughtDoors, "arms=expert,oracle,no-reflection"), tmp_path / "run")
    taught = list(read_episodes(tmp_path / "run/episodes/teach-seed0-train.jsonl"))
    assert all(step.reflection is None for episode in taught for step in episode.steps)
    assert all(step.target is not None for episode in taught for step in episode.steps)


def test_wins_of_the_teaching_episodes_are_begun_near_their_end(tmp_path: Path, like: Any) -> None:
    asked = like("arms=no-reflection", "rl.reverse=0.5", "rl.curriculum=none", "eval.splits=test")
    graph = planned(asked)
    assert "teach train (seed 0)" in graph["rl no-reflection (seed 0)"].inputs
    pipeline.run(asked, tmp_path / "run", "rl")
    lines = (tmp_path / "run/metrics/seed0-rl-no-reflection.jsonl").read_text().splitlines()
    assert any("reverse_distance" in json.loads(line) for line in lines)


def test_what_another_run_was_taught_in_the_same_folder_changes_nothing(
    tmp_path: Path, like: Any, tiny_folder: Any
) -> None:
    """`rl.reverse` begins near wins of teaching episodes; an arm that is not taught has none, whatever lies there."""
    settings = [f"model.source={tiny_folder('gpt2')}", "model.lora_rank=0", "rl.lr=0.01", "rl.reverse=0.5",
                "rl.curriculum=none", "rl.replay=0", "eval.splits=test"]  # fmt: skip
    taught, alone = tmp_path / "taught", tmp_path / "alone"
    pipeline.run(like("arms=sft-no-reflection", *settings), taught, "teach")
    assert (taught / "episodes/teach-seed0-train.jsonl").is_file()
    made = []
    for folder in (taught, alone):
        pipeline.run(like("arms=rl-only", *settings), folder, "rl")
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        weights = (folder / "checkpoints/seed0/rl-rl-only/model.safetensors").read_bytes()
        made.append((state["artifacts"]["rl rl-only (seed 0)"]["fingerprint"], weights))
    assert made[0][0] == made[1][0], "the fingerprint says that both are the same"
    assert made[0][1] == made[1][1]
