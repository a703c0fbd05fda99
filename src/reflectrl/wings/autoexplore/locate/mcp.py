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
from pydantic import BaseModel, Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.locate.answers import Answer, Locator
from reflectrl.wings.autoexplore.locate.originals import MOST_CHARACTERS as MOST_PASSAGE
from reflectrl.wings.autoexplore.locate.originals import MOST_LINES, OUTLINED_CHARACTERS, Outline, Passage
from reflectrl.wings.autoexplore.locate.wire import Wire, about
from reflectrl.wings.autoexplore.names import shown
from reflectrl.wings.autoexplore.search import Hit

MOST_FILES = 50
MOST_CHARACTERS = 4000
"""Longest question."""
OUTLINE_CHARACTERS = 20_000
"""Largest number of characters that one call of `outline` returns. Assistants refuse answers of about 100,000."""
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
_OUTLINE = (
    "List what a file of this repository defines: line, kind and name, one per line. If the list is long, the last "
    "line says how to go on."
)
_READ = (
    f"Read lines of a file of this repository as they are on disk: at most {MOST_LINES} lines and "
    f"{MOST_PASSAGE:,} characters at a time. `next_start` and `next_column` say where to read on."
)


class File(BaseModel):
    """A file that may answer the question."""

    path: str = Field(description="Relative to the repository's root, as `read` and `outline` take it.")
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
    remarks: list[str] = Field(description="What was not searched, or only in part, and other advice.")
    left_out: dict[str, int] = Field(description="Number of files and folders that were left out, by reason.")


class Lines(BaseModel):
    """Lines of a file. Fields that say nothing are left out."""

    path: str
    start: int = Field(description="Number of the first line, from 1.")
    column: int | None = Field(None, description="First character of that line in `text`, if it is not 1.")
    end: int = Field(description="Number of the last line.")
    lines: int = Field(description="Number of lines of the file.")
    encoding: str | None = Field(None, description="Encoding, if it is not UTF-8; latin-1 also for unknown ones.")
    cut: str | None = Field(
        None, description="What is missing at the end of `text`, if anything that was asked for is."
    )
    next_start: int | None = Field(None, description="Then, the line with which to read on.")
    next_column: int | None = Field(None, description="Then, the character of that line with which to read on.")
    text: str = Field(description="Text of the file, unchanged.")

    @model_serializer(mode="wrap")
    def _without_nothing(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in dump(self).items() if value is not None}


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
Column = Annotated[int | None, Field(description="First character of the first line, from 1; for very long lines.")]


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
            answer = await _answer(locator, question, most, wait, context)
        except UserError as error:
            raise ToolError(str(error)) from None
        return Found(
            method=answer.method,
            is_sure=answer.is_sure,
            files=[_to_file(hit) for hit in answer.files],
            remarks=list(answer.notes),
            left_out=dict(answer.left_out),
        )

    @server.tool(title="Outline a file", description=_OUTLINE, annotations=hints)
    def outline(path: Path, start: Start = 1) -> str:
        try:
            return _outlined(locator.originals.outline(path), start or 1)
        except UserError as error:
            raise ToolError(str(error)) from None

    @server.tool(title="Read a file", description=_READ, annotations=hints)
    def read(path: Path, start: Start = 1, end: End = None, column: Column = 1) -> Lines:
        try:
            first = 1 if start is None else start
            passage = locator.originals.passage(path, first, end, 1 if column is None else column)
        except UserError as error:
            raise ToolError(str(error)) from None
        return _to_lines(passage)

    return server


async def _answer(locator: Locator, question: str, k: int, wait: bool, context: Context) -> Answer:
    """Answer a question about the files as they are now. Report progress while the index is being made.

    Args:
        wait: wait until the index is made. Otherwise, answer from what is there after `PATIENCE`.
    """
    await anyio.to_thread.run_sync(locator.check, question)
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


def _outlined(outlined: Outline, start: int) -> str:
    """Return an outline as text, from a line on and as much as is allowed."""
    lines, left = list[str](), OUTLINE_CHARACTERS
    following = [definition for definition in outlined.definitions if definition.line >= start]
    for definition in following:
        doc = f": {definition.doc}" if definition.doc else ""
        line = f"{definition.line}: {definition.kind} {definition.name}{definition.signature}{doc}"
        left -= len(line) + 1
        # Definitions of the same line stay together, so that the next part can begin with a line.
        if left < 0 and lines and definition.line != following[len(lines) - 1].line:
            more = len(following) - len(lines)
            lines.append(f"(cut: {more:,} more definitions; go on with start={definition.line})")
            break
        lines.append(line)
    if not outlined.is_whole:
        lines.append(f"(only the first {OUTLINED_CHARACTERS:,} characters of the file were looked at)")
    return "\n".join(lines) or (
        "nothing is defined there" if start == 1 else f"nothing is defined from line {start} on"
    )


def _to_lines(passage: Passage) -> Lines:
    next_start, next_column = (passage.next if passage.is_cut else None) or (None, None)
    return Lines(
        path=_sent(passage.path),
        start=passage.start,
        column=None if passage.column == 1 else passage.column,
        end=passage.end,
        lines=passage.lines,
        encoding=None if passage.encoding == "utf-8" else passage.encoding,
        cut=f"cut here: read on with start={next_start}, column={next_column}" if passage.is_cut else None,
        next_start=next_start,
        next_column=next_column,
        text=passage.text,
    )


def _sent(path: str) -> str:
    """Return a path for a client: as it is, unless it holds bytes that are not UTF-8 and so cannot be sent."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return shown(path)
    return path


def _to_file(hit: Hit) -> File:
    more = len(hit.words) - WORDS_SHOWN
    words = ", ".join(hit.words[:WORDS_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return File(
        path=_sent(hit.path),
        line=hit.line,
        start=hit.start,
        end=hit.end,
        name=hit.name,
        probability=None if hit.probability is None else round(hit.probability, 2),
        reason=hit.why or f"shares {words or 'no word, but was looked at'}",
    )
