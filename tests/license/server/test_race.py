"""Concurrent lease requests to one server, and to two servers that share Redis."""

import asyncio
import itertools
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from support.ledgers import Harness, RedisHarness
from support.licenses import gpu_names, make_license, signed
from taco_license.server.server import BACKLOG, http_server
from taco_license.server.service import LicenseService

pytestmark = pytest.mark.slow

HEAD = b"POST /ls/lease HTTP/1.1\r\nHost: l\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"


@asynccontextmanager
async def listening(service: LicenseService) -> AsyncIterator[int]:
    """The port of a server."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    server = http_server(service)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    yield listener.getsockname()[1]
    server.should_exit = True
    await serving


async def ask(port: int, gpu: str) -> bytes:
    """The status of an answer over a separate connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"gpus": [gpu], "instance": gpu, "started": 1}).encode()
    writer.write(HEAD % len(body) + body)
    status = await reader.readline()
    await reader.read()
    writer.close()
    return status.split()[1]


async def test_a_thousand_connections_race_for_ten_seats(harness: Harness) -> None:
    services = [harness.service]
    if isinstance(harness, RedisHarness):
        services.append(await harness.another())
    await harness.service.import_license(signed(make_license(1000, access_limit=10)))
    async with AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(listening(service)) for service in services]
        asks = map(ask, itertools.cycle(ports), gpu_names(1000))
        assert Counter(await asyncio.gather(*asks)) == {b"200": 10, b"409": 990}
    assert len(harness.seats()) == 10
    for service in services[1:]:
        await service.ledger.close()
