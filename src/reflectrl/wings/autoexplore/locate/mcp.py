"""`locate` as tools for assistants, through the Model Context Protocol (https://modelcontextprotocol.io).

The server has three read-only tools: `locate` finds files, `outline` lists what a file defines, `read` returns lines.
The repository is fixed when the server starts, and paths are those that `locate` can return.

Needs the extra `mcp` (the official SDK, version 2).
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field, ValidationError

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.locate.answers import Answer, Locator
from reflectrl.wings.autoexplore.locate.wire import Wire, about
from reflectrl.wings.autoexplore.names import shown
from reflectrl.wings.autoexplore.outline import outline as definitions
from reflectrl.wings.autoexplore.search import Hit, check_question

MOST_FILES = 50
MOST_CHARACTERS = 4000
"""Longest question."""
MOST_LINES = 400
"""Largest number of lines that one call of `read` returns."""
MOST_LINE = 2000
"""Longest line that `read` returns."""
PATIENCE = 1.0
"""Time for which a question waits for an index that is being made. Then it is answered from what is there."""
PROGRESS_SECONDS = 0.25
"""Time between two reports of progress."""
WORDS_SHOWN = 8
"""Number of words in a file's reason."""
_LOCATE = (
    "Find the files of this repository that most likely answer a question, best first: where something is defined, "
    'configured or explained. Ask in plain words, with the terms that code would use, e.g. "where are retries '
    'configured?". Runs locally and reads only.'
)
_OUTLINE = "List what a file of this repository defines: line, kind and name, one per line."
_READ = f"Read lines of a file of this repository, at most {MOST_LINES} at a time."


class File(BaseModel):
    """A file that may answer the question."""

    path: str = Field(description="Relative to the repository's root.")
    line: int | None = Field(description="Line that fits best, from 1; null if only the path fits.")
    start: int | None = Field(description="First line of the definition or passage around it.")
    end: int | None = Field(description="Last line of it.")
    name: str = Field(description="Name of that definition; empty if it has none.")
    probability: float | None = Field(description="How likely the file answers; null if unknown.")
    reason: str = Field(description="Why the file may answer.")


class Found(BaseModel):
    """The answer to a question."""

    method: str = Field(description="How the files were found.")
    is_sure: bool | None = Field(description="Whether the first file is likely to answer; null if unknown.")
    files: list[File] = Field(description="Best first; empty if no file shares a word with the question.")
    remarks: list[str] = Field(description="What was not searched, or only in part.")


class Lines(BaseModel):
    """Lines of a file."""

    path: str
    start: int = Field(description="Number of the first line, from 1.")
    end: int = Field(description="Number of the last line.")
    lines: int = Field(description="Number of lines of the file.")
    text: str


Question = Annotated[str, Field(description="What you want to know, in plain words.")]
Count = Annotated[
    int | None, Field(description="Largest number of files.", json_schema_extra={"minimum": 1, "maximum": MOST_FILES})
]
Path = Annotated[str, Field(description="Path of a file, relative to the repository's root, as `locate` returns it.")]
Wait = Annotated[
    bool, Field(description="Wait until a new or changed repository is read entirely, instead of asking again.")
]
Start = Annotated[int | None, Field(description="First line, from 1.")]
End = Annotated[int | None, Field(description=f"Last line; by default {MOST_LINES} lines are returned.")]


class LocateServer(MCPServer):
    """Server that refuses arguments that a tool does not have, instead of ignoring them."""

    async def call_tool(self, name: str, arguments: dict[str, Any], *rest: Any, **more: Any) -> Any:
        """Call a tool.

        Raises:
            ToolError: the tool has no such argument, an argument is wrong, or the tool fails.
        """
        for tool in await self.list_tools():
            unknown = sorted(set(arguments) - set(tool.input_schema.get("properties", {})))
            if tool.name == name and unknown:
                valid_names = ", ".join(tool.input_schema.get("properties", {}))
                raise ToolError(f"{name} has no argument {unknown[0]!r}; it has {valid_names}")
        try:
            return await super().call_tool(name, arguments, *rest, **more)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            wrong = [f"{at['loc'][0]}: {at['msg'].lower()}" for at in error.__cause__.errors(include_url=False)]
            raise ToolError(f"{name}: {'; '.join(wrong)}") from None

    async def serve(self, wire: Wire) -> None:
        """Serve until stdin ends.

        Raises:
            BrokenPipeError: the client has closed the other end of stdout. It may come in an exception group.
        """
        server = self._lowlevel_server

        async def run(received: Any, sent: Any) -> None:
            await server.run(received, sent, server.create_initialization_options())

        await wire.serve(run)


