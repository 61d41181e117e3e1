"""HTTP/1.1 connections with limits on time, bytes and their number, for every listener on uvicorn.

Requests that never reach the application (broken framing, endless headers, one connection too many)
get an error of the listener's own format. Every state of a connection has a timer:

| state | limit | ends with |
|---|---|---|
| no request yet, or between requests | uvicorn's keep-alive, at most `header_seconds` | close |
| the header of a request arrives | `header_seconds` | 408 |
| a body arrives | the application's own | 408 |
| the rest of a body arrives after its answer | `header_seconds` | close |
| an answer is written, or the connection closes | `stall_seconds` without progress | reset |

The class overrides methods of uvicorn that are no public interface. `pyproject.toml` bounds
uvicorn's version, and tests/common/test_uvicorn_internals.py names each method and attribute.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from taco_common.no_upgrade_protocol import NoUpgradeProtocol

MAX_HEADER_BYTES = 48 * 1024
MAX_TRAILER_BYTES = 8 * 1024
HEADER_SECONDS = 30.0
LINGER_SECONDS = 1.0
STALL_SECONDS = 30.0
NUM_STALL_CHECKS = 3  # samples of the write buffer that must be equal
MAX_LINGERING = 64  # rejected connections that still get an answer
ABORT_EXTENSION = "taco.abort"

# Status and message of a rejection to the headers and the body of its answer.
ErrorFormat = Callable[[int, str], tuple[Mapping[str, str], bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of one listener.

    Attributes:
        max_connections: connections at a time.
        header_bytes: largest header of a request.
        header_seconds: time within which a header must arrive.
        stall_seconds: time after which a client that reads nothing is disconnected.
        evicts_idle: over `max_connections`, close the connection that has sent no header for the
            longest time; otherwise reject the new one with 503.
    """

    max_connections: int
    header_bytes: int = field(default_factory=lambda: MAX_HEADER_BYTES)
    header_seconds: float = field(default_factory=lambda: HEADER_SECONDS)
    stall_seconds: float = field(default_factory=lambda: STALL_SECONDS)
    evicts_idle: bool = False


@dataclass(slots=True)
class ConnectionCounts:
    """Connections of one listener.

    Attributes:
        num_open: connections now.
        num_rejected: connections closed because `max_connections` were open.
        idle: connections without a whole header, the oldest first.
    """

    num_open: int = 0
    num_rejected: int = 0
    idle: "dict[BoundedHttpProtocol, None]" = field(default_factory=dict)


def http_protocol(
    limits: ConnectionLimits, counts: ConnectionCounts, error_format: ErrorFormat
) -> type[asyncio.Protocol]:
    """The protocol of one listener, for `uvicorn.Config(http=…)`."""
    maker = partial(BoundedHttpProtocol, limits=limits, counts=counts, error_format=error_format)
    return cast(type[asyncio.Protocol], maker)  # uvicorn calls it and nothing else


def plain_error(status: int, message: str) -> tuple[Mapping[str, str], bytes]:
    """A JSON object with the message."""
    return {"content-type": "application/json"}, json.dumps({"error": message}).encode()


class _RejectedHeaderError(Exception):
    """Raised inside a parser callback; httptools reports it as a parser error."""


