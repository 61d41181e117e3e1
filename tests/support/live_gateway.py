"""An application behind a real HTTP server on a port of this machine, in the test's own loop."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from support.gateway_app import App
from support.patience import PATIENCE_SECONDS
from support.running_server import running
from taco_common.admin import serving_admin_app
from taco_gateway.admin import gateway_admin_app
from taco_gateway.server import GatewayServer, uvicorn_config

logger = logging.getLogger("tests")


@asynccontextmanager
async def serve(app: App, *, admin: bool = False) -> AsyncIterator[int]:
    """Gives the port. `admin`: of the admin listener."""
    if admin:
        listener = socket.create_server(("127.0.0.1", 0))
        admin_app = gateway_admin_app(app.gateway)
        async with serving_admin_app(admin_app, listener, "127.0.0.1:0", logger):
            yield listener.getsockname()[1]
        return
    async with running(GatewayServer(uvicorn_config(app.gateway.config, app.app))) as port:
        yield port


async def exchange(port: int, request: bytes, *, until_close: bool = True) -> bytes:
    """Sends bytes and reads the answer: all of it, or only its first piece."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        await writer.drain()
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await (reader.read() if until_close else reader.read(65536))
    finally:
        writer.close()
