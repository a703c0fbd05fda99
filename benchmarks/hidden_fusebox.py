"""Fusebox without its log: a player sees the latest reply only, so it has to remember what it has already done.

In the hall nothing tells whether the shorted device is unplugged, so a player without a memory either searches again or
flips the breaker too early, which ends the episode.
"""

from __future__ import annotations

from itertools import product

from benchmarks.strangers.fusebox import DEVICES, ROOMS, Fusebox, best
from reflectrl.core.envs.base import Outcome, divide
from reflectrl.core.envs.teacher import Teacher
from reflectrl.core.types import Task


class HiddenFuseboxTeacher(Teacher):
    """Teacher that remembers the whole log."""

    def expert_action(self, env: HiddenFusebox) -> int:
        actions = list(env.legal_actions())
        untouched = env.shorted not in env.unplugged
        if env.room == env.dark and env.sound in env.unplugged and untouched:
            return actions.index(f"unplug {env.shorted}")  # only one device is left to try
        return actions.index(best(env))

    def analyse(self, env: HiddenFusebox) -> str:
        """Return what was found out and done so far."""
        lit = [room for room in ROOMS if f"The {room} is lit" in env.log]
        notes = [f"Lit: {', '.join(lit)}."] if lit else []
        notes += [f"Tested: {device}." for device in DEVICES if device in env.tested]
        notes += [f"Unplugged: {device}." for device in DEVICES if device in env.unplugged]
        if env.live:
            notes.append("The breaker holds.")
        return " ".join(notes) or "Nothing yet."


class HiddenFusebox(Fusebox):
    """Fusebox that shows the latest reply instead of the log."""

    teacher = HiddenFuseboxTeacher()

    def __init__(self, horizon: int = 15) -> None:
        super().__init__(horizon)
        cases = [case for case in product(ROOMS, DEVICES, DEVICES) if case[1] != case[2]]
        self.cases = divide(cases, {"train": 70, "validation": 10, "test": 40}, "hidden fusebox")

    def begin(self, task: Task) -> None:
        super().begin(task)
        self.reply = ""

    def apply(self, action: str) -> Outcome:
        before = len(self.log)
        outcome = super().apply(action)
        self.reply = self.log[before:]
        if action == "flip breaker" and not self.live:
            # Otherwise, a player without a memory could flip it at every visit, and learn from the reply.
            return Outcome(-1.0, terminated=True, success=False)
        return outcome

    def history(self) -> str:
        return self.reply
