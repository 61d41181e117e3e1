"""The products of LoRA adapters on the CPU, against the reference and against themselves."""

from __future__ import annotations

from typing import Unpack

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.cpu_kernels import EMULATED, NATIVE, kernels_of
from taco_kernels.cpu.adapters import PackedAdapters, multiply_adapted
from taco_kernels.cpu.matmul import (
    EncodedRows,
    ProductCall,
    ProductOptions,
    in_row_order,
    multiply,
)
from taco_kernels.cpu.packed_matrix import PackedMatrix
from taco_kernels.library import CpuKernels
from taco_kernels.reference import adapters as reference
from taco_kernels.reference.activation import act_mul, activate

DTYPES = (torch.float32, torch.bfloat16)
# Relative to the greatest output: activations are rounded to bf16 twice.
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
Pairs = list[tuple[Tensor, Tensor] | None]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def pairs_of(n: int, k: int, ranks: list[int], dtype: torch.dtype) -> Pairs:
    """A and B of adapters with these ranks, as `dtype` keeps them; rank 0: none."""
    return [
        None
        if not rank
        else (
            (numbers(rank, k, seed=i) / k**0.5).to(dtype).float(),
            (numbers(n, rank, seed=50 + i) / rank**0.5).to(dtype).float(),
        )
        for i, rank in enumerate(ranks)
    ]


def assert_near(actual: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    assert actual.shape == wanted.shape
    if wanted.numel() and wanted.abs().max():
        error = (actual - wanted).abs().max() / wanted.abs().max()
        assert error <= TOLERANCES[dtype], error


def adapted(
    kernels: CpuKernels,
    x: Tensor,
    ids: Tensor,
    adapters: PackedAdapters,
    matrix: PackedMatrix,
    *,
    tokens: Tensor | None = None,
    **options: Unpack[ProductOptions],
) -> Tensor:
    call = ProductCall(kernels, EncodedRows(kernels, x, matrix.dtype), matrix, **options)
    rows = EncodedRows(kernels, x, adapters.dtype)
    out = multiply_adapted(kernels, call, rows, ids, adapters, tokens=tokens)
    if options.get("as_operands"):
        return in_row_order(kernels, out, x.shape[0])[:, : matrix.shape[0]]
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_rows", "n", "k", "ranks"),
    [
        (1, 64, 64, [8]),
        (9, 70, 40, [16, 4, 1]),
        (150, 33, 96, [8, 0, 70, 3]),
        (24, 40, 48, [5, 7]),
        (0, 32, 32, [4]),
    ],
)
def test_agrees_with_the_reference(
    cpu_kernels: CpuKernels, dtype: torch.dtype, num_rows: int, n: int, k: int, ranks: list[int]
) -> None:
    pairs = pairs_of(n, k, ranks, dtype)
    x = numbers(num_rows, k, seed=7)
    ids = torch.arange(num_rows, dtype=torch.int32) % (len(ranks) + 1) - 1
    zeros = PackedMatrix.from_tensor(cpu_kernels, torch.zeros(n, k), dtype)

    out = adapted(cpu_kernels, x, ids, PackedAdapters(cpu_kernels, pairs, dtype), zeros)

    assert_near(out, reference.multiply_adapters(x, ids, pairs, n), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(24, 8, 40), (16, 16), (7, 1, 90)])
