"""Products with k in segments: processes that hold whole segments get the bits of one process."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.cpu_kernels import EMULATED, NATIVE, kernels_of
from taco_kernels.cpu.matmul import EncodedRows, multiply
from taco_kernels.cpu.packed_matrix import PackedMatrix
from taco_kernels.library import CpuKernels
from taco_kernels.segments import MAX_SEGMENTS, TILE_K

FLOATS = (torch.float32, torch.bfloat16)
COUNTS = (2, 4, MAX_SEGMENTS)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def product(
    kernels: CpuKernels, x: Tensor, w: Tensor, dtype: torch.dtype, segments: int = 1
) -> Tensor:
    matrix = PackedMatrix.from_tensor(kernels, w, dtype, segments=segments)
    return multiply(kernels, EncodedRows(kernels, x, dtype), matrix)


def tree_sum(parts: list[Tensor]) -> Tensor:
    """The sum of 1, 2, 4, ... parts: neighbours first."""
    while len(parts) > 1:
        parts = [left + right for left, right in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def of_ranks(
    kernels: CpuKernels, x: Tensor, w: Tensor, dtype: torch.dtype, segments: int, ranks: int
) -> Tensor:
    """The product as `ranks` processes compute it, each from its own columns of x and W."""
    columns = zip(x.chunk(ranks, dim=1), w.chunk(ranks, dim=1), strict=True)
    return tree_sum([product(kernels, *own, dtype, segments // ranks) for own in columns])


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    count=st.integers(1, 120),
    n=st.integers(1, 130),
    steps=st.integers(1, 20),
    dtype=st.sampled_from(FLOATS),
    segments=st.sampled_from(COUNTS),
    threads=st.integers(1, 3),
    data=st.data(),
)
def test_ranks_get_the_bits_of_one_process(
    isa: str,
    count: int,
    n: int,
    steps: int,
    dtype: torch.dtype,
    segments: int,
    threads: int,
    data: st.DataObject,
) -> None:
    kernels = kernels_of(isa, threads)
    k = segments * steps * TILE_K
    x, w = numbers(count, k), numbers(n, k, seed=1)

    whole = product(kernels, x, w, dtype, segments)

    ranks = [ranks for ranks in COUNTS if ranks <= segments]
    for each in ranks:
        assert torch.equal(whole, of_ranks(kernels, x, w, dtype, segments, each)), each
    begin = data.draw(st.integers(0, count - 1))
    end = data.draw(st.integers(begin + 1, count))
    part = product(kernels_of(isa, 4 - threads), x[begin:end], w, dtype, segments)
    assert torch.equal(part, whole[begin:end])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("segments", COUNTS)
def test_long_segments_are_summed_in_parts(
    cpu_kernels: CpuKernels, dtype: torch.dtype, segments: int
) -> None:
    k = segments * 608
    x, w = numbers(5, k), numbers(20, k, seed=1)

    whole = product(cpu_kernels, x, w, dtype, segments)

    assert torch.equal(whole, of_ranks(cpu_kernels, x, w, dtype, segments, segments))
    assert not torch.equal(whole, product(cpu_kernels, x, w, dtype))  # another order


@pytest.mark.parametrize("dtype", FLOATS)
def test_ranks_add_before_the_epilogue(cpu_kernels: CpuKernels, dtype: torch.dtype) -> None:
    """One of them, or each, applies the bias and adds to the residual stream."""
    x, w, bias = numbers(7, 256), numbers(50, 256, seed=1), numbers(50, seed=2)
    stream = numbers(7, 50, seed=3)
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, dtype, bias=bias, segments=4)
    wanted = stream + (of_ranks(cpu_kernels, x, w, dtype, 4, 2) + bias)

    multiply(cpu_kernels, EncodedRows(cpu_kernels, x, dtype), matrix, add_to=stream)

    assert torch.equal(stream, wanted)


def test_int8_sums_of_ranks_are_exact_without_segments(cpu_kernels: CpuKernels) -> None:
    """Whole numbers with the scale 1 in every part: a product is then its int32 sum."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-127, 128, (9, 4 * 96), generator=generator).float()
    w = torch.randint(-127, 128, (40, 4 * 96), generator=generator).float()
    for numbers_of in (x, w):
        numbers_of[:, ::96] = 127

    whole = product(cpu_kernels, x, w, torch.int8)

    assert torch.equal(whole, of_ranks(cpu_kernels, x, w, torch.int8, 4, 4))
    assert torch.equal(whole.double(), x.double() @ w.double().T)


@pytest.mark.parametrize(
    ("k", "segments", "dtype", "message"),
    [
        (192, 3, torch.bfloat16, "cannot be 3 segments"),
        (1024, 16, torch.bfloat16, "cannot be 16 segments"),
        (1024, 0, torch.bfloat16, "cannot be 0 segments"),
        (96, 2, torch.float32, "multiple of 32"),
        (128, 2, torch.int8, "exact"),
    ],
)
def test_refuses_segments_that_a_matrix_cannot_have(
    k: int, segments: int, dtype: torch.dtype, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        PackedMatrix(16, k, dtype, segments=segments)