class BoundedHttpProtocol(NoUpgradeProtocol):
    """One HTTP connection.

    It rejects with 400 (framing, Host), 408 (slow header), 431 (large header or trailers), 501
    (transfer coding) and 503 (too many connections). It drops trailers of a chunked body, which are
    no headers (RFC 9110, section 6.5.1), and ignores `Upgrade`.

    Args:
        counts: shared by all connections of the listener.
        error_format: writes rejections.
    """

    def __init__(
        self,
        *args: Any,
        limits: ConnectionLimits,
        counts: ConnectionCounts,
        error_format: ErrorFormat,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._counts = counts
        self._error_format = error_format
        self._in_header = True  # else in a body, or in its trailers
        self._rejected = False
        self._num_pending_bytes = 0  # received since the last whole header or piece of a body
        self._num_trailer_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._stalled = (0, 0)  # size of the write buffer, and how many samples were equal
        self._rejection = (400, "The HTTP request is malformed.")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._counts.num_open += 1
        self._counts.idle[self] = None
        self._watch_writes()
        if len(self.connections) <= self._limits.max_connections:
            self._start_header_timer()
        elif self._limits.evicts_idle:
            self._counts.num_rejected += 1
            oldest = next(iter(self._counts.idle))
            del self._counts.idle[oldest]
            oldest.transport.abort()
            self._start_header_timer()
        else:
            self._reject_connection()

    def connection_lost(self, exc: Exception | None) -> None:
        self._counts.num_open -= 1
        self._counts.idle.pop(self, None)
        self._stop_header_timer()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._rejected:
            return
        self._num_pending_bytes += len(data)
        super().data_received(data)
        if self._num_pending_bytes > self._limits.header_bytes and not self._rejected:
            self._reject_large("headers" if self._in_header else "chunk headers or trailers")
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_header = True
        self.scope["extensions"] = {ABORT_EXTENSION: {"abort": self.transport.abort}}
        self._start_header_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_header:
            super().on_header(name, value)
            return
        self._num_trailer_bytes += len(name) + len(value) + 4
        if self._num_trailer_bytes > MAX_TRAILER_BYTES:
            self._reject_large("trailers", MAX_TRAILER_BYTES)
            raise _RejectedHeaderError

    def on_headers_complete(self) -> None:
        self._stop_header_timer()
        self._check_header()
        self._in_header = False
        self._counts.idle.pop(self, None)
        self._num_pending_bytes = self._num_trailer_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_pending_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._num_pending_bytes = 0
        self._in_header = True

    def on_response_complete(self) -> None:
        has_next = bool(self.pipeline)  # its header is whole, and its answer may take long
        super().on_response_complete()
        if not has_next and not self.transport.is_closing():
            # uvicorn's keep-alive timer ends with the next byte, whatever that is.
            self._start_header_timer()
            self._counts.idle[self] = None

    def send_400_response(self, msg: str) -> None:
        """Answers with the rejection, if nothing else is being answered, and closes."""
        self._rejected = True
        self._stop_header_timer()
        cycle = self.cycle
        if cycle is not None and not self._in_header:  # the cycle of the rejected request
            if cycle.response_started or self.pipeline:
                self.transport.close()
                return
            cycle.disconnected = True  # it was still reading its body
            cycle.message_event.set()
        elif cycle is not None and not cycle.response_complete:  # of an earlier request
            self.transport.close()
            return
        self._write_rejection()

    def _check_header(self) -> None:
        """Raises:
        _RejectedHeaderError: the header is too large, or RFC 9112 forbids it.
        """
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        is_old = self.parser.get_http_version() in ("0.9", "1.0")
        num_hosts = sum(name == b"host" for name, _ in self.headers)
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if size > self._limits.header_bytes:
            self._reject_large("headers")
        elif num_hosts > 1 or not (num_hosts or is_old):
            self._rejection = (400, f"A request needs one Host header, got {num_hosts}.")
        elif codings and is_old:
            self._rejection = (400, "HTTP/1.0 has no Transfer-Encoding.")
        elif codings and [coding.strip().lower() for coding in codings] != [b"chunked"]:
            self._rejection = (501, "The only Transfer-Encoding supported is chunked.")
        else:
            return
        raise _RejectedHeaderError

    def _reject_large(self, what: str, limit: int | None = None) -> None:
        limit = self._limits.header_bytes if limit is None else limit
        self._rejection = (431, f"The request's {what} are larger than the limit of {limit} bytes.")

    def _reject_connection(self) -> None:
        self._rejected = True
        self._counts.num_rejected += 1
        if len(self.connections) > self._limits.max_connections + MAX_LINGERING:
            self.transport.abort()
            return
        self._rejection = (503, "The server has as many connections as it may have.")
        self._write_rejection()

    def _write_rejection(self) -> None:
        number, message = self._rejection
        headers, body = self._error_format(number, message)
        headers = {**headers, "connection": "close", "content-length": str(len(body))}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        status = STATUS_LINE[number]
        self.transport.write(b"%b%b\r\n%b" % (status, lines.encode(), body))
        self._close_after_reading()

    def _close_after_reading(self) -> None:
        """Closing with unread data resets the connection: the client may not see the answer."""
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _start_header_timer(self) -> None:
        """Starts the timer unless it runs; it stops at the end of the next header."""
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(
                self._limits.header_seconds, self._header_too_slow
            )

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _header_too_slow(self) -> None:
        self._header_timer = None
        if self.transport.is_closing():
            return
        if not self._num_pending_bytes or not self._in_header:
            self.transport.close()
            return
        seconds = self._limits.header_seconds
        self._rejection = (408, f"The headers did not arrive within {seconds:g} s.")
        self.send_400_response("")

    def _watch_writes(self) -> None:
        """Resets the connection when the client has read nothing for `stall_seconds`.

        This includes closing connections, whose last bytes would wait without end to be read.
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
            self._limits.stall_seconds / NUM_STALL_CHECKS, self._watch_writes
        )
