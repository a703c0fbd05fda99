"""An environment as a table: it plays as the environment does, or is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from reflectrl.core.envs import make
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.types import Outcome, Task, UserError
from reflectrl.tools.browser.world import World, explore


class Walk(TextEnv):
    """A corridor of five cells without `get_state`; what it notes besides is nobody's business."""

    def __init__(self, horizon: int = 9) -> None:
        super().__init__(horizon)
        self.visited: list[int] = []

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        return [Task(f"from-{n}", "walk", {"from": n}, split) for n in range(1, 4)]

    def begin(self, task: Task) -> None:
        self.cell = task.payload["from"]

    def apply(self, action: str) -> Outcome:
        self.cell += 1 if action == "right" else -1
        return Outcome(float(self.cell == 4), self.cell in (0, 4), self.cell == 4, ("end",) if self.cell == 4 else ())

    def state(self) -> str:
        return f"cell {self.cell}\n"

    def legal_actions(self) -> Sequence[str]:
        return ("left", "right")


class Noting(Walk):
    """The same corridor, though its state remembers which way one came."""

    def apply(self, action: str) -> Outcome:
        self.came = action
        return super().apply(action)


class Dice(Walk):
    def apply(self, action: str) -> Outcome:
        return super().apply(action if self.np_random.random() < 0.9 else "left")


class OwnDice(Walk):
    """Chance that is no business of `np_random`, as in an adapted environment."""

    def begin(self, task: Task) -> None:
        super().begin(task)
        self.dice = np.random.default_rng(task.payload["from"])

    def apply(self, action: str) -> Outcome:
        return super().apply(action if self.dice.random() < 0.5 else "left")


class Clock(Walk):
    """From the fifth step on it says so, which no saved state holds."""

    def state(self) -> str:
        return f"cell {self.cell}{', late' if self.elapsed >= 5 else ''}\n"

    def get_state(self) -> Any:
        return self.cell

    def set_state(self, state: Any) -> None:
        self.cell = state


class Long(Walk):
    def history(self) -> str:
        return "".join(f"{number} " for number in range(self.elapsed))


class Open(Walk):
    def begin(self, task: Task) -> None:
        super().begin(task)
        self.file = lambda: None


def replay(world: World, env: TextEnv, seed: int) -> int:
    """Play random actions on both, and compare all that can be seen; the number of steps."""
    rng, steps = np.random.default_rng(seed), 0
    for task, start in zip(world.tasks, world.starts, strict=True):
        _, info = env.reset(seed=0, options={"task": task})
        state, success, terminated = world.states[start], False, False
        while not env.done:
            assert world.observations[state[0]] == info["observation"]
            action = int(rng.integers(len(info["actions"])))
            reward, terminated, won, events = world.outcomes[state[2 + 2 * action]]
            state, success, steps = world.states[state[1 + 2 * action]], success or won, steps + 1
            _, paid, ended, _, info = env.step(action)
            assert (paid, ended, info["success"], info["events"]) == (reward, terminated, success, list(events))
        assert world.observations[state[0]] == info["observation"]
        assert terminated or env.elapsed == world.horizon
    return steps


@pytest.mark.parametrize(
    ("section", "tasks"),
    [
        ({"name": "taxi"}, 2),
        ({"name": "taxi", "maps": "random"}, 1),
        ({"name": "frozenlake", "maps": "8x8"}, 3),
        ({"name": "reflectrl.examples.blackjack:BlackjackEnv"}, 9),
        ({"name": "reflectrl.examples.add_up:AddUp"}, 9),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else str(value),
)
def test_the_table_plays_as_the_environment_does(section: dict[str, Any], tasks: int) -> None:
    env = make(section)
    world = explore(env, env.tasks("test")[:tasks], 50_000)
    assert sum(replay(world, env, seed) for seed in range(20)) > 20
    assert json.loads(json.dumps(world.as_json()))["horizon"] == env.horizon


def test_tasks_share_states_and_what_plays_alike_is_one() -> None:
    plain, noting = (explore(env, env.tasks("test"), 100) for env in (Walk(), Noting()))
    assert plain.states == noting.states  # which way one came neither shows nor counts
    assert len(plain.observations) == 5 and len(set(plain.starts)) == 3
    assert 5 <= len(plain.states) <= 5 + 4  # cells, and those where the horizon is reached


def test_what_lies_beyond_the_horizon_is_not_explored() -> None:
    env = Walk(horizon=1)
    world = explore(env, env.tasks("test")[1:2], 3)
    assert len(world.states) == 3


@pytest.mark.parametrize(
    ("env", "most", "about"),
    [
        (Walk(), 4, "more than 4 states .* name fewer tasks"),
        (Long(), 20, "more than 20 states"),
        (Dice(), 100, "leaves to chance what follows 'left' in task 'from-1'"),
        (OwnDice(), 100, "by chance or through something that get_state leaves out"),
        (Clock(), 100, "step [56] of task"),
        (Open(), 100, "state of Open cannot be compared"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, TextEnv) else None,
)
def test_what_is_no_table_of_that_size_is_refused(env: TextEnv, most: int, about: str) -> None:
    with pytest.raises(UserError, match=about):
        explore(env, env.tasks("test"), most)
