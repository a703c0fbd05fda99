"""`locate` as a tool for assistants, through the Model Context Protocol (https://modelcontextprotocol.io).

The server has one read-only tool. The repository is fixed when the server starts: the tool takes no path. It returns
names of files, line numbers and words of the question, but never a line of a file.

Needs the extra `mcp` (the official SDK, version 2).
"""

from __future__ import annotations

from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field

import reflectrl
from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.locate.answers import LiveLocator
from reflectrl.wings.autoexplore.names import shown
from reflectrl.wings.autoexplore.search import Hit

MOST_FILES = 50
MOST_CHARACTERS = 4000
"""Longest question."""
WORDS_SHOWN = 8
"""Number of words in a file's reason."""
_DESCRIPTION = (
    "Find the files of this repository that most likely answer a question, best first: where something is defined, "
    'configured or explained. Ask in plain words, with the terms that code would use, e.g. "where are retries '
    'configured?". Runs locally and reads only; tests and hidden files are left out.'
)


class File(BaseModel):
    """A file that may answer the question."""

    path: str = Field(description="Relative to the repository's root.")
    line: int | None = Field(
        description="Where the question's words stand most densely, from 1; null if only in the path."
    )
    reason: str = Field(description="The words that the file shares with the question, the rarest first.")


class Found(BaseModel):
    """The answer to a question."""

    method: str = Field(description="How the files were found.")
    files: list[File] = Field(description="Best first; empty where no file shares a word with the question.")


Question = Annotated[str, Field(description="What you want to know, in plain words.")]
Count = Annotated[
    int, Field(description="At most so many files.", json_schema_extra={"minimum": 1, "maximum": MOST_FILES})
]


def make_server(locator: LiveLocator) -> MCPServer:
    """Make a server with the tool `locate`."""
    server = MCPServer(
        "reflectrl",
        title="reflectrl locate",
        version=reflectrl.__version__,
        instructions=f"`locate` says which files of {locator.root.name!r} to open for a question.",
        log_level="WARNING",
        subscriptions=False,
    )

    @server.tool(
        title="Locate files",
        description=_DESCRIPTION,
        annotations=ToolAnnotations(
            read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
        ),
    )
    def locate(question: Question, k: Count = 5) -> Found:
        try:
            if not 1 <= k <= MOST_FILES:
                raise UserError(f"k is {k}; it must be from 1 to {MOST_FILES}")
            if len(question) > MOST_CHARACTERS:
                raise UserError(f"the question has {len(question):,} characters; ask in at most {MOST_CHARACTERS:,}")
            answer = locator.locate(question, k)
        except UserError as error:
            raise ToolError(str(error)) from None
        return Found(method=answer.method, files=[_to_file(hit) for hit in answer.files])

    return server


def _to_file(hit: Hit) -> File:
    more = len(hit.words) - WORDS_SHOWN
    words = ", ".join(hit.words[:WORDS_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return File(path=shown(hit.path), line=hit.line, reason=f"shares {words or 'no word, but was looked at'}")
