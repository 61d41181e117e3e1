"""The timeline is a Chrome trace that has each tensor's wait and collective."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import torch

import taco_train.lightcc.horovod.torch as hvd
from support.train_processes import RankPool


def test_a_trace_of_two_ranks(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole.json", tmp_path / "part.json"
    variables = {"HOROVOD_TIMELINE": str(whole), "HOROVOD_TIMELINE_MARK_CYCLES": "1"}
    with RankPool(2, environment=variables) as pool:
        pool.run(compute, str(part))
    events = json.loads(whole.read_text())
    rows = {one["tid"]: one["args"]["name"] for one in events if one.get("ph") == "M"}
    assert {"allreduce.a", "broadcast.b", "cycles"} <= set(rows.values())
    for name, kind in (("allreduce.a", "ALLREDUCE"), ("broadcast.b", "BROADCAST")):
        (row,) = (number for number, one in rows.items() if one == name)
        steps = [(one["ph"], one["name"]) for one in events if one.get("tid") == row][1:]
        assert steps == [("B", "NEGOTIATE"), ("E", "NEGOTIATE"), ("B", kind), ("E", kind)]
    times = [one["ts"] for one in events if "ts" in one]
    assert times == sorted(times)
    assert "allreduce.later" in part.read_text()
    assert "allreduce.a" not in part.read_text()


def compute(part: str) -> None:
    hvd.init()
    hvd.allreduce(torch.ones(3), name="a")
    hvd.broadcast(torch.ones(3), 1, name="b")
    if hvd.rank() == 0:
        hvd.stop_timeline()
        hvd.start_timeline(part)
    hvd.allreduce(torch.ones(3), name="later")
    hvd.shutdown()


def test_a_file_that_cannot_be_written_is_named_by_init() -> None:
    with RankPool(1, environment={"HOROVOD_TIMELINE": "/proc/none/trace"}) as pool:
        (outcome,) = pool.outcomes(hvd.init)
    assert str(outcome.error) == (
        "HOROVOD_TIMELINE is '/proc/none/trace'; it must be a file that rank 0 can write: "
        "No such file or directory"
    )


def test_a_disk_that_is_full_ends_the_timeline_and_not_the_training() -> None:
    with RankPool(2, environment={"HOROVOD_TIMELINE": "/dev/full"}) as pool:
        messages, none = pool.run(compute_for_long)
    assert messages == [
        "the timeline ends: /dev/full cannot be written: [Errno 28] No space left on device"
    ]
    assert none == []


def compute_for_long() -> list[str]:
    """More events than a file's buffer holds; returns what was logged."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign, assignment]
    logging.getLogger("taco_train").addHandler(handler)
    hvd.init()
    for number in range(100):
        assert hvd.allreduce(torch.ones(3), name=f"step {number}").sum() == 3
    hvd.shutdown()
    return [one.getMessage() for one in records]
