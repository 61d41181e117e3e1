"""Speaks ASGI to an application directly: for clients that go away, or do not read."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class AsgiCall:
    """One POST of a JSON body.

    Args:
        on_body: awaited with every body chunk; the application's `send` waits for it.
    """

    def __init__(
        self,
        app: ASGIApp,
        path: str,
        body: Mapping[str, Any],
        on_body: Callable[[bytes], Awaitable[None]] | None = None,
        extensions: Mapping[str, Any] | None = None,
    ) -> None:
        self.status: int | None = None
        self.chunks: list[bytes] = []
        self._app = app
        self._on_body = on_body
        self._gone = asyncio.Event()
        self._inbox: list[Message] = [
            {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        ]
        self._scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"test"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "extensions": dict(extensions or {}),
        }

    async def run(self) -> None:
        await self._app(self._scope, self._receive, self._send)
        self._gone.set()

    def disconnect(self) -> None:
        self._gone.set()

    async def _receive(self) -> Message:
        if self._inbox:
            return self._inbox.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        if message.get("body"):
            self.chunks.append(message["body"])
            if self._on_body is not None:
                await self._on_body(message["body"])


class AddHeader:
    """A middleware as an ASGI class."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-class", b"yes")]
            await send(message)

        await self._app(scope, receive, send_with_header)


async def add_other_header(
    request: Request, call_next: Callable[[Request], Awaitable[Response]]
) -> Response:
    """A middleware as a function."""
    response = await call_next(request)
    response.headers["x-function"] = "yes"
    return response
