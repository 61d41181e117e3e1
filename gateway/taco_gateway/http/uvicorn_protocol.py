"""uvicorn's HTTP protocol with the bounds that a public listener needs.

Requests that never reach the application (broken framing, endless headers, one connection too many)
are answered in OpenAI's envelope. Every state of a connection has a timer:

| state | bound | ends with |
|---|---|---|
| no request yet, or between requests | uvicorn's keep-alive, at most `HEADER_SECONDS` | close |
| a request's head arrives | `HEADER_SECONDS` | 408 |
| a body arrives | the route's own (`body_timeout`) | 408 |
| the rest of a body arrives after its answer | `HEADER_SECONDS` | close |
| an answer is written, or the connection closes | `STALL_SECONDS` without progress | reset |

The class overrides methods of uvicorn that are no public interface: `pyproject.toml` bounds
uvicorn's version to what the tests cover.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from taco_gateway.api_errors import ApiError, error_bytes
from taco_gateway.http.request_id import REQUEST_ID_HEADER, new_request_id

MAX_HEADER_BYTES = 48 * 1024
MAX_TRAILER_BYTES = 8 * 1024
HEADER_SECONDS = 30.0
LINGER_SECONDS = 1.0
STALL_SECONDS = 30.0
NUM_STALL_CHECKS = 3  # samples of the write buffer that must be equal
MAX_LINGERING = 64  # rejected connections that are still told why
ABORT_EXTENSION = "taco.abort"


@dataclass(slots=True)
class ConnectionCounts:
    """Connections of one listener.

    Attributes:
        num_open: connections now.
        num_rejected: connections that were closed because `max_connections` were open.
    """

    num_open: int = 0
    num_rejected: int = 0


def http_protocol(*, max_connections: int, counts: ConnectionCounts) -> type[asyncio.Protocol]:
    """The protocol of one listener, for `uvicorn.Config(http=…)`; see `GatewayHttpProtocol`."""
    maker = partial(GatewayHttpProtocol, max_connections=max_connections, counts=counts)
    return cast(type[asyncio.Protocol], maker)  # uvicorn calls it and nothing else


class _RejectedHeadError(Exception):
    """Raised inside a parser callback; httptools reports it as a parser error."""


class GatewayHttpProtocol(HttpToolsProtocol):
    """One connection.

    Rejects with 400 (framing, Host), 408 (slow head), 431 (large head or trailers), 501 (transfer
    coding) and 503 (too many connections). Trailers of a chunked body are dropped: they are no
    headers (RFC 9110, section 6.5.1).

    Args:
        max_connections: connections that the listener serves at a time.
        counts: shared by all connections of the listener.
    """

    def __init__(
        self, *args: Any, max_connections: int, counts: ConnectionCounts, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._max_connections = max_connections
        self._counts = counts
        self._in_head = True  # else in a body, or in its trailers
        self._rejected = False
        self._num_pending_bytes = 0  # received since the last whole head or piece of a body
        self._num_trailer_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._stalled = (0, 0)  # size of the write buffer, and how many samples were equal
        self._rejection = ApiError(400, "The HTTP request is malformed.")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._counts.num_open += 1
        self._watch_writes()
        if len(self.connections) > self._max_connections:
            self._reject_connection()
        else:
            self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._counts.num_open -= 1
        self._stop_head_timer()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._rejected:
            return
        self._num_pending_bytes += len(data)
        super().data_received(data)
        if self._num_pending_bytes > MAX_HEADER_BYTES and not self._rejected:
            self._reject_large("headers" if self._in_head else "chunk headers or trailers")
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self.scope["extensions"] = {ABORT_EXTENSION: {"abort": self.transport.abort}}
        self._start_head_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)
            return
        self._num_trailer_bytes += len(name) + len(value) + 4
        if self._num_trailer_bytes > MAX_TRAILER_BYTES:
            self._reject_large("trailers", MAX_TRAILER_BYTES)
            raise _RejectedHeadError

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        self._check_head()
        self._in_head = False
        self._num_pending_bytes = self._num_trailer_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_pending_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._num_pending_bytes = 0
        self._in_head = True

    def on_response_complete(self) -> None:
        has_next = bool(self.pipeline)  # its head has come whole, and its answer may take long
        super().on_response_complete()
        if not has_next and not self.transport.is_closing():
            # uvicorn's keep-alive timer ends with the next byte, whatever that is.
            self._start_head_timer()

    def send_400_response(self, msg: str) -> None:
        """Answers with the rejection, if nothing else is being answered, and closes."""
        self._rejected = True
        self._stop_head_timer()
        cycle = self.cycle
        if cycle is not None and not self._in_head:  # the cycle of the rejected request
            if cycle.response_started or self.pipeline:
                self.transport.close()
                return
            cycle.disconnected = True  # it was still reading its body
            cycle.message_event.set()
        elif cycle is not None and not cycle.response_complete:  # of an earlier request
            self.transport.close()
            return
        self._write_rejection()

    def _check_head(self) -> None:
        """Raises:
        _RejectedHeadError: the head is too large, or RFC 9112 forbids it.
        """
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        is_old = self.parser.get_http_version() in ("0.9", "1.0")
        num_hosts = sum(name == b"host" for name, _ in self.headers)
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if size > MAX_HEADER_BYTES:
            self._reject_large("headers")
        elif num_hosts > 1 or not (num_hosts or is_old):
            self._rejection = ApiError(400, f"A request needs one Host header, got {num_hosts}.")
        elif codings and is_old:
            self._rejection = ApiError(400, "HTTP/1.0 has no Transfer-Encoding.")
        elif codings and [coding.strip().lower() for coding in codings] != [b"chunked"]:
            self._rejection = ApiError(501, "The only Transfer-Encoding supported is chunked.")
        else:
            return
        raise _RejectedHeadError

    def _reject_large(self, what: str, limit: int = MAX_HEADER_BYTES) -> None:
        message = f"The request's {what} are larger than the limit of {limit} bytes."
        self._rejection = ApiError(431, message)

    def _reject_connection(self) -> None:
        self._rejected = True
        self._counts.num_rejected += 1
        if len(self.connections) > self._max_connections + MAX_LINGERING:
            self.transport.abort()
            return
        self._rejection = ApiError(503, "The server has as many connections as it may have.")
        self._write_rejection()

    def _write_rejection(self) -> None:
        body = error_bytes(self._rejection)
        headers = {
            "content-type": "application/json",
            "connection": "close",
            REQUEST_ID_HEADER.decode(): new_request_id().decode(),
            "content-length": str(len(body)),
        } | self._rejection.headers
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        status = STATUS_LINE[self._rejection.status]
        self.transport.write(b"%b%b\r\n%b" % (status, lines.encode(), body))
        self._close_after_reading()

    def _close_after_reading(self) -> None:
        """A connection that is closed on unread data is reset, and the client may never see why."""
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _start_head_timer(self) -> None:
        """Starts the timer unless it runs; it stops at the end of the next head."""
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEADER_SECONDS, self._head_too_slow)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_too_slow(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if not self._num_pending_bytes or not self._in_head:
            self.transport.close()
            return
        self._rejection = ApiError(408, f"The headers did not arrive within {HEADER_SECONDS:g} s.")
        self.send_400_response("")

    def _watch_writes(self) -> None:
        """Resets the connection when the client has read nothing for `STALL_SECONDS`.

        A connection that is closed, too: its last bytes would wait for ever to be read.
        """
        size = self.transport.get_write_buffer_size()
        last_size, num_equal = self._stalled
        num_equal = num_equal + 1 if size and size == last_size else 0
        self._stalled = (size, num_equal)
        if num_equal >= NUM_STALL_CHECKS:
            self._stall_timer = None
            self.transport.abort()
            return
        self._stall_timer = self.loop.call_later(
            STALL_SECONDS / NUM_STALL_CHECKS, self._watch_writes
        )
