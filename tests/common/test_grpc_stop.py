"""A stopped gRPC server leaves no tasks of its calls behind."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from support.patience import PATIENCE_SECONDS
from taco_common.grpc_stop import stop_server

Context = grpc.aio.ServicerContext[Any, Any]
Talk = Callable[[AsyncIterator[bytes], Context], Awaitable[None]]


async def start_server(talk: Talk) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server()
    handlers: dict[str, Any] = {"Talk": grpc.stream_stream_rpc_method_handler(talk)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


def call(channel: grpc.Channel) -> list[bytes]:
    """All replies until the call ends, read in this thread."""
    replies: list[bytes] = []
    try:
        replies.extend(channel.stream_stream("/test/Talk")(iter(()), timeout=PATIENCE_SECONDS))
    except grpc.RpcError:
        replies.append(b"cancelled")
    return replies


@pytest.mark.parametrize(("grace", "reply"), [(None, b"cancelled"), (10.0, b"bye")])
async def test_no_task_of_a_call_is_left(grace: float | None, reply: bytes) -> None:
    before = asyncio.all_tasks()
    for _ in range(20):  # whether a task or the core of gRPC ends first is a matter of luck
        running, ending = asyncio.Event(), asyncio.Event()

        async def talk(
            requests: AsyncIterator[bytes],
            context: Context,
            running: asyncio.Event = running,
            ending: asyncio.Event = ending,
        ) -> None:
            running.set()
            await ending.wait()
            await context.write(b"bye")

        server, port = await start_server(talk)
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            replies = asyncio.get_running_loop().run_in_executor(None, call, channel)
            await running.wait()
            if grace is not None:
                ending.set()
            await stop_server(server, grace)
            assert asyncio.all_tasks() == before
            assert await replies == [reply]


async def test_a_call_that_cannot_be_cancelled_does_not_hold_the_stop() -> None:
    running, ending = asyncio.Event(), asyncio.Event()

    async def talk(requests: AsyncIterator[bytes], context: Context) -> None:
        running.set()
        while not ending.is_set():
            try:
                await ending.wait()
            except asyncio.CancelledError:
                continue

    before = asyncio.all_tasks()
    server, port = await start_server(talk)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        replies = asyncio.get_running_loop().run_in_executor(None, call, channel)
        await running.wait()
        await stop_server(server, None)
        left = asyncio.all_tasks() - before
        assert left
        ending.set()
        await asyncio.wait(left)
        assert await replies == [b"cancelled"]
