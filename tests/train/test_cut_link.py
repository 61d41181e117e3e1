"""A host whose link is cut: all ranks raise, and each names a rank on the other side of the cut."""

import os

import pytest

from support.emulated_ranks import start_ranks
from support.patience import PATIENCE_SECONDS
from taco_train.cluster.emulation.emulator import emulate
from taco_train.cluster.emulation.fabric import Fabric

pytestmark = [pytest.mark.process, pytest.mark.slow]

# A thread of each rank reduces all the time. Beside it, ranks of host 0 wait in a negotiation for
# those of host 1, which submit once their link is cut. A line is one write: ranks share the pipe.
RANK = """
import os, pathlib, sys, threading, time
import torch
import taco_train.lightcc.horovod.torch as hvd
from taco_train.collective.communicator import Communicator
from taco_train.collective.errors import CommunicationError
from taco_train.collective.store import connect

def reduce_until_failure():
    try:
        while True:
            ranks.all_reduce(torch.ones(500_000))
    except CommunicationError as error:
        os.write(1, f"collective|{hvd.rank()}|{error.host}|{error}\\n".encode())

hvd.init()
placement, store = connect()
ranks = Communicator(placement, store, timeout_seconds=300.0)
ranks.barrier()
thread = threading.Thread(target=reduce_until_failure)
thread.start()
os.write(1, b"ready\\n")
if hvd.cross_rank() == 1:
    while not pathlib.Path(sys.argv[1], "cut").exists():
        time.sleep(0.02)
try:
    hvd.allreduce(torch.ones(10), name="waits")
except hvd.HorovodInternalError as error:
    os.write(1, f"negotiation|{hvd.rank()}|{error}\\n".encode())
thread.join()
hvd.shutdown()
"""


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What two ranks on each of two hosts say, in the order of kinds and ranks."""
    folder = tmp_path_factory.mktemp("cut")
    reader, writer = os.pipe()
    with emulate(Fabric(hosts=2, rate=200e6)) as hosts, os.fdopen(reader) as output:
        process = start_ranks(hosts, 2, RANK, folder, stdout=writer)
        os.close(writer)
        assert [output.readline() for _ in range(4)] == ["ready\n"] * 4
        hosts.cut(1)
        (folder / "cut").touch()
        # Long before the time limit of operations: the kernel gives the connections up.
        assert process.wait(PATIENCE_SECONDS) == 0
        return [line.split("|") for line in sorted(output.read().splitlines())]


def test_ranks_that_reduce(lines: list[list[str]]) -> None:
    found = [line for kind, *line in lines if kind == "collective"]
    assert [int(rank) for rank, *_ in found] == [0, 1, 2, 3]
    for rank, host, message in found:
        # Failures do not pass the cut: each side names a rank of the other.
        assert host == ("host1" if int(rank) < 2 else "host0")
        assert "is gone" in message


def test_ranks_that_negotiate(lines: list[list[str]]) -> None:
    found = [line for kind, *line in lines if kind == "negotiation"]
    assert [int(rank) for rank, *_ in found] == [0, 1, 2, 3]
    for rank, message in found:
        others = [2, 3] if int(rank) < 2 else [0]
        assert any(f"rank {one} is gone" in message for one in others)
