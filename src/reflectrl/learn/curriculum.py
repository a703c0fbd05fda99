"""Which stage of an environment is being learned, and when to move on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from reflectrl.envs.base import TextEnv
from reflectrl.types import Task, UserError


class Curriculum:
    """Walks through the stages of an environment, from the first to the last and never back.

    Args:
        stages: stage names, the easiest first; the last is the whole task.
        kind: "none" stays at the last stage; "equal" gives every stage an equal share of the updates (what does not
            divide evenly goes to the last); "gate" moves on when the mean success rate over the latest `window`
            updates at the stage reaches `gate`.
        updates: number of updates of the whole training ("equal").
        gate: success rate in [0, 1] that opens the next stage ("gate").
        window: number of updates over which it is averaged; a stage lasts at least this long ("gate").

    Raises:
        UserError: "equal" with fewer updates than stages, so that some stage would never be learned.
    """

    def __init__(
        self,
        stages: Sequence[str],
        kind: Literal["none", "equal", "gate"],
        updates: int,
        gate: float,
        window: int = 5,
    ) -> None:
        if kind == "equal" and updates < len(stages):
            raise UserError(f"rl.updates is {updates}; curriculum 'equal' needs at least {len(stages)}, one per stage")
        self.stages = tuple(stages)
        self._kind, self._gate, self._window = kind, gate, window
        self._share = updates // len(self.stages)
        self._index = len(self.stages) - 1 if kind == "none" else 0
        self._rates: list[float] = []

    @property
    def stage(self) -> str:
        """The name of the stage being learned."""
        return self.stages[self._index]

    @property
    def others(self) -> tuple[str, ...]:
        """The stages that are not being learned, the last first; none where there is no curriculum."""
        if self._kind == "none":
            return ()
        return tuple(stage for stage in reversed(self.stages) if stage != self.stage)

    def advance(self, success_rate: float) -> bool:
        """Take note of an update's success rate (in [0, 1]); True when the stage changes with it.

        To be called once after each update. After True, successes collected so far belong to an easier stage, and the
        replay buffer is cleared.
        """
        self._rates.append(success_rate)
        if self._index == len(self.stages) - 1 or not self._finished():
            return False
        self._index, self._rates = self._index + 1, []
        return True

    def _finished(self) -> bool:
        if self._kind == "equal":
            return len(self._rates) >= self._share
        latest = self._rates[-self._window :]
        return len(latest) == self._window and sum(latest) / self._window >= self._gate - 1e-9  # rounding

    def state(self) -> dict[str, Any]:
        """Where the curriculum stands, as JSON values."""
        return {"stage": self.stage, "rates": list(self._rates)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a value of `state`.

        Raises:
            UserError: the state's stage is not one of this curriculum's (the recipe was changed in between).
        """
        if state["stage"] not in self.stages:
            raise UserError(
                f"cannot resume: stage {state['stage']!r} is not one of {', '.join(self.stages)}; "
                "continue with the recipe that began the run, or start a new one"
            )
        self._index, self._rates = self.stages.index(state["stage"]), list(state["rates"])


def draw_tasks(
    env: TextEnv, curriculum: Curriculum, count: int, rehearsal: float, rng: np.random.Generator
) -> list[Task]:
    """Training tasks of an update: those of the curriculum's stage, and a share `rehearsal` from the other stages.

    A stage shows only a part of the whole task, and a policy trained on nothing else forgets the rest within a few
    updates: on the pickup stage of taxi it soon tries to pick up where it should drop off. Tasks of one stage are drawn
    without replacement (with, where there are fewer).
    """

    def draw(stage: str, number: int) -> list[Task]:
        tasks = env.tasks("train", stage)
        return [tasks[int(i)] for i in rng.choice(len(tasks), size=number, replace=number > len(tasks))]

    others = curriculum.others
    rehearsed = int(rehearsal * count) if others else 0
    tasks = draw(curriculum.stage, count - rehearsed)
    return tasks + [task for i in range(rehearsed) for task in draw(others[i % len(others)], 1)]
