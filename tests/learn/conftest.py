"""What learners learn here: a small environment with one right answer per room, and a tiny model that can read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from reflectrl.core.config import ModelConfig
from reflectrl.core.envs.base import Outcome, TextEnv
from reflectrl.core.envs.teacher import Teacher
from reflectrl.core.types import Task, UserError
from reflectrl.models.load import LanguageModel, load_model
from reflectrl.models.scratch import save_scratch

COLOURS = {"train": ("red", "blue", "green", "black"), "validation": ("white", "grey"), "test": ("pink",)}


class Guide(Teacher):
    def expert_action(self, env: Any) -> int:
        return 1

    def analyse(self, env: Any) -> str:
        return f"Room {env.room}, go left."


class Rooms(TextEnv):
    """One room ("one") or two ("full"); "left" is right in every room, anything else ends the walk."""

    stages: ClassVar[tuple[str, ...]] = ("one", "full")
    teacher = Guide()

    def __init__(self) -> None:
        super().__init__(horizon=3)

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        if split not in COLOURS:
            raise UserError(f"no split {split}")
        stage = stage or "full"
        return [Task(f"{stage}-{colour}", "rooms", {"colour": colour}, split, stage) for colour in COLOURS[split]]

    def begin(self, task: Task) -> None:
        self.room = 0

    def apply(self, action: str) -> Outcome:
        if action != "left":
            return Outcome(-0.5, terminated=True)
        self.room += 1
        won = self.room == (1 if self.task.stage == "one" else 2)
        return Outcome(0.5, terminated=won, success=won)

    def history(self) -> str:
        return ""

    def state(self) -> str:
        return f"A {self.task.payload['colour']} room, number {self.room}.\n"

    def legal_actions(self) -> Sequence[str]:
        return ("right", "left", "wait") if self.room == 0 else ("right", "left")

    def get_state(self) -> Any:
        return self.room

    def set_state(self, state: Any) -> None:
        self.room = state


@pytest.fixture
def make_rooms() -> Callable[[], TextEnv]:
    return Rooms


def sentences() -> list[str]:
    env, found = Rooms(), []
    for split in COLOURS:
        for task in env.tasks(split):
            env.reset(seed=0, options={"task": task})
            found.append(f"{env.observe().text}Actions: 1: right 2: left 3: wait\nRoom 0, go left.\nChoice: 2")
    return found


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model of a family, made once."""

    def folder(family: str) -> Path:
        path = tmp_path_factory.getbasetemp() / f"tiny-{family}"
        if not path.exists():
            config = ModelConfig(family=family, layers=1, width=16, heads=2, context=128, vocab=300)  # type: ignore[arg-type]
            save_scratch(path, config, sentences(), 4, seed=1)
        return path

    return folder


@pytest.fixture
def tiny(model_folder: Callable[[str], Path]) -> Callable[..., LanguageModel]:
    """`tiny()`: a fresh copy of the tiny model; `tiny(lora_rank=2)`: an adapter on it."""

    def load(family: str = "gpt2", adapter: str | None = "policy", **settings: Any) -> LanguageModel:
        return load_model(model_folder(family), ModelConfig(mixed_precision="off", **settings), adapter)

    return load
