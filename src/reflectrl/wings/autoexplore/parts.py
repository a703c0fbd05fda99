"""Entry points of this wing for the command line: its verbs, and an option of `run`."""

from __future__ import annotations


def _locate() -> type:
    from reflectrl.wings.autoexplore.cli.locate import Locate

    return Locate


def _mcp() -> type:
    from reflectrl.wings.autoexplore.cli.mcp import Mcp

    return Mcp


def _repos() -> type:
    from reflectrl.wings.autoexplore.cli.own_repos import OwnRepositories

    return OwnRepositories


def _session() -> type:
    from reflectrl.wings.autoexplore.cli.session import EditSession

    return EditSession


VERBS = {"locate": _locate, "mcp": _mcp, "session": _session}
RUN_OPTIONS = {"repos": _repos}
