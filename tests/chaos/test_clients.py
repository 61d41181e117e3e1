"""Clients that do not read, and clients that go."""

import asyncio
import contextlib
import json
import socket
from typing import Any

from support.cluster import Cluster
from support.patience import until
from support.streams import Answer, assert_same

Bodies = list[dict[str, Any]]
NUM_DISCONNECTS = 500


def request(body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    return (
        b"POST /v1/completions HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(content), content)
    )


async def test_a_client_that_hardly_reads_is_cut_off(
    cluster: Cluster, bodies: Bodies, expected: list[Answer]
) -> None:
    # A megabyte in one frame, then some more: no buffer of the kernel's takes all of it.
    body = {
        "prompt": "How do I read a file? " * 100,
        "echo": True,
        "logprobs": 20,
        "max_tokens": 200,
        "ignore_eos": True,
        "stream": True,
    }
    before = await cluster.gateway_figure("taco:client_disconnects_total")

    async def is_cut_off() -> bool:
        with contextlib.suppress(ConnectionResetError):
            reader.recv(1)
        return await cluster.gateway_figure("taco:client_disconnects_total") > before

    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        reader.connect(("127.0.0.1", cluster.port()))
        reader.sendall(request(body))
        async with cluster.streams(bodies) as streams:
            await streams.reach(10)
            await until(is_cut_off, "the end of the client's patience")
            assert_same(await streams.finish(), expected)
    await cluster.until_idle()


async def test_500_disconnects_leave_nothing_behind(
    cluster: Cluster, bodies: Bodies, expected: list[Answer]
) -> None:
    async def all_are_there() -> bool:
        stats = await cluster.stats()
        return stats.num_running + stats.num_waiting >= NUM_DISCONNECTS

    writers = []
    for number in range(NUM_DISCONNECTS):
        _, writer = await asyncio.open_connection("127.0.0.1", cluster.port())
        body = bodies[number % len(bodies)]
        writer.write(request(body | {"max_tokens": 900, "stream": number % 2 == 0}))
        writers.append(writer)
    await until(all_are_there, "all requests")
    assert (await cluster.stats()).num_running > 0
    for writer in writers:
        writer.transport.abort()
    await cluster.until_idle()
    async with cluster.streams(bodies) as streams:
        assert_same(await streams.finish(), expected)
