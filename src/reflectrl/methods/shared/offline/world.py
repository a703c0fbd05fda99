"""A text environment that plays by a table of effects.

It replaces an environment that must not be played during training. `methods/morel.py` fills the table with the effects
that several models predict alike. An action whose effect is not in the table ends the episode at a cost, so a policy
learns to stay where the table is right (the pessimistic MDP of Kidambi et al. 2020, "MOReL").
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reflectrl.core.envs.base import TextEnv, require_known
from reflectrl.core.types import Outcome, Task
from reflectrl.methods.shared.offline.effects import ON, WON, Scene, Table

SPLITS = ("train", "validation")
UNKNOWN = "unknown"
"""Event of an action whose effect is not in the table."""


class World(TextEnv):
    """Environment that plays by a table.

    Args:
        path: the table, as JSON lines.
        horizon: largest number of steps of an episode.
        cost: reward of an action whose effect is unknown. Such an action ends the episode.
    """

    def __init__(self, path: Path, horizon: int, cost: float) -> None:
        super().__init__(horizon)
        self.table, self.cost = Table.read(path), cost

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        require_known("world", "split", split, SPLITS)
        require_known("world", "stage", stage or "full", self.stages)
        return [Task(f"world-{split}-{i}", "world", {"start": i}, split) for i in range(len(self.table.starts[split]))]

    def begin(self, task: Task) -> None:
        self.scene: Scene | None = self.table.starts[task.split][task.payload["start"]]

    def apply(self, action: str) -> Outcome:
        assert self.scene is not None
        effects = self.table.effects.get(self.scene)
        effect = effects and effects[self.scene.actions.index(action)]
        if not effect:
            self.scene = None
            return Outcome(self.cost, terminated=True, events=(UNKNOWN,))
        self.scene = effect.scene
        return Outcome(effect.reward, terminated=effect.end != ON, success=effect.end == WON)

    def state(self) -> str:
        return self.scene.state if self.scene else ""

    def legal_actions(self) -> Sequence[str]:
        return self.scene.actions if self.scene else ()
