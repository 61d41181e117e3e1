"""`hvd.init` ends when all ranks are connected, so that each may leave at once."""

from __future__ import annotations

import os
import select
import socket
from pathlib import Path
from typing import Any
from unittest.mock import patch

import taco_train.lightcc.horovod.torch as hvd
from support.train_processes import RankPool
from taco_train.cluster.store import ConfigurationError
from taco_train.collective.errors import CommunicationError
from taco_train.lightcc.negotiation.rank_link import connect

_CONNECT = "taco_train.lightcc.job.connect"
_WAIT_SECONDS = 0.5  # for what must not come


def test_a_rank_may_leave_as_soon_as_it_has_come(tmp_path: Path) -> None:
    left = tmp_path / "left"
    os.mkfifo(left)
    with RankPool(2) as pool:
        pool.start(come_and_go, left, ranks=[0])
        pool.start(come_late, left, ranks=[1])
        assert [one.error for one in pool.finish()] == [None, None]


def come_and_go(left: Path) -> None:
    hvd.init()
    hvd.shutdown()
    os.write(os.open(left, os.O_RDWR), b"x")


def come_late(left: Path) -> None:
    """Connects to rank 0 after that has left, if it does not wait."""
    pipe = os.open(left, os.O_RDWR)

    def late(*args: Any, **options: Any) -> socket.socket:
        select.select([pipe], [], [], _WAIT_SECONDS)
        return connect(*args, **options)

    with patch(_CONNECT, late):
        hvd.init()
    hvd.shutdown()


def test_a_coordinator_that_is_gone_is_named() -> None:
    with RankPool(2) as pool:
        pool.start(hvd.init, ranks=[0])
        pool.start(connect_to_a_closed_port, ranks=[1])
        lost = pool.finish([1])[0]
    assert isinstance(lost.error, CommunicationError), lost
    assert str(lost.error).startswith("rank 0 is gone, or 127.0.0.1:")
    assert lost.error.rank == 0


def connect_to_a_closed_port() -> None:
    with patch(_CONNECT, side_effect=ConnectionRefusedError(111, "Connection refused")):
        hvd.init()


def test_variables_that_differ_between_ranks_are_named_on_all(tmp_path: Path) -> None:
    """Otherwise ranks call collectives that do not fit, or wait for each other."""
    racks = [tmp_path / "first", tmp_path / "second"]
    racks[0].write_text("a left\nb right\n")
    racks[1].write_text("b right\na left\n")  # means the same
    with RankPool(3) as pool:
        outcomes = pool.outcomes(start_with_own_variables, [str(one) for one in racks])
    expected = (
        "HOROVOD_FUSION_THRESHOLD must be equal on all ranks, but is its default on ranks 0, 2; 0 "
        "on rank 1; LIGHT_TOPK_RATIO must be equal on all ranks, but is 0.5 on ranks 0, 1; its "
        "default on rank 2"
    )
    assert [str(one.error) for one in outcomes] == [expected] * 3
    assert all(isinstance(one.error, ConfigurationError) for one in outcomes)


def start_with_own_variables(racks: list[str]) -> None:
    rank = int(os.environ["RANK"])
    os.environ["LIGHT_TOPOLOGY_FILE"] = racks[rank % 2]
    os.environ["LIGHT_TOPK_RATIO"] = ["0.5", "5e-1", "0.01"][rank]
    os.environ["LIGHT_TOPK_FP16"] = ["0", "off", ""][rank]
    os.environ["HOROVOD_CYCLE_TIME"] = str(rank)  # each rank may have its own
    if rank == 1:
        os.environ["HOROVOD_FUSION_THRESHOLD"] = "0"
    hvd.init()
