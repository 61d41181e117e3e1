"""The coordinator: what runs, in which order, and what fails with which error."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taco_train.lightcc.negotiation.coordinator import Coordinator
from taco_train.lightcc.negotiation.messages import (
    Batch,
    Ready,
    decode_batches,
    encode_batches,
)
from taco_train.lightcc.negotiation.requests import Kind, Request

GRADIENT = Request(Kind.ALL_REDUCE, "a", "float32", (3, 5), op="sum")


def coordinator(size: int = 2, fusion_bytes: int = 1000) -> Coordinator:
    return Coordinator(size, fusion_bytes=fusion_bytes)


def submit(one: Coordinator, rank: int, *requests: Request, now: float = 0.0) -> None:
    one.receive(rank, Ready.decode(Ready(requests=requests).encode()), now)


def take(one: Coordinator, now: float = 0.0) -> list[Batch]:
    """What the ranks receive."""
    return decode_batches(encode_batches(one.take_batches(now)))


def names(batch: Batch) -> list[str]:
    return [request.name for request in batch.requests]


def test_runs_when_the_last_rank_is_ready() -> None:
    one = coordinator(3)
    for rank in (2, 0):
        submit(one, rank, GRADIENT)
        assert take(one) == []
    submit(one, 1, GRADIENT)
    (batch,) = take(one)
    assert names(batch) == ["a"]
    assert not batch.error
    assert take(one) == []


def test_small_sums_share_a_buffer() -> None:
    one = coordinator(fusion_bytes=150)
    requests = [replace(GRADIENT, name=name) for name in "abc"]
    other = replace(GRADIENT, name="other", dtype="float64")
    submit(one, 0, *requests, other)
    submit(one, 1, other, *reversed(requests))
    assert list(map(names, take(one))) == [["other"], ["c", "b"], ["a"]]


def test_zero_bytes_fuse_nothing() -> None:
    one = coordinator(fusion_bytes=0)
    requests = [replace(GRADIENT, name=name) for name in "ab"]
    for rank in range(2):
        submit(one, rank, *requests)
    assert list(map(names, take(one))) == [["a"], ["b"]]


def test_a_request_that_came_before_is_a_number() -> None:
    one = coordinator()
    requests = [replace(GRADIENT, name=name) for name in "ab"]
    for rank in range(2):
        submit(one, rank, *requests)
    (first,) = take(one)
    assert len(set(first.new_ids)) == 2
    for rank in range(2):
        one.receive(rank, Ready.decode(Ready(ids=first.new_ids).encode()), 1.0)
    (second,) = take(one)
    assert sorted(second.ids) == sorted(first.new_ids)


def test_another_shape_under_the_same_name_is_another_request() -> None:
    one = coordinator()
    for rank in range(2):
        submit(one, rank, GRADIENT)
    (first,) = take(one)
    one.receive(0, Ready(ids=first.new_ids), 1.0)
    submit(one, 1, replace(GRADIENT, shape=(4, 5)))
    (second,) = take(one)
    assert second.error == "ranks differ in shape: [3, 5] on rank 0; [4, 5] on rank 1"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "int32"}, "ranks differ in dtype: float32 on ranks 0, 2; int32 on rank 1"),
        ({"op": "max"}, "ranks differ in op: sum on ranks 0, 2; max on rank 1"),
        ({"kind": Kind.BROADCAST, "op": "", "root": 0}, "ranks differ in kind: allreduce on"),
        ({"prescale": 0.5}, "ranks differ in prescale: 1.0 on ranks 0, 2; 0.5 on rank 1"),
    ],
)
def test_ranks_that_differ_are_named(change: dict[str, object], message: str) -> None:
    one = coordinator(3)
    for rank in range(3):
        submit(one, rank, replace(GRADIENT, **change) if rank == 1 else GRADIENT)  # type: ignore[arg-type]
    (batch,) = take(one)
    assert batch.error.startswith(message)


def test_roots_that_differ_are_named() -> None:
    one = coordinator()
    for rank in range(2):
        submit(one, rank, Request(Kind.BROADCAST, "b", "float32", (2,), root=rank))
    assert take(one)[0].error == "ranks differ in root: 0 on rank 0; 1 on rank 1"


@pytest.mark.parametrize("kind", [Kind.ALL_GATHER, Kind.ALL_TO_ALL])
def test_rows_may_differ_and_other_dimensions_not(kind: Kind) -> None:
    one = coordinator()
    for rank in range(2):
        submit(one, rank, Request(kind, "g", "float32", (rank, 4)))
    assert not take(one)[0].error
    for rank in range(2):
        submit(one, rank, Request(kind, "g", "float32", (3, rank)))
    assert "ranks differ in shape" in take(one)[0].error


def test_a_join_contributes_zeros_and_ends_when_all_have_joined() -> None:
    one = coordinator()
    one.receive(1, Ready(joined=True), 0.0)
    submit(one, 0, GRADIENT)
    (batch,) = take(one)
    assert batch.requests == [GRADIENT]  # in full: rank 1 has not sent it
    one.receive(0, Ready(joined=True), 0.0)
    (batch,) = take(one)
    assert batch.is_join
    assert batch.result == 0
    submit(one, 0, GRADIENT)
    assert take(one) == []  # rank 1 takes part again


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (replace(GRADIENT, op="max"), "allreduce max is not possible after rank 1 joined: only "),
        (
            Request(Kind.ALL_TO_ALL, "t", "float32", (2,)),
            "alltoall is not possible after rank 1 joined",
        ),
        (Request(Kind.BROADCAST, "b", "float32", (2,), root=1), "the root rank 1 has joined"),
    ],
)
def test_what_zeros_cannot_take_part_in_fails(request_: Request, message: str) -> None:
    one = coordinator()
    one.receive(1, Ready(joined=True), 0.0)
    submit(one, 0, request_)
    assert take(one)[0].error.startswith(message)


def test_requests_of_a_group_run_together() -> None:
    one = coordinator(fusion_bytes=0)
    together = [replace(GRADIENT, name=name, together="g", num_together=2) for name in "ab"]
    submit(one, 0, *together)
    submit(one, 1, together[0], replace(GRADIENT, name="c"))
    assert take(one) == []
    submit(one, 1, together[1])
    assert list(map(names, take(one))) == [["a", "b"]]


@pytest.mark.parametrize("fusion_bytes", [0, 1000])
def test_requests_of_a_group_share_a_buffer_by_dtype_and_device(fusion_bytes: int) -> None:
    one = coordinator(fusion_bytes=fusion_bytes)
    kinds = {"a": {}, "b": {"dtype": "int64"}, "c": {"device": "cuda"}, "d": {}}
    together = [
        replace(GRADIENT, name=name, together="g", num_together=4, **fields)  # type: ignore[arg-type]
        for name, fields in kinds.items()
    ]
    submit(one, 0, *together)
    submit(one, 1, *together[1:])
    assert take(one) == []
    submit(one, 1, together[0])
    batches = take(one)
    assert sorted(map(sorted, map(names, batches))) == [["a", "d"], ["b"], ["c"]]


def test_groups_of_one_label_in_two_process_sets_run_apart() -> None:
    one = coordinator(2, fusion_bytes=0)
    for rank in range(2):
        for other in range(2):
            submit(one, other, Request(Kind.ADD_GROUP, f"add {rank}", ranks=(rank,)))
    assert [batch.result for batch in take(one)] == [1, 2]
    for name in "ab":
        for rank in range(2):
            request = replace(GRADIENT, name=name, together="g", num_together=2, group=rank + 1)
            submit(one, rank, request)
    batches = take(one)
    assert list(map(names, batches)) == [["a", "b"]] * 2
    assert [{request.group for request in batch.requests} for batch in batches] == [{1}, {2}]


def test_process_sets_are_numbered_and_wait_for_their_ranks_alone() -> None:
    one = coordinator(3)
    add = Request(Kind.ADD_GROUP, "add", ranks=(0, 2))
    for rank in range(3):
        submit(one, rank, add)
    (batch,) = take(one)
    assert batch.result == 1
    inside = replace(GRADIENT, group=1)
    submit(one, 2, inside)
    submit(one, 0, inside)
    assert names(take(one)[0]) == ["a"]
    for rank in range(3):
        submit(one, rank, add)
    assert take(one)[0].error == "a process set [0, 2] exists"


def test_a_rank_that_leaves_fails_what_is_pending_and_what_comes() -> None:
    one = coordinator(3)
    submit(one, 0, GRADIENT)
    one.lose(1)
    gone = "rank 1 is gone: its process has ended, or its link is cut"
    assert take(one)[0].error == f"{gone}; missing ranks: 1, 2"
    one.receive(0, Ready(leaving=True), 0.0)
    submit(one, 2, GRADIENT)
    assert take(one)[0].error.startswith(gone)  # the first failure explains the others


def test_a_stall_is_reported_once_and_fails_later() -> None:
    one = coordinator(3)
    submit(one, 1, GRADIENT, now=5.0)
    assert one.stalls(14.0, 10.0) == []
    (stall,) = one.stalls(15.0, 10.0)
    assert (stall.name, stall.ready, stall.missing, stall.seconds) == ("a", (1,), (0, 2), 10.0)
    assert one.stalls(16.0, 10.0) == []
    assert one.fail_stalled(24.0, 20.0) == []
    assert "missing ranks: 0, 2" in one.fail_stalled(25.0, 20.0)[0].error
    assert one.fail_stalled(26.0, 20.0) == []


def test_names_that_differ_fail_once_every_rank_waits() -> None:
    one = coordinator()
    submit(one, 0, replace(GRADIENT, name="mine"), now=0.0)
    submit(one, 1, replace(GRADIENT, name="yours"), now=0.0)
    one.receive(0, Ready(blocked=True), 0.5)
    assert one.fail_deadlocked(5.0, 1.0) == []  # rank 1 may still submit "mine"
    one.receive(1, Ready(blocked=True), 0.5)
    assert one.fail_deadlocked(0.9, 1.0) == []
    errors = {one.requests[0].name: one.error for one in one.fail_deadlocked(1.0, 1.0)}
    assert errors["mine"].endswith("missing ranks: 1")
    assert errors["yours"].endswith("missing ranks: 0")


def test_a_rank_that_has_its_result_does_not_wait() -> None:
    one = coordinator()
    submit(one, 0, GRADIENT)
    one.receive(0, Ready(blocked=True), 0.5)
    submit(one, 1, GRADIENT, now=1.0)
    assert names(take(one)[0]) == ["a"]
    one.receive(0, Ready(blocked=True), 1.0)  # by the collective that runs
    submit(one, 1, replace(GRADIENT, name="next"), now=1.0)
    one.receive(1, Ready(blocked=True), 1.5)
    assert one.fail_deadlocked(9.0, 1.0) == []  # rank 0 computes


def test_a_name_submitted_twice_is_an_error_of_the_rank() -> None:
    one = coordinator()
    submit(one, 0, GRADIENT)
    with pytest.raises(ValueError, match="rank 0 submitted a twice"):
        submit(one, 0, GRADIENT)
    with pytest.raises(ValueError, match="no request has the number 7"):
        one.receive(1, Ready(ids=[7]), 0.0)
