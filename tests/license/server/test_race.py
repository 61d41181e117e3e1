"""Concurrent lease requests to one server, and to two servers that share Redis."""

import asyncio
import itertools
import json
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from support.ledgers import Harness, RedisHarness
from support.licenses import gpu_names, make_license, signed
from support.running_server import running
from taco_license.server.server import BACKLOG, http_server

pytestmark = pytest.mark.slow

HEAD = b"POST /ls/lease HTTP/1.1\r\nHost: l\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"


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
        servers = [running(http_server(service), BACKLOG) for service in services]
        ports = [await stack.enter_async_context(server) for server in servers]
        asks = map(ask, itertools.cycle(ports), gpu_names(1000))
        assert Counter(await asyncio.gather(*asks)) == {b"200": 10, b"409": 990}
    assert len(harness.seats()) == 10
    for service in services[1:]:
        await service.ledger.close()
