"""Gather, broadcast, all-to-all, reduce-scatter, exchange and subgroups."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.communicators import assert_close, communicator, digest, own_rank, values
from support.train_processes import RankPool
from taco_train.collective.library import TYPES

LAYOUTS = ["aa", "aabb", "aaabb", "abc"]
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


def check_all_gather(
    hosts: str,
    rows: list[int],
    row: tuple[int, ...],
    dtype: torch.dtype,
    intra_size: int | None = None,
) -> None:
    if own_rank() < len(hosts):
        inputs = [values(r, (count, *row), dtype, "sum") for r, count in enumerate(rows)]
        ranks = communicator(hosts, intra_size=intra_size)
        assert torch.equal(ranks.all_gather(inputs[own_rank()]), torch.cat(inputs))


def check_broadcast(hosts: str, root: int, size: int) -> None:
    if own_rank() < len(hosts):
        tensor = values(own_rank(), (size,), torch.float64, "sum")
        communicator(hosts).broadcast(tensor, root)
        assert torch.equal(tensor, values(root, (size,), torch.float64, "sum"))


def check_all_to_all(
    hosts: str,
    splits: list[list[int]],
    dtype: torch.dtype = torch.int32,
    intra_size: int | None = None,
) -> None:
    if own_rank() < len(hosts):
        inputs = [values(r, (sum(rows), 3), dtype, "sum") for r, rows in enumerate(splits)]
        ranks = communicator(hosts, intra_size=intra_size)
        output, received = ranks.all_to_all(inputs[own_rank()], splits[own_rank()])
        parts = [rows.split(splits[rank])[own_rank()] for rank, rows in enumerate(inputs)]
        assert received.tolist() == [len(part) for part in parts]
        assert torch.equal(output, torch.cat(parts))


def check_reduce_scatter(
    hosts: str, rows: int, dtype: torch.dtype, op: str, intra_size: int | None = None
) -> int:
    if own_rank() >= len(hosts):
        return 0
    inputs = [values(rank, (rows, 2), dtype, op) for rank in range(len(hosts))]
    ranks = communicator(hosts, intra_size=intra_size)
    part = ranks.reduce_scatter(inputs[own_rank()], op)
    assert digest(ranks.reduce_scatter(inputs[own_rank()], op)) == digest(part)
    begin = own_rank() * (rows // len(hosts)) + min(own_rank(), rows % len(hosts))
    assert_close(part, [rows_of[begin : begin + len(part)] for rows_of in inputs], op)
    return len(part)


@settings(max_examples=30, deadline=None)
@given(data=st.data(), hosts=st.text("abc", min_size=2, max_size=5))
def test_gathers_and_scatters_of_any_size(pool: RankPool, data: st.DataObject, hosts: str) -> None:
    count = st.integers(0, 40) | st.integers(0, 3000)
    per_rank = st.lists(count, min_size=len(hosts), max_size=len(hosts))
    dtype = data.draw(st.sampled_from(DTYPES))
    row = data.draw(st.sampled_from([(), (3,), (2, 5)]))
    pool.run(check_all_gather, hosts, data.draw(per_rank), row, dtype)
    pool.run(check_all_to_all, hosts, [data.draw(per_rank) for _ in hosts])
    pool.run(check_broadcast, hosts, data.draw(st.integers(0, len(hosts) - 1)), data.draw(count))
    rows, op = data.draw(count), data.draw(st.sampled_from(["sum", "average", "max"]))
    assert sum(pool.run(check_reduce_scatter, hosts, rows, dtype, op)) == rows


@pytest.mark.parametrize(
    ("hosts", "intra_size"),
    [
        *(("aa", None), ("aaa", 1), ("abab", None), ("aabbc", None), ("aaaabb", 2)),
        *(("aabbcdd", None), ("aaaabbbb", None), ("aaaaaaaa", None), ("aaaaaaaa", 4)),
    ],
)
def test_gathers_and_scatters_of_all_dtypes(
    pool: RankPool, hosts: str, intra_size: int | None
) -> None:
    """2 to 8 ranks; one level where no ranks share memory or all do, otherwise two."""
    size = len(hosts)
    for number, dtype in enumerate(TYPES):
        rows = [(7 * rank + number) % 5 for rank in range(size)]
        splits = [[(rank * other + number) % 4 for other in range(size)] for rank in range(size)]
        pool.run(check_all_gather, hosts, rows, (3,), dtype, intra_size)
        pool.run(check_all_to_all, hosts, splits, dtype, intra_size)
        for op in ("sum", "average", "min", "max", "product"):
            pool.run(check_reduce_scatter, hosts, 13 * number % 29, dtype, op, intra_size)


@pytest.mark.parametrize("hosts", ["aab", "abc"])
def test_rows_around_the_bytes_that_travel_with_their_count(pool: RankPool, hosts: str) -> None:
    most = 8192 // 12  # rows of three int32
    for first in (0, most, most + 1):
        splits = [[first, most, 5], [most + 1, 0, most], [1, first, 7]]
        pool.run(check_all_to_all, hosts, splits)


def mix_operations(hosts: str) -> None:
    """Slots of shared memory pass from one operation to the next, in whatever state."""
    if own_rank() >= len(hosts):
        return
    ranks, size = communicator(hosts, name="mixture"), len(hosts)
    for number, length in enumerate([10, 700_001, 300_000, 5, 2_100_000, 0, 400_003]):
        inputs = [torch.full((length + 1,), float(rank + number)) for rank in range(size)]
        own, total = inputs[own_rank()], torch.stack(inputs).sum(0)
        reduced = own.clone()
        ranks.all_reduce(reduced)
        assert torch.equal(reduced, total)
        assert torch.equal(ranks.all_gather(own), torch.cat(inputs))
        assert torch.equal(ranks.reduce_scatter(own), total[: len(ranks.reduce_scatter(own))])
        ranks.all_reduce(own[:3])
        splits = [length // size] * (size - 1)
        output, _ = ranks.all_to_all(reduced[:length], [*splits, length - sum(splits)])
        assert (output == total[0]).all()
        ranks.broadcast(reduced, number % size)


@pytest.mark.parametrize("hosts", ["aaa", "aabb", "aaab"])
def test_operations_follow_each_other(pool: RankPool, hosts: str) -> None:
    pool.run(mix_operations, hosts)


@pytest.mark.parametrize("hosts", LAYOUTS)
def test_broadcast_of_many_chunks(pool: RankPool, hosts: str) -> None:
    for root in range(len(hosts)):
        pool.run(check_broadcast, hosts, root, 150_001)


def exchange_shifted(hosts: str, sizes: list[int]) -> None:
    """Every rank sends buffers two ranks on, and gets those of the rank two before."""
    if own_rank() >= len(hosts):
        return
    size = len(hosts)
    to, source = (own_rank() + 2) % size, (own_rank() - 2) % size
    sent = [bytes([own_rank()]) * length for length in sizes]
    received = [bytearray(length) for length in sizes]
    communicator(hosts).exchange(
        [(to, part) for part in sent], [(source, part) for part in received]
    )
    assert received == [bytes([source]) * length for length in sizes]


def test_exchange_moves_all_buffers_at_once(pool: RankPool) -> None:
    # Longer than the sockets' buffers: sending first and receiving afterwards would hang.
    pool.run(exchange_shifted, "aabb", [0, 10, 5_000_000, 1])
    pool.run(exchange_shifted, "abc", [6_000_000])


def exchange_between_two(size: int) -> None:
    if own_rank() in (1, 2):
        other, tensor = 3 - own_rank(), torch.empty(size)
        ranks = communicator("aabb")
        ranks.exchange([(other, torch.full((size,), float(own_rank())))], [(other, tensor)])
        assert (tensor == other).all()
    if own_rank() < 4:  # the others have not taken part, and share later operations
        communicator("aabb").barrier()


def test_exchange_concerns_only_the_ranks_it_names(pool: RankPool) -> None:
    pool.run(exchange_between_two, 1000)


def reduce_in_subgroups() -> list[float]:
    if own_rank() >= 4:
        return []
    ranks = communicator("aabb")
    assert (ranks.subgroup([0], "first") is None) == (own_rank() != 0)
    group = ranks.subgroup([2, 0] if own_rank() % 2 == 0 else [1, 3], f"parity {own_rank() % 2}")
    assert group is not None
    tensor = torch.tensor([float(own_rank()), float(group.rank)])
    with group:
        group.all_reduce(tensor)
        tensor = group.all_gather(torch.cat([tensor, torch.tensor([float(own_rank())])]))
    return tensor.tolist()


def test_subgroups_compute_side_by_side(pool: RankPool) -> None:
    even, odd = [2.0, 1.0, 2.0, 2.0, 1.0, 0.0], [4.0, 1.0, 1.0, 4.0, 1.0, 3.0]
    assert pool.run(reduce_in_subgroups)[:4] == [even, odd, even, odd]


def compute_alone() -> None:
    if own_rank() == 0:
        ranks, tensor = communicator("a"), torch.arange(6.0)
        ranks.all_reduce(tensor, "average")
        ranks.broadcast(tensor, 0)
        ranks.barrier()
        assert digest(ranks.all_gather(tensor)) == digest(tensor)
        assert digest(ranks.reduce_scatter(tensor)) == digest(tensor)
        assert ranks.all_to_all(tensor)[1].tolist() == [6]
        assert torch.equal(tensor, torch.arange(6.0))


def test_one_rank_has_nothing_to_wait_for(pool: RankPool) -> None:
    pool.run(compute_alone)


def compute_with_gradients() -> None:
    if own_rank() < 2:
        ranks = communicator("aa")
        weight = torch.nn.Parameter(torch.ones(4, 2))
        ranks.all_reduce(weight)
        ranks.broadcast(weight.t(), 0)
        assert torch.equal(weight, torch.full((4, 2), 2.0))
        results = (
            ranks.all_gather(weight),
            ranks.all_to_all(weight)[0],
            ranks.reduce_scatter(weight),
        )
        assert not any(result.requires_grad for result in results)


def test_autograd_does_not_see_collectives(pool: RankPool) -> None:
    pool.run(compute_with_gradients)


def check_arguments() -> None:
    if own_rank() >= 2:
        return
    ranks = communicator("aa")
    with pytest.raises(ValueError, match="no dimension"):
        ranks.all_gather(torch.tensor(1))
    with pytest.raises(ValueError, match=r"splits \[1, 1\] must be 2 numbers whose sum is .* 3"):
        ranks.all_to_all(torch.ones(3), [1, 1])
    with pytest.raises(ValueError, match="3, does not divide by 2 ranks"):
        ranks.all_to_all(torch.ones(3))
    with pytest.raises(ValueError, match="rank 2 does not exist: ranks are 0 to 1"):
        ranks.broadcast(torch.ones(3), 2)
    with pytest.raises(ValueError, match="cannot send to itself"):
        ranks.exchange([(own_rank(), b"x")], [])
    with pytest.raises(ValueError, match="must be writable"):
        ranks.exchange([], [(1 - own_rank(), b"x")])
    with pytest.raises(ValueError, match="must be different"):
        ranks.subgroup([0, 0], "twice")
    ranks.barrier()


def test_bad_arguments(pool: RankPool) -> None:
    pool.run(check_arguments)
