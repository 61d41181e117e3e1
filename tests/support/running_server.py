"""A uvicorn server in the test's own loop, on a port of this machine."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn


@asynccontextmanager
async def running(server: uvicorn.Server, backlog: int | None = None) -> AsyncIterator[int]:
    """Gives the port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=backlog)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task
