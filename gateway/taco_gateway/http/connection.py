"""uvicorn's HTTP protocol with what a public port needs beside it.

Requests that never become a request (broken framing, endless headers) are answered in OpenAI's
envelope too, and an application may cut a connection whose client has stopped reading.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from taco_gateway.errors import ApiError, error_bytes
from taco_gateway.http.request_id import REQUEST_ID_HEADER, new_request_id

MAX_HEADER_BYTES = 48 * 1024
HEADER_SECONDS = 30.0
LINGER_SECONDS = 1.0
ABORT_EXTENSION = "taco.abort"


class _RefusedHeadersError(Exception):
    pass


class GatewayHttpProtocol(HttpToolsProtocol):
    """One connection. Refuses with 400 (framing), 408 (slow headers) and 431 (large headers)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_headers = True
        self._refused = False
        self._num_header_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None
        self._refusal = ApiError(400, "The HTTP request is malformed.")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self._headers_too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._num_header_bytes += len(data)
        super().data_received(data)
        if self._in_headers and self._num_header_bytes > MAX_HEADER_BYTES:
            self._refuse_large_headers()
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        self.scope["extensions"] = {ABORT_EXTENSION: {"abort": self.transport.abort}}
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(HEADER_SECONDS, self._headers_too_slow)

    def on_headers_complete(self) -> None:
        self._stop_header_timer()
        self._in_headers = False
        self._num_header_bytes = 0
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEADER_BYTES:
            self._refuse_large_headers()
            raise _RefusedHeadersError  # httptools hands it on as a parser error
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._num_header_bytes = 0
        self._in_headers = True

    def send_400_response(self, msg: str) -> None:
        """Answers with the refusal that stands, and closes."""
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            # Another answer is on its way on this connection: nothing may be put in between.
            self.transport.close()
            return
        self._refused = True
        self._stop_header_timer()
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # it was still reading its body
            cycle.message_event.set()
        body = error_bytes(self._refusal)
        self.transport.write(
            b"".join(
                [
                    STATUS_LINE[self._refusal.status],
                    b"content-type: application/json\r\nconnection: close\r\n",
                    b"%b: %b\r\n" % (REQUEST_ID_HEADER, new_request_id()),
                    b"content-length: %d\r\n\r\n" % len(body),
                    body,
                ]
            )
        )
        self._close_after_reading()

    def _close_after_reading(self) -> None:
        """A connection that is closed on unread data is reset, and the client may never see why."""
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _refuse_large_headers(self) -> None:
        message = f"The request's headers are larger than the limit of {MAX_HEADER_BYTES} bytes."
        self._refusal = ApiError(431, message)

    def _headers_too_slow(self) -> None:
        self._header_timer = None
        if self.transport.is_closing():
            return
        if not self._num_header_bytes:
            self.transport.close()
            return
        self._refusal = ApiError(408, f"The headers did not arrive within {HEADER_SECONDS:g} s.")
        self.send_400_response("")

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
