"""The admin listener of a service that serves no HTTP otherwise: probes and metrics.

It is for kubelets and Prometheus: three pages, no keys, one request a connection. Everything is
bounded, so that a client that is slow or mad costs a connection for a few seconds and nothing else;
connections that say nothing give way to new ones, so that a probe is answered beside any number.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

from taco_common.listener import is_private, listen

# Who may connect to a listener on a Unix socket: the user that runs the service.
ADMIN_SOCKET_MODE = 0o600

_MAX_CONNECTIONS = 32
_MAX_HEAD_BYTES = 8192
_HEAD_SECONDS = 2.0
_ANSWER_SECONDS = 10.0
_JSON = "application/json"
_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"

logger = logging.getLogger("taco.admin")


def warn_of_open_admin(log: logging.Logger, address: str) -> None:
    """Log a warning if other machines reach an admin listener, which asks for no credentials."""
    if not is_private(address):
        log.warning("anyone who reaches the admin listener on %s sees the metrics", address)


@asynccontextmanager
async def serving_admin(
    address: str | None,
    why_not_ready: Callable[[], str | None],
    exposition: Callable[[], Awaitable[bytes]],
) -> AsyncIterator[None]:
    """Answers `GET /livez`, `/readyz` and `/metrics` on the event loop that it is entered on.

    That loop is what `/livez` tells of: it answers 200 as long as the loop ticks.

    Args:
        address: `host:port` or `unix:/path`; None: there is no listener.
        why_not_ready: the reason of a 503; None: the service is ready.
        exposition: the metrics in Prometheus' text format.

    Raises:
        ConfigurationError: the address is in use, or none of this machine.
    """
    if address is None:
        yield
        return
    pages = _Pages(why_not_ready, exposition)
    with listen(address, unix_mode=ADMIN_SOCKET_MODE) as listener:
        server = await asyncio.start_server(pages.serve, sock=listener, limit=_MAX_HEAD_BYTES)
        logger.info("admin listener on %s", address)
        warn_of_open_admin(logger, address)
        try:
            yield
        finally:
            server.close()
            await pages.close()


class _Pages:
    def __init__(
        self,
        why_not_ready: Callable[[], str | None],
        exposition: Callable[[], Awaitable[bytes]],
    ) -> None:
        self._why_not_ready = why_not_ready
        self._exposition = exposition
        self._serving: set[asyncio.Task[None]] = set()
        # Those without a whole head, the oldest first.
        self._silent: dict[asyncio.StreamWriter, None] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request and its answer."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._silent[writer] = None
        try:
            if len(self._serving) > _MAX_CONNECTIONS:
                oldest = next(iter(self._silent))
                del self._silent[oldest]
                oldest.transport.abort()
            await self._exchange(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client went away, or is too slow
        finally:
            self._serving.discard(task)
            self._silent.pop(writer, None)
            writer.transport.abort()  # which does nothing to one that was closed in order

    async def close(self) -> None:
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # All of it is to be on its way before the connection ends.
        writer.transport.set_write_buffer_limits(0)
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            answer = _answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            answer = await self._respond(head)
        self._silent.pop(writer, None)
        async with asyncio.timeout(_ANSWER_SECONDS):
            writer.write(answer)
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    async def _respond(self, head: bytes) -> bytes:
        words = head.partition(b"\r\n")[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _answer(HTTPStatus.BAD_REQUEST)
        method, path = words[0], words[1].partition(b"?")[0]
        page = {b"/livez": _livez, b"/readyz": self._readyz, b"/metrics": self._metrics}.get(path)
        if page is None:
            return _answer(HTTPStatus.NOT_FOUND)
        if method != b"GET":
            return _answer(HTTPStatus.METHOD_NOT_ALLOWED, headers="Allow: GET\r\n")
        try:
            return await page()
        except Exception:
            logger.exception("no answer to GET %s", path.decode())
            return _answer(HTTPStatus.INTERNAL_SERVER_ERROR)

    async def _readyz(self) -> bytes:
        reason = self._why_not_ready()
        if reason is None:
            return _answer(HTTPStatus.OK, _json(ready=True), _JSON)
        body = _json(ready=False, reason=reason)
        return _answer(HTTPStatus.SERVICE_UNAVAILABLE, body, _JSON)

    async def _metrics(self) -> bytes:
        return _answer(HTTPStatus.OK, await self._exposition(), _EXPOSITION)


async def _livez() -> bytes:
    return _answer(HTTPStatus.OK, _json(alive=True), _JSON)


def _json(**values: object) -> bytes:
    return json.dumps(values).encode()


def _answer(
    status: HTTPStatus, body: bytes = b"", content_type: str = "text/plain", headers: str = ""
) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n{headers}\r\n"
    )
    return head.encode() + body
