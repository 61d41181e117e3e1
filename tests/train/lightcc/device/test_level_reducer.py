"""Levels of torch process groups, with gloo on CPU tensors, against references in float64."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.communicators import assert_close, communicator, digest, own_rank, values
from support.train_processes import RankPool
from taco_train.collective.residuals import Residuals
from taco_train.collective.wire import BFLOAT16, DENSE, FLOAT16, Dense, TopK
from taco_train.lightcc.bucket_reducer import BucketReducer
from taco_train.lightcc.device import sparse
from taco_train.lightcc.device.groups import LevelGroups
from taco_train.lightcc.device.level_reducer import LevelReducer
from taco_train.lightcc.settings import Settings

CPU = torch.device("cpu")
# One letter a rank, its host: one host, even hosts, one rank a host, uneven hosts.
LAYOUTS = ["aa", "aabb", "abab", "aaabbb", "abc", "aab", "a"]
DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool),
]
EPSILONS = {FLOAT16: 2.0**-10, BFLOAT16: 2.0**-7}


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(6) as ranks:
        yield ranks


@functools.cache
def groups(hosts: str) -> LevelGroups:
    return LevelGroups(communicator(hosts), CPU)


def check(
    hosts: str, size: int, dtypes: list[torch.dtype], ops: list[str], wire: Dense, two_level: bool
) -> list[str]:
    if own_rank() >= len(hosts):
        return []
    reducer = LevelReducer(groups(hosts), Residuals(), chunk_bytes=4096)
    digests = []
    for dtype, op in itertools.product(dtypes, ops):
        inputs = [values(rank, (size,), dtype, op) for rank in range(len(hosts))]
        tensor = inputs[own_rank()].clone()
        is_sum = op == "sum"
        reducer.all_reduce(tensor, op, wire=wire if is_sum else DENSE, two_level=two_level)
        epsilon = EPSILONS.get(wire) if dtype == torch.float32 and is_sum else None
        assert_close(tensor, inputs, op, epsilon=epsilon)
        digests.append(digest(tensor))
    return digests


@pytest.mark.parametrize("two_level", [True, False])
@pytest.mark.parametrize("hosts", LAYOUTS)
def test_all_dtypes_and_ops(pool: RankPool, hosts: str, two_level: bool) -> None:
    for size in (0, 1, 4099):
        arguments = (
            hosts,
            size,
            DTYPES,
            ["sum", "average", "min", "max", "product"],
            DENSE,
            two_level,
        )
        digests = pool.run(check, *arguments)[: len(hosts)]
        assert all(found == digests[0] for found in digests)
        assert pool.run(check, *arguments)[: len(hosts)] == digests


@pytest.mark.parametrize("wire", [FLOAT16, BFLOAT16])
@pytest.mark.parametrize("hosts", ["aabb", "aaabbb", "abc", "aab"])
def test_16_bits_between_hosts(pool: RankPool, hosts: str, wire: Dense) -> None:
    for size, two_level in itertools.product((1, 10, 5003), (True, False)):
        digests = pool.run(check, hosts, size, [torch.float32], ["sum"], wire, two_level)
        assert all(found == digests[0] for found in digests[: len(hosts)])


@settings(max_examples=150, deadline=None)
@given(
    size=st.integers(1, 20_000),
    share=st.floats(0, 1),
    as_float16=st.booleans(),
    seed=st.integers(0, 99),
)
def test_messages(size: int, share: float, as_float16: bool, seed: int) -> None:
    count = max(1, round(share * size))
    before = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 1000
    indices = sparse.select(before, count)
    message, sent = sparse.encode(before, indices, as_float16=as_float16)
    assert message.numel() == count * (3 if as_float16 else 5) + size // 255
    expected = torch.zeros(size)
    order = before.abs().argsort(descending=True)[:count]
    expected[order] = before[order]
    found = torch.zeros(size)
    sparse.add_decoded(message, count, found, as_float16=as_float16)
    assert torch.equal(found[indices], sent)
    assert torch.equal(found, expected.half().float() if as_float16 else expected)


def test_indices_far_apart() -> None:
    tensor = torch.zeros(2000)
    indices = [0, 1, 256, 257, 512, 1022, 1999]  # gaps of 0, 254, 255, 509 and more
    tensor[indices] = torch.arange(1.0, 8.0)
    message, _ = sparse.encode(tensor, torch.tensor(indices), as_float16=False)
    found = torch.zeros(2000)
    sparse.add_decoded(message, len(indices), found, as_float16=False)
    assert torch.equal(found, tensor)


def test_values_beyond_float16() -> None:
    tensor = torch.tensor([1e6, -2e5, 1.0, float("inf"), float("nan")])
    _, sent = sparse.encode(tensor, torch.arange(5), as_float16=True)
    assert sent[:4].tolist() == [65504.0, -65504.0, 1.0, float("inf")]
    assert sent[4].isnan()


def top_k_steps(hosts: str, size: int, two_level: bool, kind: str, momentum: float) -> Any:
    """Several steps: the sum of all results and residuals is that of all gradients, exactly."""
    if own_rank() >= len(hosts):
        return ""
    residuals = Residuals()
    reducer = LevelReducer(groups(hosts), residuals)
    wire = TopK("key", ratio=0.05, values=kind, momentum=momentum)
    # Halves of small integers add up exactly.
    gradients = [
        (values(rank, (size,), torch.float32, "sum") * 64).round() / 2 for rank in range(len(hosts))
    ]
    received = torch.zeros(size)
    for _ in range(4):
        tensor = gradients[own_rank()].clone()
        reducer.all_reduce(tensor, "sum", wire=wire, two_level=two_level)
        received += tensor
    left, state = torch.zeros(size), residuals.state_dict()["key"]
    assert state["step"] == 4
    left[state["begin"] : state["end"]] = state["values"]
    reducer.all_reduce(left, "sum", wire=DENSE, two_level=two_level)
    if momentum == 0:
        assert torch.equal(received + left, 4 * torch.stack(gradients).sum(0))
    if size > 1:
        assert 0.05 < (received != 0).float().mean() < 0.9
    return digest(received)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize(
    ("hosts", "two_level"),
    [("aabb", True), ("aaabbb", True), ("abc", True), ("aabb", False), ("aab", True)],
)
def test_top_k_loses_nothing(
    pool: RankPool, hosts: str, two_level: bool, kind: str, momentum: float
) -> None:
    for size in (1, 999, 20_001):
        found = pool.run(top_k_steps, hosts, size, two_level, kind, momentum)[: len(hosts)]
        assert len(set(found)) == 1


def same_momentum(hosts: str) -> tuple[list[list[float]], list[list[float]]]:
    """What the process groups and the library of shared memory and TCP compute."""
    if own_rank() >= len(hosts):
        return [], []
    by_library, reducer = communicator(hosts), LevelReducer(groups(hosts), Residuals())
    wire = TopK("momentum", ratio=0.5, momentum=0.5, warmup_steps=2)
    results: tuple[list[list[float]], list[list[float]]] = ([], [])
    for step in range(5):
        # Integers add up exactly, and no two of these have the same magnitude.
        gradient = (values(10 * step + own_rank(), (50,), torch.float32, "sum") * 2**14).round()
        tensors = gradient.clone(), gradient.clone()
        by_library.all_reduce(tensors[0], wire=wire, depth=2)
        reducer.all_reduce(tensors[1], "sum", wire=wire, two_level=True)
        for result, tensor in zip(results, tensors, strict=True):
            result.append(tensor.tolist())
    return results


def test_momentum_and_warm_up_are_those_of_the_library(pool: RankPool) -> None:
    by_library, by_groups = pool.run(same_momentum, "aabb")[0]
    assert by_groups == by_library


def through_buckets(hosts: str) -> list[str]:
    """What TopK has not sent is saved, loaded, and sent by an exact sum."""
    if own_rank() >= len(hosts):
        return []
    ranks = communicator(hosts, name="buckets")
    sizes, size = [1500, 500], 2000
    gradients = [
        (values(rank, (size,), torch.float32, "sum") * 64).round() for rank in range(len(hosts))
    ]
    reducer = BucketReducer(
        Settings(top_k=True, top_k_min_bytes=0, top_k_ratio=0.1), group_devices=["cpu"]
    )
    digests, total = [], torch.zeros(size)
    for _ in range(3):
        buffer = gradients[own_rank()].clone()
        reducer.all_reduce(ranks, buffer, "sum", ["a", "b"], sizes)
        total += buffer
        digests.append(digest(buffer))
    assert (total == 0).float().mean() > 0.2
    exact = BucketReducer(Settings(), group_devices=["cpu"])
    exact.load_state_dict(ranks, reducer.state_dict(ranks))
    for begin, name, length in ((0, "a", 1500), (1500, "b", 500)):
        buffer = torch.zeros(length)
        exact.all_reduce(ranks, buffer, "sum", [name], [length])
        total[begin : begin + length] += buffer
    assert torch.equal(total, 3 * torch.stack(gradients).sum(0))
    ranks.barrier()
    reducer.close()
    exact.close()
    return digests


def test_buckets_use_the_groups(pool: RankPool) -> None:
    found = pool.run(through_buckets, "aabb")[:4]
    assert all(one == found[0] for one in found)
