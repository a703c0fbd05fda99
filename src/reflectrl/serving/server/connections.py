"""Connections of the HTTP servers: limits on their number and on their time, whatever a client sends.

The application sees a request only when its headers are complete. Only the connection knows what happens before, and
whether the client ever reads its answer.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from reflectrl.serving.server.protocol import Refusal

GRACE = 5.0
"""Seconds after the deadline in which an answer may still be sent. The application gives up at the deadline itself."""


class BoundedConnection(H11Protocol):
    """A connection whose requests end in time: headers, body, and the answer down to its last byte.

    The application finds the time of a request's first byte, by the loop's clock, as `request.state.began`.

    Attributes:
        most: largest number of open connections.
        seconds: longest time for a request, and for a connection without one.
    """

    most: int
    seconds: float
    _timer: asyncio.TimerHandle | None = None
    _is_idle = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, or refuse it if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            full = f"{self.most} connections are open, the most that this server takes on"
            self._refuse(Refusal(503, full, "too_many_connections", None, {"Retry-After": "1"}))
        else:
            self._start_clock()

    def data_received(self, data: bytes) -> None:
        """Read on. The first byte of a request restarts the clock."""
        if self._is_idle:
            self._start_clock()
            self._is_idle = False
        super().data_received(data)

    def on_response_complete(self) -> None:
        """Wait for the next request, which may have been sent already."""
        self._stop_clock()
        self._is_idle = True
        super().on_response_complete()
        if self._under_way:
            self._start_clock()
            self._is_idle = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_clock()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP with an error in the usual form. In the middle of an answer, just close."""
        self._refuse(Refusal(400, msg, "invalid_http"))

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection on which no further request came."""
        self.transport.close()

    def shutdown(self) -> None:
        """Close the connection, after the answer that is under way."""
        if self._under_way:
            super().shutdown()
        else:
            self.transport.close()

    # ---- the clock ---------------------------------------------------------------------------------------------------

    @property
    def _under_way(self) -> bool:
        """Return whether the application has a request that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _start_clock(self) -> None:
        self._stop_clock()
        self.app_state = {**self.app_state, "began": self.loop.time()}
        self._timer = self.loop.call_later(self.seconds, self._out_of_time)

    def _stop_clock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _out_of_time(self) -> None:
        if self._under_way:
            self._timer = self.loop.call_later(GRACE, self.transport.abort)
        elif self._is_idle:
            self.transport.close()
        else:
            self._refuse(Refusal(408, f"the headers did not arrive within {self.seconds:g} s", "timeout"))

    def _refuse(self, refusal: Refusal) -> None:
        """Send the reason, if no answer has begun, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self._under_way:
            body = json.dumps(refusal.body()).encode()
            headers = {**refusal.headers, "Content-Type": "application/json", "Content-Length": str(len(body)),
                       "Connection": "close"}  # fmt: skip
            head = h11.Response(status_code=refusal.status, headers=list(headers.items()))
            parts: list[Any] = [head, h11.Data(data=body), h11.EndOfMessage()]
            self.transport.write(b"".join(self.conn.send(part) or b"" for part in parts))
        self.transport.close()
        self._timer = self.loop.call_later(GRACE, self.transport.abort)  # for a client that does not read this


def bounded_connection(most: int, seconds: float) -> type[BoundedConnection]:
    """Return the class from which uvicorn makes a server's connections.

    Args:
        most, seconds: see `BoundedConnection`.
    """
    return type("Connection", (BoundedConnection,), {"most": most, "seconds": seconds})
