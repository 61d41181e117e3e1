"""A minimal HTTP/1.1 client: sends a request and passes on the answer as it arrives.

It uses asyncio protocols and httptools directly, since the client must take little CPU time from
the server on the same machine: a few microseconds per chunk, where general HTTP libraries need
tens.
"""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from time import perf_counter
from typing import Protocol

import httptools

from taco_llm.args.server_url import parse_server_url
from taco_proto.errors import ConfigurationError

CONNECT_SECONDS = 10.0


class Receiver(Protocol):
    """The interface of a reader of an answer."""

    def begin(self, status: int) -> None: ...

    def feed(self, body: bytes, now: float) -> None:
        """Takes a piece of the body that arrived at `now`, in seconds of `perf_counter`."""


class Server:
    """The server under test: the parts of its URL, its resolved address, TLS.

    Raises:
        ConfigurationError: `url` is not an http or https URL.
    """

    def __init__(self, url: str) -> None:
        parts = parse_server_url(url)
        assert parts.hostname is not None
        self.url = url
        self.host = parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.path = parts.path.rstrip("/")
        self.host_header = parts.netloc.rpartition("@")[2]
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._address = self.host

    def find(self) -> None:
        """Connects once: checks that the server is up, and resolves its address for all requests.

        Raises:
            ConfigurationError: the connection fails.
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
        """Sends `request` on a new connection and waits for the end of the answer.

        Returns:
            When the request was written, in seconds of `perf_counter`. Connecting does not count as
            part of the request's time, since real clients reuse connections.

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
    """Parses the answer. The future `done` completes at its end."""

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
        # An answer without a length ends with the connection. The receiver checks completeness.
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
