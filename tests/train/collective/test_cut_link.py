"""A host whose link is cut: all ranks raise, and those of the other host name a rank behind it."""

import os
import sys

import pytest

from support.patience import PATIENCE_SECONDS
from taco_train.cluster.emulation.emulator import emulate
from taco_train.cluster.emulation.fabric import Fabric

pytestmark = pytest.mark.process

# A line is one write: ranks share the pipe.
REDUCE = """
import os
import torch
from taco_train.collective.communicator import Communicator
from taco_train.collective.errors import CommunicationError
from taco_train.collective.store import connect

placement, store = connect()
ranks = Communicator(placement, store, timeout_seconds=300.0)
ranks.barrier()
os.write(1, b"ready\\n")
try:
    while True:
        ranks.all_reduce(torch.ones(500_000))
except CommunicationError as error:
    os.write(1, f"rank {placement.rank}|{error.host}|{error}\\n".encode())
"""


def test_ranks_on_both_sides_of_a_cut_link_raise() -> None:
    reader, writer = os.pipe()
    with emulate(Fabric(hosts=2, rate=200e6)) as hosts, os.fdopen(reader) as output:
        processes = [
            hosts.start(
                rank // 2, [sys.executable, "-c", REDUCE], environment=environment, stdout=writer
            )
            for rank, environment in enumerate(hosts.environments(2))
        ]
        os.close(writer)
        assert [output.readline() for _ in processes] == ["ready\n"] * 4
        hosts.cut(1)
        # Long before the time limit of operations: the kernel gives the connections up.
        assert [process.wait(PATIENCE_SECONDS) for process in processes] == [0] * 4
        lines = sorted(output.read().splitlines())
    for rank, line in enumerate(lines):
        sender, host, message = line.split("|")
        assert sender == f"rank {rank}"
        # Failures do not pass the cut: each side names a rank of the other.
        assert host == ("host1" if rank < 2 else "host0")
        assert "is gone" in message
