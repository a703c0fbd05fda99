"""The teacher of BabyAI: the package's own bot, and an analyst who mentions only what the text shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reflectrl.core.envs.teacher import Teacher
from reflectrl.wings.babyai.view import ACTIONS, steps, wanted
from reflectrl.wings.babyai.world import reset

if TYPE_CHECKING:
    from reflectrl.wings.babyai.env import BabyAIEnv


class BabyAITeacher(Teacher):
    """Act like minigrid's `BabyAIBot`, which knows only what the agent has seen, and say where the goal is."""

    def expert_action(self, env: BabyAIEnv) -> int:
        """Return the bot's advice; the first action if the bot gives up, since the mission can no longer be won."""
        advice = env.guide.advice(env.task.payload["seed"], env.taken)
        return advice if advice is not None and advice < len(ACTIONS) else 0

    def analyse(self, env: BabyAIEnv) -> str:
        """Write one line: where each thing of the goal is, what is carried, what stands ahead, what to do next."""
        things = [thing for thing in env.view.things() if thing.seen or env.memory]
        parts = []
        for target in wanted(env.world.mission):
            match = next((thing for thing in things if target.fits(thing)), None)
            parts.append(f"{target.name}: {steps(match.place) if match else 'not seen yet'}.".capitalize())
        if carried := env.view.carried():
            parts.append(f"Carrying {carried}.")
        parts.append(f"Ahead: {env.view.ahead() or 'free'}.")
        return " ".join([*parts, f"Next: {ACTIONS[self.expert_action(env)]}."])


class Guide:
    """The bot beside an episode. It follows in its own copy of the world, so play without a teacher has no extra cost.

    Args:
        world: a `MiniGridEnv` that is used for nothing else.
    """

    def __init__(self, world: Any) -> None:
        self.world = world
        self._seed: int | None = None
        self._taken: list[int] = []

    def advice(self, seed: int, taken: Sequence[int]) -> int | None:
        """Return the bot's next action after these actions in the world of a seed; None if it gives up."""
        if seed != self._seed or self._taken != list(taken[: len(self._taken)]):
            self._restart(seed)
        for action in taken[len(self._taken) :]:
            self.world.step(action)
            self._taken.append(action)
            self._advice = self._ask(action)
        return self._advice

    def _restart(self, seed: int) -> None:
        reset(self.world, seed)
        self._seed, self._taken = seed, []
        self._employ()
        self._advice = self._ask(None)

    def _employ(self) -> None:
        from minigrid.utils.baby_ai_bot import BabyAIBot

        self._bot = BabyAIBot(self.world)

    def _ask(self, action: int | None) -> int | None:
        """Return the bot's advice after an action. A bot that fails (a box was opened, say) is replaced."""
        for taken in (action, None):
            try:
                return int(self._bot.replan(taken))
            except Exception:  # the bot fails with assertions and many other errors
                self._employ()
        return None
