"""BabyAI in words: the levels of `minigrid` (Chevalier-Boisvert et al. 2019) as a `TextEnv`.

The text follows BabyAI-Text (Carta et al. 2023): the goal, what the agent sees in its partial view, what it carries.
There is one departure, which `memory` turns off. Things that have gone out of view are named as well, as the agent
would remember them. If the goal speaks of "behind you" and the like, things also say where they were at the start.
Otherwise a small model that reads one observation at a time could not know what it has just turned its back on. A
history of past observations would say the same in ten times as many tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

from reflectrl.core.envs.adapter import GymTextEnv
from reflectrl.core.types import Outcome, Task, UserError
from reflectrl.wings.babyai.teacher import BabyAITeacher, Guide
from reflectrl.wings.babyai.view import ACTIONS, View
from reflectrl.wings.babyai.world import level_id, reset


class BabyAIEnv(GymTextEnv):
    """Follow an instruction in a grid world of rooms and objects, with a partial view.

    Tasks are seeds: a seed decides rooms, objects, start and goal. The expert is the package's own bot.

    Args:
        level: a level of BabyAI by its name in `minigrid` ("GoToLocal", "PickupLoc", "GoToLocalS6N2", "BossLevel" ...).
        horizon: steps per episode; 0 takes the level's own limit, which may differ between missions.
        reward: "sparse" gives 1 for success; "timed" is the package's reward, 1 - 0.9 * steps / limit on success.
        memory: name what was seen before and is out of view.
        guide: tell only where the things in the goal lie, and what is beside the agent. Rules and actions stay the
            same, but the player need not find the words of the goal in a list: an easier task than BabyAI-Text.
        recent: number of latest actions that are shown.
        train, validation, test: seeds per split.

    Raises:
        UserError: `minigrid` is not installed, there is no such level, or a number is out of range.
    """

    teacher = BabyAITeacher()
    not_saved = ("view", "guide")

    def __init__(
        self,
        level: str = "GoToLocal",
        horizon: int = 0,
        reward: Literal["sparse", "timed"] = "sparse",
        memory: bool = True,
        guide: bool = False,
        recent: int = 3,
        train: int = 5000,
        validation: int = 100,
        test: int = 500,
    ) -> None:
        if horizon < 0 or recent < 0 or min(train, validation, test) < 1:
            raise UserError("babyai: horizon and recent must be at least 0, train, validation and test at least 1")
        if reward not in ("sparse", "timed"):
            raise UserError(f"babyai: reward must be sparse or timed, not {reward!r}")
        super().__init__(
            level_id(level),
            (*ACTIONS, "done"),
            horizon or 1,
            name=f"babyai-{level}",
            train=train,
            validation=validation,
            test=test,
        )
        self.reward, self.memory, self.recent, self.limit = reward, memory, recent, horizon
        self.is_guided = guide
        self.taken: list[int] = []
        self._reset(0)

    @property
    def world(self) -> Any:
        """The `MiniGridEnv` itself."""
        return self.wrapped

    def _reset(self, seed: int) -> None:
        reset(self.world, seed)
        self.world.max_steps = self.horizon = self.limit or self.world.max_steps

    def begin(self, task: Task) -> None:
        self._reset(task.payload["seed"])
        self.view, self.taken = View(self.world), []

    def apply(self, action: str) -> Outcome:
        self.taken.append(ACTIONS.index(action))
        _, paid, terminated, truncated, _ = self.world.step(self.taken[-1])
        self.view.look()
        won, self.earned = bool(terminated and paid > 0), float(paid)
        reward = float(paid) if self.reward == "timed" else float(won)
        return Outcome(reward, bool(terminated), won, ("won",) if won else (), bool(truncated))

    def history(self) -> str:
        return ""

    def state(self) -> str:
        names = [ACTIONS[action] for action in self.taken[-self.recent :]] if self.recent else []
        latest = f"Last: {', '.join(names) or 'none'}." if self.recent else ""
        sentences = self.view.guided(self.memory) if self.is_guided else self.view.sentences(self.memory)
        lines = [f"Goal: {self.world.mission}.", *sentences, latest]
        return "".join(f"{line}\n" for line in lines if line)

    def describe(self, observation: Any, info: Any) -> str:
        """Return the state. There is no other text."""
        return self.state()

    def legal_actions(self) -> Sequence[str]:
        """Return all six actions, always, as in the literature. An action that is not possible does nothing."""
        return ACTIONS

    @cached_property
    def guide(self) -> Guide:
        """The bot that follows this episode."""
        return Guide(self._make().unwrapped)
