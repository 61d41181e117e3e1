"""One HTTP/1.1 exchange: writes a request, hands on what comes back as it comes.

Written on asyncio's protocols and httptools because the client must take little of the machine that
the server runs on: a chunk costs a few microseconds, where general HTTP libraries take tens.
"""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from time import perf_counter
from typing import Protocol
from urllib.parse import urlsplit

import httptools

from taco_proto.errors import ConfigurationError

CONNECT_SECONDS = 10.0


class Receiver(Protocol):
    """Who reads an answer."""

    def begin(self, status: int) -> None: ...

    def feed(self, body: bytes, now: float) -> None:
        """Reads a piece of the body that arrived at `now`, in seconds of `perf_counter`."""


class Server:
    """Where requests go: the parts of a URL, the address found once, TLS.

    Raises:
        ConfigurationError: `url` is no http or https URL.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigurationError(f"{url!r} is no URL: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(f"{url!r} is no http or https URL")
        self.url = url
        self.host = parts.hostname
        self.port = port or (443 if parts.scheme == "https" else 80)
        self.path = parts.path.rstrip("/")
        self.host_header = parts.netloc.rpartition("@")[2]
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._address = self.host

    def find(self) -> None:
        """Connects once, so that requests need no name service and an absent server is told.

        Raises:
            ConfigurationError: nothing answers there.
        """
        try:
            with socket.create_connection((self.host, self.port), CONNECT_SECONDS) as connection:
                self._address = connection.getpeername()[0]
        except OSError as error:
            reason = error.strerror or str(error) or "no answer"
            raise ConfigurationError(f"cannot connect to {self.url}: {reason}") from None

    def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> bytes:
        """The bytes of a request."""
        lines = [
            f"{method} {self.path}{path} HTTP/1.1",
            f"Host: {self.host_header}",
            "Connection: close",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "\r\n"]).encode() + body

    async def exchange(self, request: bytes, receiver: Receiver) -> float:
        """Sends `request` on a connection of its own and waits for the end of the answer.

        Returns when the request was written, in seconds of `perf_counter`: connecting is not part
        of a request's time, as clients keep their connections.

        Raises:
            OSError: the connection failed or broke off.
            httptools.HttpParserError: the answer is not HTTP.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        transport, _ = await loop.create_connection(
            lambda: _Exchange(receiver, done),
            self._address,
            self.port,
            ssl=self.tls,
            server_hostname=self.host if self.tls else None,
        )
        try:
            sent = perf_counter()
            transport.write(request)
            await done
        finally:
            transport.close()
        return sent


class _Exchange(asyncio.Protocol):
    """Parses the answer; `done` ends with it."""

    def __init__(self, receiver: Receiver, done: "asyncio.Future[None]") -> None:
        self._receiver = receiver
        self._done = done
        self._parser = httptools.HttpResponseParser(self)
        self._now = 0.0

    def data_received(self, data: bytes) -> None:
        self._now = perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(error.__context__ or error)

    def connection_lost(self, error: Exception | None) -> None:
        # An answer without a length ends with its connection; whether it is whole, its reader sees.
        if error is not None:
            self._fail(error)
        elif not self._done.done():
            self._done.set_result(None)

    def on_headers_complete(self) -> None:
        self._receiver.begin(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        self._receiver.feed(body, self._now)

    def on_message_complete(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: BaseException) -> None:
        if not self._done.done():
            self._done.set_exception(error)
