"""A slow environment that does nothing, like an environment that waits for a simulator or a network."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, require_known
from reflectrl.core.types import Task


class Sleeping(TextEnv):
    """Environment whose steps take time without using the processor. Episodes end at the horizon.

    Args:
        seconds: duration of a step.
        horizon: steps of every episode.
        count: tasks per split.
    """

    def __init__(self, seconds: float = 0.005, horizon: int = 6, count: int = 16) -> None:
        super().__init__(horizon)
        self.seconds, self.count = seconds, count

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        require_known("sleeping", "split", split, SPLITS)
        require_known("sleeping", "stage", stage or "full", self.stages)
        numbers = range(SPLITS.index(split) * self.count, (SPLITS.index(split) + 1) * self.count)
        return [Task(f"sleeping-{number}", "sleeping", {"number": number}, split) for number in numbers]

    def begin(self, task: Task) -> None:
        self.slept = 0

    def apply(self, action: str) -> Outcome:
        time.sleep(self.seconds)
        self.slept += 1
        return Outcome(0.0)

    def history(self) -> str:
        return ""

    def state(self) -> str:
        return f"Bed {self.task.payload['number']}, slept {self.slept} times.\n"

    def legal_actions(self) -> Sequence[str]:
        return ("sleep", "sleep on")

    def get_state(self) -> Any:
        return self.slept

    def set_state(self, state: Any) -> None:
        self.slept = state
