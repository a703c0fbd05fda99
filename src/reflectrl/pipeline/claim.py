"""Whose run folder it is: one recipe's, and one process's at a time."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reflectrl.config import Recipe, read_recipe, to_toml
from reflectrl.config.folders import no_link, refuse_links
from reflectrl.config.trust import code_in, remember
from reflectrl.learn.checkpoint import write_text
from reflectrl.types import UserError

FREE = ("name", "seeds", "arms", "threads", "processes", "env_workers", "eval", "test_rewards")
"""Settings that may change between two calls on one run folder, since nothing already trained depends on them."""


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the run folder while the block runs. The lock ends with the process, however it ends.

    Raises:
        UserError: another process holds it, or it holds symbolic links, through which a run would write elsewhere.
    """
    folder.mkdir(parents=True, exist_ok=True)
    refuse_links(folder)
    with open(folder / ".lock", "a+", encoding="utf-8", opener=no_link) as file:
        if not _locked(file):
            file.seek(0)
            who = file.read().strip() or "unknown"
            raise UserError(f"another process ({who}) is at work in {folder}; wait for it, or use another --folder")
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _locked(file: Any) -> bool:
    """Try to lock a file; where the system knows no such locks (Windows, some network disks) it counts as locked."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def claim(recipe: Recipe, folder: Path) -> None:
    """Write the recipe into the run folder, or check that the one in it asks for the same training.

    Code that the recipe names is trusted in this folder from now on: it was trusted where the recipe came from.

    Raises:
        UserError: the folder holds another training; names the first key that differs.
    """
    path = folder / "recipe.toml"
    if path.is_file():
        before, now = (dataclasses.asdict(one) for one in (read_recipe(path), recipe))
        for key in before:
            if key not in FREE and (detail := _difference(key, before[key], now[key])):
                raise UserError(f"{folder} holds a run with {detail}; use another --folder, or remove this one")
    write_text(path, to_toml(recipe))
    remember(path, code_in(dataclasses.asdict(recipe)))


def _difference(key: str, before: Any, now: Any) -> str | None:
    """The first key in which two sections differ, in words."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        parts = (_difference(f"{key}.{name}", before.get(name), now.get(name)) for name in {**before, **now})
        return next(filter(None, parts), None)
    same = json.dumps(before) == json.dumps(now)  # a list of a recipe is a tuple or a list
    return None if same else f"{key} = {_shown(before)}, not {_shown(now)}"


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)
