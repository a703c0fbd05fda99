"""Standard input and output as a transport of the Model Context Protocol, in place of the SDK's own.

Importing the SDK takes most of a second, so a thread reads stdin before that, and answers the first request
(`initialize`, or `server/discover` of a newer client) as the SDK would. What is no
message (broken JSON, a batch) is answered by an error, where the SDK says nothing and the client would wait for ever.
When stdin ends, every request that has arrived still gets its answer. Half of a surrogate pair, which JSON can hold and
UTF-8 cannot, passes in both directions.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any, TypedDict

import reflectrl
from reflectrl.core.types import UserError

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Versions of the protocol that begin with `initialize`. The SDK answers a client that wants another one."""
DISCOVERED = "2026-07-28"
"""Version of the protocol that begins with `server/discover`."""
_META = "io.modelcontextprotocol/"
MOST_BYTES = 16 << 20
"""Longest message."""
PARSE_ERROR, INVALID_REQUEST = -32700, -32600
Message = dict[str, Any]


class About(TypedDict):
    """A server's words about itself, as the protocol names them."""

    capabilities: Message
    instructions: str
    serverInfo: dict[str, str]


def about(name: str) -> About:
    """Return what the server for a repository says about itself.

    Args:
        name: name of the repository's folder.
    """
    return {
        "capabilities": {
            "prompts": {"listChanged": False},
            "resources": {"listChanged": False, "subscribe": False},
            "tools": {"listChanged": False},
        },
        "instructions": f"`locate` says which files of {name!r} to open for a question; `outline` and `read` do so.",
        "serverInfo": {"name": "reflectrl", "title": "reflectrl locate", "version": reflectrl.__version__},
    }


def greeting(message: Message, server: About) -> Message | None:
    """Return the result of a client's first request; None if the SDK has to answer it."""
    params = message.get("params")
    if message.get("jsonrpc") != "2.0" or not _is_id(message.get("id")) or not isinstance(params, dict):
        return None
    if message.get("method") == "initialize":
        client, version = params.get("clientInfo"), params.get("protocolVersion")
        is_client = isinstance(client, dict) and all(isinstance(client.get(key), str) for key in ("name", "version"))
        is_known = isinstance(version, str) and version in VERSIONS and isinstance(params.get("capabilities"), dict)
        return {**server, "protocolVersion": version} if is_client and is_known else None
    meta = params.get("_meta")
    if message.get("method") != "server/discover" or not isinstance(meta, dict):
        return None
    if meta.get(f"{_META}protocolVersion") != DISCOVERED or not isinstance(
        meta.get(f"{_META}clientCapabilities"), dict
    ):
        return None
    return {
        "cacheScope": "private",
        "capabilities": server["capabilities"],
        "instructions": server["instructions"],
        "resultType": "complete",
        "supportedVersions": [DISCOVERED],
        "ttlMs": 0,
        "_meta": {f"{_META}serverInfo": server["serverInfo"]},
    }


def _is_id(request: Any) -> bool:
    return isinstance(request, str | int) and not isinstance(request, bool)


