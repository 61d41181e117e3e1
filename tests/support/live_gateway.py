"""An application behind a real HTTP server on a port of this machine, in the test's own loop."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from support.gateway_app import App
from support.patience import PATIENCE_SECONDS
from taco_gateway.admin import admin_uvicorn_config
from taco_gateway.server import GatewayServer, uvicorn_config


@asynccontextmanager
async def serve(app: App, *, admin: bool = False) -> AsyncIterator[int]:
    """Gives the port. `admin`: of the admin listener."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = (
        admin_uvicorn_config(app.gateway) if admin else uvicorn_config(app.gateway.config, app.app)
    )
    server = GatewayServer(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task


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
