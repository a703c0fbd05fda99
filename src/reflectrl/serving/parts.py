"""The parts of this package that runs and the command line look up: arms, recipe sections, verbs, report sections.

A part that is slow to import is behind a function, which imports it when it is needed.
"""

from __future__ import annotations

from typing import Any

from reflectrl.serving.endpoints.arms import ARMS, HOOKS, arms_of
from reflectrl.serving.endpoints.config import EndpointConfig, JudgeConfig, Players, TeacherConfig
from reflectrl.serving.remote.config import RolloutsConfig

__all__ = ["ARMS", "HOOKS", "REPORT_SECTIONS", "SECTIONS", "VERBS", "arms_of"]


def _serve() -> type:
    from reflectrl.serving.server.cli import Serve

    return Serve


def _serve_rollouts() -> type:
    from reflectrl.serving.server.cli import ServeRollouts

    return ServeRollouts


def _dagger() -> Any:
    from reflectrl.serving.endpoints.dagger_report import growth

    return growth


SECTIONS = {
    "endpoint": EndpointConfig,
    "teacher": TeacherConfig,
    "players": Players,
    "judge": JudgeConfig,
    "rollouts": RolloutsConfig,
}
VERBS = {"serve": _serve, "serve-rollouts": _serve_rollouts}
REPORT_SECTIONS = {"dagger": _dagger}