class Wire:
    """Messages on stdin and stdout, one on each line.

    While it is open, the descriptor 0 is empty, and what is printed by mistake goes to stderr.

    Args:
        server: what the server says about itself.

    Raises:
        UserError: stdout is closed.
    """

    def __init__(self, server: About) -> None:
        self._server = server
        self._input, self._output = _taken(0, os.O_RDONLY), _taken(1, os.O_WRONLY)
        if self._output is None:
            raise UserError("stdout is closed, so no client could read an answer")
        self._messages: SimpleQueue[Message | None] = SimpleQueue()
        self._writing = threading.Lock()
        self._error: OSError | None = None
        self._is_begun = False
        self._greeted: str | int | None = None  # the first request, if it is answered here
        # Not awaited at the end: a read that waits for a client cannot be interrupted.
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def close(self) -> None:
        """Give the standard streams back."""
        for stream, moved in ((0, self._input), (1, self._output)):
            if moved is not None:
                os.dup2(moved, stream)

    def _read(self) -> None:
        """Read until the end of stdin, or until the client has closed the other end of stdout."""
        try:
            if self._input is not None:
                with os.fdopen(self._input, "rb", closefd=False) as lines:
                    while line := lines.readline(MOST_BYTES + 1):
                        if len(line) > MOST_BYTES:
                            while line and not line.endswith(b"\n"):
                                line = lines.readline(MOST_BYTES)
                            self._refuse(None, INVALID_REQUEST, f"a message has at most {MOST_BYTES >> 20} MiB")
                        elif line.strip():
                            self._take(line)
        except BrokenPipeError as error:
            self._error = error
        except OSError:  # stdin cannot be read: a folder, say
            pass
        self._messages.put(None)

    def _take(self, line: bytes) -> None:
        """Pass a message on. Answer what is none, and the first request."""
        try:
            message = json.loads(line.decode("utf-8", "replace"))
        except RecursionError:
            return self._refuse(None, PARSE_ERROR, "the message is too deeply nested")
        except ValueError as error:
            return self._refuse(None, PARSE_ERROR, f"the message is not valid JSON: {error}")
        if isinstance(message, list) and message:
            return self._refuse_batch(message)
        if not isinstance(message, dict):
            return self._refuse(None, INVALID_REQUEST, "a message is a JSON object")
        is_request = "method" in message and "id" in message
        if is_request and not _is_id(message["id"]):
            return self._refuse(None, INVALID_REQUEST, "the id of a request is a text or a whole number")
        if is_request and not self._is_begun:
            self._is_begun = True
            result = greeting(message, self._server)
            if result is not None:
                self._send({"jsonrpc": "2.0", "id": message["id"], "result": result})
                self._greeted = message["id"]
        self._messages.put(message)

    def _refuse_batch(self, batch: list[Any]) -> None:
        """Answer each request of a batch, which the protocol has not had since 2025-06-18."""
        said = "this server takes no batches; send one message on each line"
        ids = [each.get("id") for each in batch if isinstance(each, dict) and "method" in each and "id" in each]
        if ids:
            self._send([_error(each, INVALID_REQUEST, said) for each in ids])
        else:
            self._refuse(None, INVALID_REQUEST, said)

    def _refuse(self, request: Any, code: int, said: str) -> None:
        self._send(_error(request, code, said))

    def _send(self, message: Message | list[Message]) -> None:
        """Write a message. ASCII only, since half of a surrogate pair has no other form."""
        assert self._output is not None
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._writing:
            while data:
                data = data[os.write(self._output, data) :]

    async def serve(self, run: Callable[[Any, Any], Awaitable[None]]) -> None:
        """Serve until stdin ends.

        Args:
            run: the SDK's server: a function of the streams from which it gets messages, and to which it sends some.

        Raises:
            BrokenPipeError: the client has closed the other end of stdout. It may come in an exception group.
        """
        import anyio
        from mcp.shared.message import SessionMessage
        from mcp.types import JSONRPCError, JSONRPCRequest, JSONRPCResponse, jsonrpc_message_adapter
        from pydantic import ValidationError

        received, messages = anyio.create_memory_object_stream[SessionMessage | Exception]()
        answers, sent = anyio.create_memory_object_stream[SessionMessage]()
        unanswered, is_answered = set[str | int](), anyio.Event()
        has_ended = False

        def settle(request: Any) -> None:
            unanswered.discard(request)
            if has_ended and not unanswered:
                is_answered.set()

        async def incoming() -> None:
            nonlocal has_ended
            async with received:
                while (data := await anyio.to_thread.run_sync(self._messages.get, abandon_on_cancel=True)) is not None:
                    try:
                        message = jsonrpc_message_adapter.validate_python(data, by_name=False)
                    except ValidationError:
                        request = data.get("id")
                        self._refuse(
                            request, INVALID_REQUEST, "this is no request, notification or answer of JSON-RPC 2.0"
                        )
                        continue
                    if isinstance(message, JSONRPCRequest):
                        unanswered.add(message.id)
                    elif data.get("method") == "notifications/cancelled":  # its request never gets an answer
                        settle((data.get("params") or {}).get("requestId"))
                    await received.send(SessionMessage(message))
                has_ended = True
                if unanswered and self._error is None:
                    await is_answered.wait()

        async def outgoing() -> None:
            async with sent:
                async for item in sent:
                    message = item.message
                    answered = message.id if isinstance(message, JSONRPCResponse | JSONRPCError) else None
                    if answered is not None and answered == self._greeted and answered in unanswered:
                        self._greeted = None  # answered already
                    else:
                        data = message.model_dump(by_alias=True, exclude_unset=True)
                        await anyio.to_thread.run_sync(self._send, data)
                    if answered is not None:
                        settle(answered)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(incoming)
            tasks.start_soon(outgoing)
            await run(messages, answers)
            tasks.cancel_scope.cancel()
        if self._error is not None:
            raise self._error


def _taken(stream: int, mode: int) -> int | None:
    """Move a standard stream to another descriptor, so that nothing else reads or writes it; None if it is closed."""
    import fcntl

    try:
        moved = fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError:
        return None
    instead = os.dup(2) if mode == os.O_WRONLY else os.open(os.devnull, mode)
    os.dup2(instead, stream)
    os.close(instead)
    return moved


def _error(request: Any, code: int, said: str) -> Message:
    """Return the answer to what cannot be carried out. Only texts and numbers are ids."""
    return {"jsonrpc": "2.0", "id": request if _is_id(request) else None, "error": {"code": code, "message": said}}