def test_weights_of_a_fused_one_have_their_own_ranks(
    cpu_kernels: CpuKernels, dtype: torch.dtype, sizes: tuple[int, ...]
) -> None:
    """B has blocks, whose zeros are left out; panels may hold columns of two blocks."""
    k, rank = 32, 5
    parts = [pairs_of(size, k, [rank], dtype)[0] for size in sizes]
    a = torch.cat([part[0] for part in parts if part is not None])
    b = torch.block_diag(*(part[1] for part in parts if part is not None))
    x, ids = numbers(20, k), torch.zeros(20, dtype=torch.int32)
    zeros = PackedMatrix.from_tensor(cpu_kernels, torch.zeros(sum(sizes), k), dtype)

    out = adapted(cpu_kernels, x, ids, PackedAdapters(cpu_kernels, [(a, b)], dtype), zeros)

    assert_near(out, reference.multiply_adapters(x, ids, [(a, b)], sum(sizes)), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ids_are_those_of_tokens(dtype: torch.dtype) -> None:
    kernels = kernels_of(NATIVE[-1], 2)
    adapters = PackedAdapters(kernels, pairs_of(32, 48, [4, 4], dtype), dtype)
    matrix = PackedMatrix.from_tensor(kernels, numbers(32, 48), dtype)
    x, ids = numbers(3, 48), torch.tensor([1, -1, 0, 1], dtype=torch.int32)
    tokens = torch.tensor([3, 1, 2], dtype=torch.int32)

    out = adapted(kernels, x, ids, adapters, matrix, tokens=tokens)

    assert torch.equal(out, adapted(kernels, x, ids[tokens], adapters, matrix))


@given(
    ids=st.lists(st.integers(-1, 3), min_size=1, max_size=70),
    dtype=st.sampled_from(DTYPES),
    isa=st.sampled_from([NATIVE[-1], EMULATED[-1]]),
)
@settings(max_examples=40, deadline=None)
def test_bits_of_a_row_do_not_depend_on_others(
    ids: list[int], dtype: torch.dtype, isa: str
) -> None:
    kernels, n, k = kernels_of(isa, 2), 48, 64
    adapters = PackedAdapters(kernels, pairs_of(n, k, [8, 2, 0, 16], dtype), dtype)
    matrix = PackedMatrix.from_tensor(kernels, numbers(n, k), dtype)
    x, chosen = numbers(len(ids), k), torch.tensor(ids, dtype=torch.int32)

    out = adapted(kernels, x, chosen, adapters, matrix)

    alone = [
        adapted(kernels, x[i : i + 1], chosen[i : i + 1], adapters, matrix) for i in range(len(ids))
    ]
    assert torch.equal(out, torch.cat(alone))


@pytest.mark.parametrize("matrix_dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("finish", ["store", "gelu", "add", "gate", "operands"])
@pytest.mark.parametrize("num_rows", [1, 40, 150])
def test_adapters_come_before_the_epilogue(
    cpu_kernels: CpuKernels, matrix_dtype: torch.dtype, finish: str, num_rows: int
) -> None:
    """Of every matrix; and rows without one have the bits of the product without adapters."""
    n, k = 72, 64
    gated = finish == "gate"
    dtype = torch.float32 if matrix_dtype == torch.float32 else torch.bfloat16
    pairs = pairs_of(n, k, [8, 24], dtype)
    weight, x = numbers(n, k) / 8, numbers(num_rows, k, seed=1)
    ids = torch.arange(num_rows, dtype=torch.int32) % 3 - 1
    added = reference.multiply_adapters(x, ids, pairs, n)
    matrix = PackedMatrix.from_tensor(cpu_kernels, weight, matrix_dtype, gated=gated)
    adapters = PackedAdapters(cpu_kernels, pairs, dtype, gated=gated)
    rows = EncodedRows(cpu_kernels, x, matrix_dtype)

    def options() -> ProductOptions:
        match finish:
            case "gelu" | "gate":
                return {"activation": "silu" if gated else "gelu"}
            case "add":
                return {"add_to": numbers(num_rows, n, seed=3), "factor": 0.5}
            case "operands":
                return {"as_operands": True}
        return {}

    out = adapted(cpu_kernels, x, ids, adapters, matrix, **options())

    plain = multiply(cpu_kernels, rows, matrix, **options())
    if finish == "operands":
        plain = in_row_order(cpu_kernels, plain, num_rows)[:, :n]
    has_none = ids < 0
    assert torch.equal(out[has_none], plain[has_none])
    # The sums before the epilogue, of an ungated matrix in the order of its rows.
    whole = PackedMatrix.from_tensor(cpu_kernels, weight, matrix_dtype)
    sums = multiply(cpu_kernels, rows, whole) + added
    match finish:
        case "gelu":
            sums = activate(sums, "gelu")
        case "gate":
            sums = act_mul(sums, "silu")
        case "add":
            sums = numbers(num_rows, n, seed=3) + 0.5 * sums
    assert_near(out.float(), sums, torch.bfloat16 if finish == "operands" else dtype)


@pytest.mark.parametrize(
    ("ids", "tokens", "message"),
    [
        ([0, 2], None, "an id is not below 2"),
        ([0], None, "2 rows need as many ids"),
        ([0, 1], [0, 2], "a token is not in 0 to 1"),
    ],
)
def test_rejects_ids_that_do_not_fit(
    ids: list[int], tokens: list[int] | None, message: str
) -> None:
    kernels = kernels_of(NATIVE[-1], 1)
    adapters = PackedAdapters(kernels, pairs_of(32, 16, [4, 4], torch.float32), torch.float32)
    matrix = PackedMatrix.from_tensor(kernels, numbers(32, 16))
    of_rows = None if tokens is None else torch.tensor(tokens, dtype=torch.int32)

    with pytest.raises(ValueError, match=message):
        adapted(
            kernels,
            numbers(2, 16),
            torch.tensor(ids, dtype=torch.int32),
            adapters,
            matrix,
            tokens=of_rows,
        )


def test_rejects_matrices_that_do_not_fit() -> None:
    kernels = kernels_of(NATIVE[-1], 1)
    one, other = pairs_of(32, 16, [4], torch.float32), pairs_of(32, 24, [4], torch.float32)
    for pairs in (one + other, [None]):
        with pytest.raises(ValueError, match=r"A \[rank, k\] and B \[n, rank\]"):
            PackedAdapters(kernels, pairs, torch.float32)
