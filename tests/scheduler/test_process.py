"""`run_scheduler` as a process: signals, exit codes, addresses."""

import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.admin_pages import get
from support.engine_driver import make_request
from support.fake_worker import FakeWorker
from support.grpc_peers import GatewayPeer, WorkerPeer, background, dial
from support.patience import PATIENCE_SECONDS, until

pytestmark = pytest.mark.process

PROGRAM = """
import sys
from taco_proto.config import SchedulerConfig
from taco_scheduler.server.grpc_server import run_scheduler
listen, admin = sys.argv[1:]
sys.exit(run_scheduler(SchedulerConfig(listen=listen, admin_listen=admin or None)))
"""


def start(address: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, address, admin_of(address)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def admin_of(address: str) -> str:
    return address.removesuffix(".sock") + "-admin.sock" if address.startswith("unix:") else ""


async def drains(admin: str) -> bool:
    return (await get(admin, "/readyz"))[1] == b'{"ready":false,"reason":"draining"}'


def wait_until_it_listens(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if "listening on" in line:
            return
    raise AssertionError(f"it ended with {process.wait()}")


@pytest.fixture
async def scheduler(tmp_path: Path) -> AsyncIterator[tuple[subprocess.Popen[str], str]]:
    address = f"unix:{tmp_path}/scheduler.sock"
    process = start(address)
    wait_until_it_listens(process)
    yield process, address
    process.kill()
    process.wait()
    assert process.stderr is not None
    process.stderr.close()


async def test_sigterm_finishes_running_requests_and_exits_0(
    scheduler: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    process, address = scheduler
    async with dial(address) as stub:
        peer, worker = GatewayPeer(stub), WorkerPeer(stub, FakeWorker())
        await peer.hello()
        await worker.hello()
        await peer.submit(make_request(1, [3, 4], max_tokens=100, ignore_eos=True))
        await worker.serve(num_steps=3)
        process.send_signal(signal.SIGTERM)
        async with background(worker.serve()):
            received = await peer.read_ends(1)
            assert len(received.tokens[1, 0]) == 100
            assert process.wait(timeout=PATIENCE_SECONDS) == 0
    assert not (tmp_path / "scheduler.sock").exists()


async def test_a_second_signal_does_not_wait(
    scheduler: tuple[subprocess.Popen[str], str],
) -> None:
    process, address = scheduler
    async with dial(address) as stub:
        peer = GatewayPeer(stub)
        await peer.hello()
        await peer.submit(make_request(1, [3, 4]))  # no worker will ever run it
        await peer.call.read()
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        for line in process.stderr:
            if "draining" in line:
                break
        admin = admin_of(address).removeprefix("unix:")
        await until(lambda: drains(admin), "a scheduler that says that it drains")
        assert (await get(admin, "/livez"))[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_SECONDS) == 0


async def test_it_answers_health_checks(scheduler: tuple[subprocess.Popen[str], str]) -> None:
    _, address = scheduler
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest())  # type: ignore[attr-defined]
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_an_address_in_use_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.sock"
    with socket.socket(socket.AF_UNIX) as holder:
        holder.bind(str(path))
        holder.listen()
        process = start(f"unix:{path}")
        _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert "it is in use" in stderr
    assert "Traceback" not in stderr
    assert path.exists(), "another process's socket stays"


@pytest.mark.parametrize(
    "address", ["unix:{}/file/scheduler.sock", "unix:{}/none/x.sock", "", "x:y"]
)
def test_an_impossible_address_is_one_line_and_exit_code_1(tmp_path: Path, address: str) -> None:
    (tmp_path / "file").touch()
    process = start(address.format(tmp_path))
    _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert "cannot listen on" in stderr
    assert "Traceback" not in stderr


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    process = start(f"unix:{path}")
    wait_until_it_listens(process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
