"""Small projects with a setting to change: files of several formats, and the request of a user."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np

from reflectrl.core.types import named_seed

SERVICES = (
    *("mailer", "billing", "search", "gateway", "crawler", "reports", "uploads", "sessions", "scheduler", "exporter"),
    *("indexer", "notifier", "archiver", "importer", "monitor", "renderer", "resizer", "tracker", "backup", "payments"),
)
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "retries": ("try {new} times before it gives up", "make {new} attempts"),
    "timeout": ("wait {new} seconds for an answer", "give up after {new} seconds without an answer"),
    "workers": ("run with {new} processes", "use {new} processes at once"),
    "batch_size": ("handle {new} records at a time", "take {new} records per round"),
    "port": ("listen on port {new}", "answer on port {new}"),
    "cache_minutes": ("keep results for {new} minutes", "remember results for {new} minutes"),
    "page_size": ("show {new} entries per page", "list {new} entries on a page"),
    "rate_limit": ("allow {new} requests per minute", "accept {new} requests per minute from a client"),
}
"""Setting → phrasings of a request for it. No phrasing names the setting's key."""
FORMATS = ("toml", "ini", "yaml", "json", "py")
FOLDERS = ("config", "deploy", "services")


class Project(NamedTuple):
    """Files of a project, and what is to be changed.

    Attributes:
        texts: path → text.
        request: the user's words.
        path: the file to change.
        key: the setting to change.
        old, new: its value before and after.
    """

    texts: Mapping[str, str]
    request: str
    path: str
    key: str
    old: int
    new: int


@cache
def pairs(split_seed: int) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Divide the pairs of a service and a setting among the three splits, in proportion to 7 : 1 : 2.

    A pair that is asked for in training is never asked for in a test.
    """
    all_pairs = list(product(SERVICES, SETTINGS))
    order = np.random.default_rng(named_seed("edits-pairs", split_seed)).permutation(len(all_pairs))
    first, second = int(0.7 * len(all_pairs)), int(0.8 * len(all_pairs))
    parts = order[:first], order[first:second], order[second:]
    return tuple(tuple(all_pairs[i] for i in part) for part in parts)


def project(service: str, key: str, seed: int) -> Project:
    """Make a project: the settings of five services, a copy for the tests, and a page of documentation."""
    rng = np.random.default_rng(named_seed("edits", service, key, seed))
    others = [name for name in SERVICES if name != service]
    services = [service, *(others[i] for i in rng.permutation(len(others))[:4])]
    texts = {}
    path, old = "", 0
    for name in services:
        values = settings_of(rng, key if name == service else None)
        kind = FORMATS[rng.integers(len(FORMATS))]
        file = f"{FOLDERS[rng.integers(len(FOLDERS))]}/{name}.{kind}"
        texts[file] = written(kind, values)
        if name == service:
            path, old = file, values[key]
            texts[f"tests/{name}.{kind}"] = texts[file]
    texts["docs/settings.md"] = "Settings are read when a service starts.\n"
    new = int(rng.integers(2, 100))
    while new == old:
        new = int(rng.integers(2, 100))
    phrasings = SETTINGS[key]
    wish = phrasings[rng.integers(len(phrasings))].format(new=new)
    request = f"The {service} should {wish}"
    request += f", not {old}." if rng.integers(2) else "."
    return Project(dict(sorted(texts.items())), request, path, key, old, new)


def settings_of(rng: np.random.Generator, needed: str | None) -> dict[str, int]:
    """Draw four settings with values, among them the needed one."""
    keys = [key for key in SETTINGS if key != needed]
    drawn = [keys[i] for i in rng.permutation(len(keys))[: 4 if needed is None else 3]]
    if needed is not None:
        drawn.insert(int(rng.integers(4)), needed)
    return {key: int(rng.integers(2, 100)) for key in drawn}


def written(kind: str, values: Mapping[str, int]) -> str:
    """Write settings in a format."""
    lines = [line_of(kind, key, value) for key, value in values.items()]
    match kind:
        case "json":
            return "{\n" + ",\n".join(lines) + "\n}\n"
        case "ini":
            lines.insert(0, "[settings]")
    return "\n".join(lines) + "\n"


def line_of(kind: str, key: str, value: int) -> str:
    """Write a setting as a line of a format."""
    match kind:
        case "toml":
            return f"{key} = {value}"
        case "ini":
            return f"{key}={value}"
        case "yaml":
            return f"{key}: {value}"
        case "json":
            return f'  "{key}": {value}'
        case _:
            return f"{key.upper()} = {value}"
