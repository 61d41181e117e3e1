"""uvicorn's HTTP protocol with limits on the size and the duration of a request."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from taco_common.no_upgrade_protocol import NoUpgradeProtocol
from taco_license.document.license_file import MAX_BYTES

MAX_HEADER_BYTES = 16 << 10
# Higher than the limits of the application, which answers with a message.
MAX_REQUEST_BYTES = 3 * MAX_BYTES
REQUEST_SECONDS = 35.0


class BoundedHttpProtocol(NoUpgradeProtocol):
    """One connection. Rejects slow headers (408) and large headers (431), and closes connections
    with endless bodies.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_headers = True
        self._num_bytes = 0  # received bytes of the current request
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._start_timer()
        self._num_bytes += len(data)
        super().data_received(data)
        if self._in_headers and self._num_bytes > MAX_HEADER_BYTES:
            self._reject(431)
        elif self._num_bytes > MAX_REQUEST_BYTES:
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_timer()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_headers = True
        self._num_bytes = 0
        self._stop_timer()

    def _start_timer(self) -> None:
        """Starts the timeout of the current request, unless it runs already."""
        if self._timer is None:
            self._timer = self.loop.call_later(REQUEST_SECONDS, self._reject, 408)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _reject(self, status: int) -> None:
        """Closes the connection. Incomplete headers get an answer with `status`, unless another
        answer is being sent.
        """
        if self.transport.is_closing():
            return
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if self._in_headers and self._num_bytes and not is_answering:
            end = b"content-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[status] + end)
        self.transport.close()
