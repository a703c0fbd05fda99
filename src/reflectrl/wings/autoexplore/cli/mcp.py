"""`mcp`: a server that offers `locate`, `outline` and `read` to an IDE assistant."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated

import tyro

from reflectrl.core.advice import install
from reflectrl.core.plugins import suggestion
from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.cli.locate import agent_of, reader_of

START_SECONDS = 0.2
"""Time for which the start waits for the index."""
OPTIONS = ("--repo", "--model", "--search", "--read", "--no-cache")


@dataclass(frozen=True)
class Mcp:
    """Offer `locate`, `outline` and `read` to an IDE assistant: a read-only MCP server on stdin and stdout."""

    repo: Annotated[str, tyro.conf.arg(metavar="DIR")] = "."
    """Folder of the repository."""
    model: Annotated[str, tyro.conf.arg(metavar="DIR")] = ""
    """Folder of an agent that answers instead of the search, written by `export-agent`. Default: $REFLECTRL_AGENT."""
    search: bool = False
    """Answer by search, even if $REFLECTRL_AGENT names an agent."""
    read: bool = False
    """Let a language model read the first eight files, where the search is unsure, as `locate --read` does."""
    no_cache: bool = False
    """Keep no index in the user's cache folder, and use none. $REFLECTRL_CACHE=off does the same."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Serve until stdin ends. Only the protocol is written to stdout."""
        if settings:
            option = settings[0].partition("=")[0]
            raise UserError(f"unknown option {option!r}{suggestion(option, OPTIONS)}")
        if find_spec("mcp") is None:
            raise UserError(f"the MCP server needs an extra; {install('mcp')}")
        # A thread that waits for stdin cannot be interrupted. Of the index, what is read is saved every second.
        handlers = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
        with ExitStack() as finally_:
            for number, handler in handlers.items():
                finally_.callback(signal.signal, number, handler)
            self._serve(finally_)

    def _serve(self, finally_: ExitStack) -> None:
        """Serve until stdin ends.

        Args:
            finally_: stack that closes what is opened.
        """
        from reflectrl.wings.autoexplore.locate.answers import METHODS, Locator
        from reflectrl.wings.autoexplore.locate.card import agent_folder
        from reflectrl.wings.autoexplore.locate.wire import Wire, about
        from reflectrl.wings.autoexplore.sandbox import Sandbox

        said = about(Sandbox(self.repo).root.name)

        def opened() -> Wire:
            wire = Wire(said)
            finally_.callback(wire.close)
            return wire

        loads_model = self.read or (not self.search and agent_folder(self.model) is not None)
        wire = opened() if loads_model else None  # it greets the client while the model is loaded
        agent = agent_of(self.model, self.search)
        reader = reader_of(self.read, agent)
        locator = Locator(self.repo, agent=agent, cached=not self.no_cache, lasting=True, reader=reader, behind=True)
        wire = wire or opened()  # it has a thread, so the locator has forked before
        try:
            from reflectrl.wings.autoexplore.locate.mcp import make_server  # slow
        except ImportError as error:
            raise UserError(f"the MCP server needs an extra; {install('mcp')}") from error
        # A small index is made by the time that the client asks. A folder without files is refused here.
        locator.is_ready(locator.begin(), START_SECONDS)
        method = METHODS["reader" if self.read else "search"] if agent is None else f"the agent {agent.card.name}"
        print(
            f"reflectrl: serving {str(locator.root)!r} on stdin and stdout; files are found by {method}",
            file=sys.stderr,
            flush=True,
        )
        has_left = False
        try:
            import anyio

            anyio.run(make_server(locator).serve, wire)
        except* BrokenPipeError:
            has_left = True
        if has_left:  # an assistant may close its pipes in any order; raised here, since `except*` would wrap the error
            raise BrokenPipeError
