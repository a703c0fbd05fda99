"""The parts of this package that runs and the command line look up: verbs, options of `run`, callbacks and checks.

A part that is slow to import is behind a function, which imports it when it is needed.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from reflectrl.tools.watching.config import AlarmsConfig, WatchConfig

# ---- verbs -----------------------------------------------------------------------------------------------------------


def _play() -> type:
    from reflectrl.tools.playing.verbs import Play

    return Play


def _import_episodes() -> type:
    from reflectrl.tools.playing.verbs import ImportEpisodes

    return ImportEpisodes


def _estimate() -> type:
    from reflectrl.tools.playing.verbs import EstimateSuccess

    return EstimateSuccess


def _export_agent() -> type:
    from reflectrl.tools.exporting.cli import ExportAgent

    return ExportAgent


def _export_browser() -> type:
    from reflectrl.tools.browser.cli import ExportBrowser

    return ExportBrowser


def _init() -> type:
    from reflectrl.tools.workbench.init import Init

    return Init


def _bench() -> type:
    from reflectrl.tools.workbench.bench import Bench

    return Bench


def _data() -> type:
    from reflectrl.tools.downloads.data import Data

    return Data


def _check_env() -> type:
    from reflectrl.tools.workbench.check_env import CheckEnv

    return CheckEnv


def _certify() -> type:
    from reflectrl.tools.certify.verb import Certify

    return Certify


def _watch() -> type:
    from reflectrl.tools.watching.live import Watch

    return Watch


def _sweep() -> type:
    from reflectrl.tools.sweeps.verbs import Sweep

    return Sweep


def _compare() -> type:
    from reflectrl.tools.sweeps.verbs import Compare

    return Compare


# ---- parts of a run --------------------------------------------------------------------------------------------------


def _load() -> type:
    from reflectrl.tools.pretrained.loading import LoadPlayers

    return LoadPlayers


def _fork() -> type:
    from reflectrl.tools.sweeps.forking import Fork

    return Fork


def _check_first() -> type:
    from reflectrl.tools.workbench.run_check import CheckFirst

    return CheckFirst


def _watching() -> Any:
    from reflectrl.tools.watching.listeners import listeners

    return listeners


def _memory() -> ModuleType:
    from reflectrl.tools.fitting import check

    return check


VERBS = {
    "play": _play,
    "import-episodes": _import_episodes,
    "estimate": _estimate,
    "export-agent": _export_agent,
    "export-browser": _export_browser,
    "init": _init,
    "bench": _bench,
    "data": _data,
    "check-env": _check_env,
    "certify": _certify,
    "watch": _watch,
    "sweep": _sweep,
    "compare": _compare,
}
SECTIONS = {"alarms": AlarmsConfig, "watch": WatchConfig}
RUN_OPTIONS = {"load": _load, "fork": _fork, "check": _check_first}
LISTENERS = {"watching": _watching}
CHECKS = {"memory": _memory}