def make_server(locator: Locator) -> LocateServer:
    """Make a server with the tools `locate`, `outline` and `read`.

    Args:
        locator: search in the repository, which works `behind`.
    """
    said = about(locator.root.name)
    server = LocateServer(
        said["serverInfo"]["name"],
        title=said["serverInfo"]["title"],
        version=said["serverInfo"]["version"],
        instructions=said["instructions"],
        log_level="WARNING",
        subscriptions=False,
    )
    hints = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)

    @server.tool(title="Locate files", description=_LOCATE, annotations=hints)
    async def locate(question: Question, context: Context, k: Count = 5, wait: Wait = False) -> Found:
        most = 5 if k is None else k
        try:
            if not 1 <= most <= MOST_FILES:
                raise UserError(f"k is {k}; it must be from 1 to {MOST_FILES}")
            if len(question) > MOST_CHARACTERS:
                raise UserError(f"the question has {len(question):,} characters; ask in at most {MOST_CHARACTERS:,}")
            check_question(question)
            answer = await _answer(locator, question, most, wait, context)
        except UserError as error:
            raise ToolError(str(error)) from None
        files = [_to_file(hit) for hit in answer.files]
        return Found(method=answer.method, is_sure=answer.is_sure, files=files, remarks=list(answer.remarks))

    @server.tool(title="Outline a file", description=_OUTLINE, annotations=hints)
    def outline(path: Path) -> str:
        defined = definitions(path, _text(locator, path))
        lines = [
            f"{definition.line}: {definition.kind} {definition.name}{definition.signature}"
            + (f": {definition.doc}" if definition.doc else "")
            for definition in defined
        ]
        return "\n".join(lines) or "nothing is defined there"

    @server.tool(title="Read a file", description=_READ, annotations=hints)
    def read(path: Path, start: Start = 1, end: End = None) -> Lines:
        lines = _text(locator, path).split("\n")
        first = start or 1
        last = min(end or first + MOST_LINES - 1, len(lines), first + MOST_LINES - 1)
        if not 1 <= first <= len(lines) or last < first:
            raise ToolError(f"{shown(path)} has the lines 1 to {len(lines)}; start is {start}, end is {end}")
        text = "\n".join(line[:MOST_LINE] for line in lines[first - 1 : last])
        return Lines(path=shown(path), start=first, end=last, lines=len(lines), text=text)

    return server


async def _answer(locator: Locator, question: str, k: int, wait: bool, context: Context) -> Answer:
    """Answer a question about the files as they are now. Report progress while the index is being made.

    Args:
        wait: wait until the index is made. Otherwise, answer from what is there after `PATIENCE`.
    """
    ticket, deadline, reported = locator.begin(), time.monotonic() + PATIENCE, 0
    is_whole = await anyio.to_thread.run_sync(locator.is_ready, ticket, PROGRESS_SECONDS, abandon_on_cancel=True)
    while not is_whole:
        done, total = locator.progress
        if done > reported:  # a report must be larger than the one before
            await context.report_progress(done, total, f"read {locator.progress_line}")
            reported = done
        if done and not wait and time.monotonic() > deadline:
            break
        is_whole = await anyio.to_thread.run_sync(locator.is_ready, ticket, PROGRESS_SECONDS, abandon_on_cancel=True)
    return await anyio.to_thread.run_sync(locator.locate, question, k, is_whole)


def _text(locator: Locator, path: str) -> str:
    try:
        return locator.text(path)
    except UserError as error:
        raise ToolError(str(error)) from None


def _to_file(hit: Hit) -> File:
    more = len(hit.words) - WORDS_SHOWN
    words = ", ".join(hit.words[:WORDS_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return File(
        path=shown(hit.path),
        line=hit.line,
        start=hit.start,
        end=hit.end,
        name=hit.name,
        probability=None if hit.probability is None else round(hit.probability, 2),
        reason=hit.why or f"shares {words or 'no word, but was looked at'}",
    )
