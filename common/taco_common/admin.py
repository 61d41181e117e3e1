"""The admin listener of every service: probes, metrics and drain, on a port or a Unix socket.

It serves kubelets, Prometheus and operators, and asks for no credentials. Slow clients and any
number of connections cost it little: headers, answers and connections are limited, and the idle
connections are closed first, so that a probe is always answered.

Starlette and uvicorn are imported when a listener is configured, not before.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from taco_common.listener import is_private, listen

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

# Permissions of a Unix socket: only the user that runs the service may connect.
ADMIN_SOCKET_MODE = 0o600

_MAX_CONNECTIONS = 64
_HEADER_BYTES = 8192
_HEADER_SECONDS = 2.0
_STALL_SECONDS = 10.0

logger = logging.getLogger("taco.admin")


class Readiness(NamedTuple):
    """Answer to `/readyz`.

    Attributes:
        is_ready: a load balancer may send requests.
        reason: the problem; empty: no problem. A service may be ready in spite of it.
    """

    is_ready: bool
    reason: str = ""


def warn_of_open_admin(log: logging.Logger, address: str) -> None:
    """Logs a warning if other machines reach the admin listener, which asks for no credentials."""
    if not is_private(address):
        log.warning("anyone who reaches the admin listener on %s sees the metrics", address)


def create_admin_app(
    check_ready: Callable[[], Awaitable[Readiness]],
    exposition: Callable[[], Awaitable[bytes]],
    drain: Callable[[], int] | None = None,
) -> "Starlette":
    """`GET /livez`, `GET /readyz`, `GET /metrics` and, where the service has it, `POST /drain`.

    Args:
        exposition: the metrics in Prometheus' text format.
        drain: rejects new requests from now on, and returns the number of running ones.
    """
    from prometheus_client import CONTENT_TYPE_LATEST
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    async def livez(_: "Request") -> "Response":
        """The event loop of the service answers, so it is not blocked."""
        return JSONResponse({"alive": True})

    async def readyz(_: "Request") -> "Response":
        is_ready, reason = await check_ready()
        body = {"ready": is_ready} | ({"reason": reason} if reason else {})
        return JSONResponse(body, status_code=200 if is_ready else 503)

    async def metrics(_: "Request") -> "Response":
        try:
            return Response(await exposition(), media_type=CONTENT_TYPE_LATEST)
        except Exception:
            logger.exception("cannot collect the metrics")
            return Response(status_code=500)

    async def post_drain(_: "Request") -> "Response":
        """May be repeated, to see how many requests are left."""
        assert drain is not None
        return JSONResponse({"draining": True, "active_requests": drain()})

    routes = [Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)]
    if drain is not None:
        routes.append(Route("/drain", post_drain, methods=["POST"]))
    return Starlette(routes=routes)


@asynccontextmanager
async def serving_admin(
    address: str | None,
    why_not_ready: Callable[[], str | None],
    exposition: Callable[[], Awaitable[bytes]],
) -> AsyncIterator[None]:
    """Serves the admin listener of a service without other HTTP, on the current event loop.

    Args:
        address: `host:port` or `unix:/path`; None: there is no listener.
        why_not_ready: the reason of a 503; None: the service is ready.
        exposition: the metrics in Prometheus' text format.

    Raises:
        ConfigurationError: the address is in use, or is not one of this machine.
    """
    if address is None:
        yield
        return

    async def check_ready() -> Readiness:
        reason = why_not_ready()
        return Readiness(reason is None, reason or "")

    with listen(address, unix_mode=ADMIN_SOCKET_MODE) as listener:
        async with serving_admin_app(
            create_admin_app(check_ready, exposition), listener, address, logger
        ):
            yield


@asynccontextmanager
async def serving_admin_app(
    app: "Starlette", listener: socket.socket, address: str, log: logging.Logger
) -> AsyncIterator[None]:
    """Serves `app` on `listener` while the context lasts.

    Args:
        address: of the listener, for the log.
    """
    import uvicorn

    from taco_common.http_protocol import (
        ConnectionCounts,
        ConnectionLimits,
        http_protocol,
        plain_error,
    )
    from taco_common.http_server import HttpServer

    limits = ConnectionLimits(
        max_connections=_MAX_CONNECTIONS,
        header_bytes=_HEADER_BYTES,
        header_seconds=_HEADER_SECONDS,
        stall_seconds=_STALL_SECONDS,
        evicts_idle=True,
    )
    config = uvicorn.Config(
        app,
        http=http_protocol(limits, ConnectionCounts(), plain_error),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    server = HttpServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    log.info("admin listener on %s", address)
    warn_of_open_admin(log, address)
    try:
        yield
    finally:
        server.should_exit = True
        await serving
