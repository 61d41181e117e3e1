"""Two workers on one scheduler: one is killed, another is drained."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.checkpoints import make_checkpoint
from support.engine_driver import Received, make_request
from support.grpc_peers import GatewayPeer, dial
from support.patience import PATIENCE_SECONDS, until
from taco_proto import scheduler_pb2 as pb
from taco_proto.config import SchedulerConfig
from taco_proto.scheduler_pb2_grpc import SchedulerStub
from taco_scheduler.server.grpc_server import SchedulerServer
from taco_scheduler.server.service import SchedulerService

NUM_STREAMS = 16
MAX_TOKENS = 96


class Worker:
    """A process of `taco_llm worker`."""

    def __init__(self, checkpoint: Path, address: str, name: str, log: Path) -> None:
        arguments = ["--scheduler", address, "--name", name, "--num-threads", "1"]
        with log.open("wb") as err:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "taco_llm.cli.main", "worker", str(checkpoint)),
                    *arguments,
                    *("--num-gpu-blocks-override", "256"),
                ],
                stderr=err,
            )


@contextlib.contextmanager
def start(directory: Path, checkpoint: Path, address: str, *names: str) -> Iterator[list[Worker]]:
    workers = [Worker(checkpoint, address, name, directory / f"{name}.err") for name in names]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.wait()


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[SchedulerService]:
    service = SchedulerService(SchedulerConfig(log_stats=False))
    server = SchedulerServer(service, f"unix:{tmp_path}/scheduler.sock")
    await service.start()
    await server.start()
    yield service
    await service.stop()
    await server.stop()


async def wait_for_workers(stub: SchedulerStub, count: int) -> None:
    async def are_there() -> bool:
        return (await stub.Stats(pb.StatsRequest())).num_workers >= count

    await until(are_there, f"{count} workers")


async def stream(stub: SchedulerStub) -> GatewayPeer:
    """16 streams, each of which has got some of its tokens."""
    peer = GatewayPeer(stub)
    await peer.hello()
    for handle in range(NUM_STREAMS):
        prompt = [3 + (7 * handle + i) % 200 for i in range(20)]
        await peer.submit(
            make_request(handle, prompt, max_tokens=MAX_TOKENS, ignore_eos=True, temperature=0.0)
        )
    await peer.read_until(lambda got: len(got.tokens) == NUM_STREAMS)
    return peer


async def finish(peer: GatewayPeer) -> Received:
    received = await peer.read_ends(NUM_STREAMS)
    peer.call.cancel()
    assert not received.errors
    return received


async def test_no_token_is_lost_or_changed_when_workers_die_and_leave(
    service: SchedulerService, tmp_path: Path
) -> None:
    checkpoint = make_checkpoint(tmp_path / "model")
    address = f"unix:{tmp_path}/scheduler.sock"
    async with dial(address) as stub:
        with start(tmp_path, checkpoint, address, "a", "b", "c") as (a, b, _):
            await wait_for_workers(stub, 3)
            expected = (await finish(await stream(stub))).tokens

            peer = await stream(stub)
            running = {replica.name: replica.num_running for replica in service.engine.replicas}
            assert running["b"] > 0
            b.process.kill()
            assert (await finish(peer)).tokens == expected
            assert service.num_workers == 2

            peer = await stream(stub)
            a.process.terminate()
            assert (await finish(peer)).tokens == expected
            # In a thread, since the scheduler runs here.
            assert await asyncio.to_thread(a.process.wait, PATIENCE_SECONDS) == 0
            assert service.num_workers == 1
