"""Entry points of this wing for runs and the command line: its kind of run, sections of recipe keys, verbs."""

from __future__ import annotations

from reflectrl.wings.text.config import Rewards, TestRewards, TextConfig
from reflectrl.wings.text.pipeline.graph import RUN_KIND

__all__ = ["RUN_KIND", "SECTIONS", "VERBS"]


def _offline() -> type:
    from reflectrl.wings.text.cli.offline import Offline

    return Offline


def _judge() -> type:
    from reflectrl.wings.text.cli.tables import Judge

    return Judge


def _score() -> type:
    from reflectrl.wings.text.cli.score import Score

    return Score


SECTIONS = {"text": TextConfig, "rewards": Rewards, "test_rewards": TestRewards}
VERBS = {"offline": _offline, "judge": _judge, "score": _score}
