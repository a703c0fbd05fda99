"""The teacher of portals. Its three kinds of analysis separate written intermediate results from mere length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reflectrl.core.envs.teacher import Teacher

if TYPE_CHECKING:
    from reflectrl.wings.portals.env import PortalsEnv

ANALYSES = ("steps", "answer", "filler")
FILLER = "wait"


class PortalsTeacher(Teacher):
    """Follow the parcel, and write down the stops, or only the last one."""

    def expert_action(self, env: PortalsEnv) -> int:
        return env.legal_actions().index(env.stops()[-1])

    def analyse(self, env: PortalsEnv) -> str:
        """Write one line. All kinds end with the answer, so that a policy reads it in the same way."""
        stops = env.stops()
        written = {"steps": stops[:-1], "answer": [], "filler": [FILLER] * (len(stops) - 1)}
        return " ".join([*written[env.analysis], stops[-1]])
