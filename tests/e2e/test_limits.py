"""A scheduler process at its limits of file descriptors and memory."""

import os
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import psutil

from support.fake_worker import FakeWorker, worker_info
from support.grpc_peers import WorkerPeer, dial
from support.patience import PATIENCE_SECONDS, until
from support.serving import free_port
from taco_proto import scheduler_pb2 as pb
from taco_proto.scheduler_pb2_grpc import SchedulerStub
from taco_scheduler.admission.validation import MAX_BLOCKS

SPARE_DESCRIPTORS = 8
MEBIBYTE = 2**20


async def answers(stub: SchedulerStub) -> bool:
    try:
        await stub.Stats(pb.StatsRequest(), timeout=PATIENCE_SECONDS)
    except grpc.aio.AioRpcError:
        return False
    return True


def start_scheduler(address: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "taco_llm.cli.main", "scheduler", "--listen", address]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@asynccontextmanager
async def scheduler() -> AsyncIterator[tuple[str, psutil.Process]]:
    address = f"127.0.0.1:{free_port()}"
    process = start_scheduler(address)
    try:
        async with dial(address) as stub:

            async def is_up() -> bool:
                assert process.poll() is None
                return await answers(stub)

            await until(is_up, "the scheduler")
        yield address, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


async def test_streams_continue_without_free_file_descriptors() -> None:
    async with scheduler() as (address, process), dial(address) as stub:
        assert await answers(stub)
        host, _, port = address.rpartition(":")
        host_and_port = (host, int(port))
        _, hard = process.rlimit(resource.RLIMIT_NOFILE)
        most = max(map(int, os.listdir(f"/proc/{process.pid}/fd"))) + SPARE_DESCRIPTORS
        process.rlimit(resource.RLIMIT_NOFILE, (most, hard))
        # The kernel completes these connections; the process can accept only some of them.
        hoard = [socket.create_connection(host_and_port) for _ in range(4 * SPARE_DESCRIPTORS)]

        async def is_full() -> bool:
            return process.num_fds() >= most - 1

        await until(is_full, "the last descriptor")
        assert await answers(stub), "a stream that stands does not notice"
        for connection in hoard:
            connection.close()
        async with dial(address) as late:
            await until(lambda: answers(late), "a new connection")


async def test_a_worker_with_the_maximum_of_blocks_needs_no_memory() -> None:
    async with scheduler() as (address, process), dial(address) as stub:
        before = process.memory_info().rss
        claims = {
            "num_blocks": MAX_BLOCKS,
            "num_host_blocks": MAX_BLOCKS,
            "num_disk_blocks": MAX_BLOCKS,
        }
        peers = [WorkerPeer(stub, FakeWorker(worker_info(num_blocks=8))) for _ in range(4)]
        for number, peer in enumerate(peers):
            peer.worker.info = worker_info(name=f"hog-{number}", **claims)
            await peer.hello()

        async def all_are_attached() -> bool:
            stats = await stub.Stats(pb.StatsRequest())
            return bool(stats.num_workers == len(peers))

        await until(all_are_attached, "the workers")
        grown = process.memory_info().rss - before
        assert grown < 100 * MEBIBYTE, f"{grown / MEBIBYTE:.0f} MiB for claims alone"
        for peer in peers:
            peer.call.cancel()
