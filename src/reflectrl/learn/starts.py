"""Choice of the tasks of an update, and of the points where its episodes begin and must end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from reflectrl.core.config import RLConfig
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.rollout import Start
from reflectrl.core.types import Episode, Task
from reflectrl.learn.curriculum import (
    ReverseCurriculum,
    SuccessRates,
    draw_tasks,
    growing_horizon,
    is_part,
    make_curriculum,
    replayed,
)
from reflectrl.learn.validation import success_rate


class Group(NamedTuple):
    """Task of a group of episodes, which all begin at the same point.

    Attributes:
        provenance: provenance to record in the episodes.
        start: point inside an earlier episode; None for the beginning.
    """

    task: Task
    provenance: Mapping[str, Any]
    start: Start | None


class Starts:
    """Draws the tasks of an update by the curriculum, and lets some episodes begin near a win.

    Call `draw` as often as the update needs groups, then `end_update` once.

    Args:
        wins: episodes of an offline log or of a teacher. New episodes may begin part-way into the won ones.
    """

    def __init__(self, config: RLConfig, env: TextEnv, wins: Iterable[Episode] = ()) -> None:
        self.config, self.env = config, env
        self.curriculum = make_curriculum(config, env)
        self.rates: SuccessRates | None = None
        if config.draw == "by-success":
            self.rates = SuccessRates()
        self.reverse = ReverseCurriculum(config.reverse, config.reverse_gate, config.reverse_step)
        self.reverse.add(sorted(wins, key=lambda episode: len(episode.steps)), env)

    @property
    def stage(self) -> str:
        """The stage being learned."""
        return self.curriculum.stage

    def horizon(self, update: int) -> int:
        """Return the horizon of an update's episodes; 0 leaves it to the environment."""
        if not self.config.first_horizon:
            return 0
        return growing_horizon(self.config, self.env.horizon, update)

    def draw(self, count: int, rng: np.random.Generator) -> list[Group]:
        """Draw tasks and starting points for `count` groups of episodes."""
        tasks = draw_tasks(self.env, self.curriculum, count, self.config.rehearsal, rng, self.rates)
        of_stage = sum(is_part(task.stage, self.stage) for task in tasks)
        near = [
            Group(task, {"started_from": start.seed}, start)
            for task, start in self.reverse.draw(self.stage, of_stage, rng)
        ]
        # Tasks of the stage come first, so the starts near a win replace some of them and no rehearsed task.
        return near + [Group(task, {}, None) for task in tasks[len(near) :]]

    def end_update(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Record the outcomes of an update's episodes, and perhaps move on to the next stage. Return metrics."""
        metrics = dict[str, float]()
        from_beginning, near = by_start(episodes, self.stage)
        if self.rates is not None:
            # Episodes that begin near a win are easy, so they say little about the whole task.
            self.rates.add(episode for episode in episodes if not replayed(episode))
        if near:
            metrics = {"reverse_success": success_rate(near), "reverse_distance": float(self.reverse.distance)}
            self.reverse.advance(success_rate(near))
        self.reverse.add(episodes, self.env)
        if self.curriculum.advance(success_rate(from_beginning)):
            self.reverse.restart()
        return metrics

    def state(self) -> dict[str, Any]:
        """Return the state to save, as JSON values."""
        rates = {} if self.rates is None else self.rates.state()
        return {"curriculum": self.curriculum.state(), "rates": rates, "reverse": self.reverse.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a value of `state`."""
        self.curriculum.load(state["curriculum"])
        self.reverse.load(state["reverse"])
        if self.rates is not None:
            self.rates.load(state["rates"])


def by_start(episodes: Iterable[Episode], stage: str) -> tuple[list[Episode], list[Episode]]:
    """Split a stage's episodes into those that began at the beginning, and those that began near a win."""
    from_beginning, near = list[Episode](), list[Episode]()
    for episode in episodes:
        if is_part(episode.task.stage, stage):
            (near if replayed(episode) else from_beginning).append(episode)
    return from_beginning, near
