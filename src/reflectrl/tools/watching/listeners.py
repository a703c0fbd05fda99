"""Callbacks for the metrics of a run: alarms and trackers, if its recipe names them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from reflectrl.core.advice import install
from reflectrl.core.types import UserError
from reflectrl.runs.folder import Context
from reflectrl.runs.metrics import CallbackFactory
from reflectrl.tools.watching.alarms import Alarms
from reflectrl.tools.watching.config import AlarmsConfig, WatchConfig


def listeners(context: Context) -> list[CallbackFactory]:
    """Return the functions that open alarms and trackers for each training; [] if the recipe names none. An entry
    point.

    Raises:
        UserError: a tracker is not installed.
    """
    sections = context.recipe.sections
    alarms: AlarmsConfig = sections["alarms"]
    watch: WatchConfig = sections["watch"]
    factories: list[CallbackFactory] = []
    if alarms.action != "off":
        factories.append(lambda path, earlier: Alarms(alarms, path.stem, earlier))
    for name in watch.trackers:
        if find_spec(name) is None:
            raise UserError(f"watch.trackers: {name} is not installed; {install(name)}")
    if watch.trackers:
        factories.append(lambda path, earlier: _trackers(context, watch, path))
    return factories


def _trackers(context: Context, watch: WatchConfig, path: Path) -> Any:
    from reflectrl.tools.watching.trackers import Trackers

    return Trackers(watch, path, context.recipe.name, context.recipe.plain())
