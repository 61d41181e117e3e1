"""Streamed and whole answers, cancelled as soon as the client disconnects."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from time import monotonic
from typing import Any, TypeVar

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from taco_common.http_protocol import ABORT_EXTENSION
from taco_gateway.api_errors import CLIENT_CLOSED_REQUEST, ApiError, as_api_error
from taco_gateway.http.sse_chunks import PING, error_frame
from taco_gateway.metrics import GatewayMetrics
from taco_gateway.request_log import note_failure

T = TypeVar("T")


async def until_disconnect(
    work: Coroutine[Any, Any, T], receive: Receive, metrics: GatewayMetrics
) -> T:
    """The result of `work`, which is cancelled if the client disconnects first.

    Raises:
        ApiError: 499, the client has disconnected.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        metrics.observe_disconnect()
        raise ApiError(CLIENT_CLOSED_REQUEST, "The client closed the connection.")
    finally:
        await _cancel(task, gone)


class EventStream(StreamingResponse):
    """A server-sent event stream with pings, a stall timeout and disconnect detection.

    The response begins with the first frame, so that a request that fails at once still gets its
    HTTP status. If the first frame takes longer than `ping_interval` seconds, the response begins
    without it. A later failure is an error frame that ends the stream. An idle stream sends a
    comment every `ping_interval` seconds. A client that blocks a write for `stall_timeout` seconds
    is disconnected.

    Args:
        frames: the generator of frames, which is always closed.
        error_frame: the frame of a failure.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        ping_interval: float,
        stall_timeout: float,
        metrics: GatewayMetrics,
        error_frame: Callable[[ApiError], bytes] = error_frame,
    ) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(frames, media_type="text/event-stream", headers=headers)
        self._frames = frames
        self._ping_interval = ping_interval
        self._stall_timeout = stall_timeout
        self._metrics = metrics
        self._error_frame = error_frame
        self._last_write = monotonic()  # when the latest write began
        self._num_writing = 0
        self._scope: Scope = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = asyncio.ensure_future(self._first_frame())
        gone = asyncio.ensure_future(_disconnected(receive))
        self._scope = scope
        writer: asyncio.Future[None] | None = None
        try:
            await asyncio.wait(
                (first, gone), timeout=self._ping_interval, return_when=asyncio.FIRST_COMPLETED
            )
            if first.done():
                first.result()  # a failure now gets an HTTP status, like that of any route
            writer = asyncio.ensure_future(self._write_all(first, send))
            if not await self._watch(writer, gone, send):
                self._metrics.observe_disconnect()
                note_failure(scope, CLIENT_CLOSED_REQUEST, "the client closed the connection")
                _abort(scope)
        finally:
            await _cancel(first, gone, *([writer] if writer else []))
            await self._frames.aclose()

    async def _watch(
        self, writer: asyncio.Future[None], gone: asyncio.Future[None], send: Send
    ) -> bool:
        """Waits until everything is written; False if the client is gone or does not read."""
        ping: asyncio.Future[None] | None = None
        try:
            while not writer.done():
                if gone.done():
                    return False
                quiet = self._quiet_for()
                if self._num_writing and quiet >= self._stall_timeout:
                    return False
                if not self._num_writing and quiet >= self._ping_interval:
                    # In a separate task, so that a ping that blocks counts as a stall.
                    ping = asyncio.ensure_future(self._write(PING, send))
                await asyncio.wait(
                    (writer, gone),
                    timeout=self._until_next_check(),
                    return_when=asyncio.FIRST_COMPLETED,
                )
            writer.result()
            return True
        finally:
            if ping is not None:
                await _cancel(ping)

    async def _first_frame(self) -> bytes:
        return await anext(self._frames, b"")

    async def _write_all(self, first: asyncio.Future[bytes], send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            await self._write(await first, send)
            async for frame in self._frames:
                await self._write(frame, send)
        except Exception as error:
            api_error = as_api_error(error)
            note_failure(self._scope, api_error.status, api_error.message)
            await self._write(self._error_frame(api_error), send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, body: bytes, send: Send) -> None:
        self._last_write = monotonic()
        self._num_writing += 1
        try:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        finally:
            self._num_writing -= 1

    def _until_next_check(self) -> float:
        if self._num_writing:
            wait = self._stall_timeout - self._quiet_for()
        else:
            wait = min(self._ping_interval - self._quiet_for(), self._stall_timeout)
        return max(wait, 0.001)

    def _quiet_for(self) -> float:
        return monotonic() - self._last_write


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _abort(scope: Scope) -> None:
    """Resets the connection without waiting for the client to read."""
    extension = scope.get("extensions", {}).get(ABORT_EXTENSION)
    if extension is not None:
        extension["abort"]()
