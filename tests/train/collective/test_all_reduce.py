"""All-reduce against a reference in float64, with real rank processes."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.communicators import assert_close, communicator, digest, own_rank, values
from support.train_processes import RankPool
from taco_train.collective.library import REDUCTIONS, TYPES
from taco_train.collective.wire import BFLOAT16, DENSE, FLOAT16, Dense

OPS = list(REDUCTIONS)
DTYPES = list(TYPES)
# One letter a rank, its host: one host, equal hosts, unequal hosts, one rank a host, two racks.
LAYOUTS = ["aa", "aaaa", "aabb", "aaabb", "abc", "abab", "aabbccdd", "aaaabcd"]
EPSILONS = {FLOAT16: 2.0**-10, BFLOAT16: 2.0**-7}


def check(
    hosts: str,
    shape: tuple[int, ...],
    dtypes: list[torch.dtype],
    ops: list[str],
    depth: int,
    wire: Dense = DENSE,
    intra_size: int | None = None,
) -> list[str]:
    """Runs in every rank; returns the digests of the results."""
    if own_rank() >= len(hosts):
        return []
    ranks = communicator(hosts, intra_size=intra_size)
    digests = []
    for dtype, op in itertools.product(dtypes, ops):
        inputs = [values(rank, shape, dtype, op) for rank in range(len(hosts))]
        tensor = inputs[own_rank()].clone()
        ranks.all_reduce(tensor, op, wire=wire, depth=depth)
        assert tensor.shape == shape
        epsilon = EPSILONS.get(wire) if dtype == torch.float32 else None
        assert_close(tensor, inputs, op, epsilon=epsilon)
        digests.append(digest(tensor))
    return digests


def assert_all_equal(digests: list[list[str]], hosts: str) -> None:
    assert all(found == digests[0] for found in digests[: len(hosts)])


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("hosts", LAYOUTS)
def test_all_dtypes_and_ops_agree_with_the_reference(
    pool: RankPool, hosts: str, depth: int
) -> None:
    for shape in ((), (0,), (3, 5), (4099,)):
        assert_all_equal(pool.run(check, hosts, shape, DTYPES, OPS, depth), hosts)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("hosts", ["aaa", "aabb", "aabbccdd"])
def test_tensors_of_many_chunks(pool: RankPool, hosts: str, depth: int) -> None:
    dtypes = [torch.float32, torch.bfloat16]
    digests = pool.run(check, hosts, (300_007,), dtypes, ["average"], depth)
    assert_all_equal(digests, hosts)
    again = pool.run(check, hosts, (300_007,), dtypes, ["average"], depth)
    assert digests == again


@settings(max_examples=60, deadline=None)
@given(
    hosts=st.text("abcd", min_size=2, max_size=8),
    size=st.one_of(st.integers(0, 70), st.integers(0, 60_000)),
    dtype=st.sampled_from(DTYPES),
    op=st.sampled_from(OPS),
    depth=st.integers(1, 3),
    wire=st.sampled_from([DENSE, FLOAT16, BFLOAT16]),
    intra_size=st.sampled_from([None, 2, 3]),
)
def test_any_layout_and_size(
    pool: RankPool,
    hosts: str,
    size: int,
    dtype: torch.dtype,
    op: str,
    depth: int,
    wire: Dense,
    intra_size: int | None,
) -> None:
    digests = pool.run(check, hosts, (size,), [dtype], [op], depth, wire, intra_size)
    assert_all_equal(digests, hosts)


def check_strided(hosts: str) -> None:
    if own_rank() < len(hosts):
        inputs = [values(rank, (40, 30), torch.float32, "sum") for rank in range(len(hosts))]
        tensor = inputs[own_rank()].clone().t()[1:, ::2]
        communicator(hosts).all_reduce(tensor)
        assert_close(tensor, [whole.t()[1:, ::2] for whole in inputs], "sum")


def test_tensors_that_are_not_contiguous(pool: RankPool) -> None:
    pool.run(check_strided, "aabb")


def check_special_values() -> None:
    if own_rank() < 4:
        nan, inf = float("nan"), float("inf")
        rows = [[1.0, nan, inf, -inf], [nan, 2.0, 1.0, 1.0], [1.0, 1.0, inf, 1.0], [1.0] * 4]
        for op in ("min", "max"):
            tensor = torch.tensor(rows[own_rank()])
            communicator("aabb").all_reduce(tensor, op)
            expected = torch.tensor(rows)
            expected = expected.amin(0) if op == "min" else expected.amax(0)
            assert torch.equal(tensor.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))


def test_nan_wins_in_minimum_and_maximum(pool: RankPool) -> None:
    pool.run(check_special_values)


def check_accumulation(hosts: str, depth: int) -> None:
    """1 + 2**-11 is a tie in float16: adding it up in float16 gives 1."""
    if own_rank() < len(hosts):
        tensor = torch.full((20_000,), 1.0 if own_rank() == 0 else 2.0**-11, dtype=torch.float16)
        communicator(hosts).all_reduce(tensor, depth=depth)
        assert (tensor == 1 + 2.0**-10).all()


@pytest.mark.parametrize(("hosts", "depth"), [("aaa", 2), ("abc", 1), ("aab", 1), ("abc", 2)])
def test_16_bit_floats_accumulate_in_float32(pool: RankPool, hosts: str, depth: int) -> None:
    pool.run(check_accumulation, hosts, depth)


def check_arguments() -> None:
    if own_rank() < 2:
        ranks = communicator("aa")
        with pytest.raises(ValueError, match="op is 'mean'; it must be one of"):
            ranks.all_reduce(torch.ones(1), "mean")
        with pytest.raises(ValueError, match=r"torch\.complex64"):
            ranks.all_reduce(torch.ones(1, dtype=torch.complex64))
        with pytest.raises(ValueError, match="on meta; it must be on the CPU"):
            ranks.all_reduce(torch.ones(1, device="meta"))
        with pytest.raises(ValueError, match="depth is 4"):
            ranks.all_reduce(torch.ones(1), depth=4)
        ranks.barrier()  # bad arguments disturb nothing


def test_bad_arguments(pool: RankPool) -> None:
    pool.run(check_arguments)
