"""The products of LoRA adapters on the CPU, against the reference and against themselves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.cpu_kernels import EMULATED, NATIVE, kernels_of
from taco_kernels.cpu.adapters import PackedAdapters, multiply_adapters
from taco_kernels.cpu.matmul import EncodedRows, in_row_order, multiply
from taco_kernels.cpu.packed_matrix import PackedMatrix
from taco_kernels.library import CpuKernels
from taco_kernels.reference import adapters as reference

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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_rows", "n", "k", "ranks"),
    [
        (1, 64, 64, [8]),
        (9, 70, 40, [16, 4, 1]),
        (150, 33, 96, [8, 0, 64, 3]),
        (0, 32, 32, [4]),
    ],
)
def test_agrees_with_the_reference(
    cpu_kernels: CpuKernels, dtype: torch.dtype, num_rows: int, n: int, k: int, ranks: list[int]
) -> None:
    pairs = pairs_of(n, k, ranks, dtype)
    x = numbers(num_rows, k, seed=7)
    ids = torch.arange(num_rows, dtype=torch.int32) % (len(ranks) + 1) - 1

    adapters = PackedAdapters(cpu_kernels, pairs, dtype)
    out = multiply_adapters(cpu_kernels, EncodedRows(cpu_kernels, x, dtype), ids, adapters)

    assert_near(out[:, :n], reference.multiply_adapters(x, ids, pairs, n), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ids_are_those_of_tokens(dtype: torch.dtype) -> None:
    kernels = kernels_of(NATIVE[-1], 2)
    adapters = PackedAdapters(kernels, pairs_of(32, 48, [4, 4], dtype), dtype)
    rows = EncodedRows(kernels, numbers(3, 48), dtype)
    ids = torch.tensor([1, -1, 0, 1], dtype=torch.int32)
    tokens = torch.tensor([3, 1, 2], dtype=torch.int32)

    out = multiply_adapters(kernels, rows, ids, adapters, tokens=tokens)

    assert torch.equal(out, multiply_adapters(kernels, rows, ids[tokens], adapters))


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
    x, chosen = numbers(len(ids), k), torch.tensor(ids, dtype=torch.int32)

    out = multiply_adapters(kernels, EncodedRows(kernels, x, dtype), chosen, adapters)

    alone = [
        multiply_adapters(
            kernels, EncodedRows(kernels, x[i : i + 1], dtype), chosen[i : i + 1], adapters
        )
        for i in range(len(ids))
    ]
    assert torch.equal(out, torch.cat(alone))


@pytest.mark.parametrize("matrix_dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("finish", ["store", "gelu", "add", "gate", "operands"])
@pytest.mark.parametrize("num_rows", [1, 40, 150])
def test_an_addend_is_added_before_the_epilogue(
    cpu_kernels: CpuKernels, matrix_dtype: torch.dtype, finish: str, num_rows: int
) -> None:
    """Rows whose addend is -0 have the bits of a product without one; a bias adds the same bits."""
    n, k = 72, 64
    gated = finish == "gate"
    weight, x = numbers(n, k) / 8, numbers(num_rows, k, seed=1)
    bias = numbers(n, seed=2)
    plain = PackedMatrix.from_tensor(cpu_kernels, weight, matrix_dtype, gated=gated)
    biased = PackedMatrix.from_tensor(cpu_kernels, weight, matrix_dtype, bias=bias, gated=gated)
    rows = EncodedRows(cpu_kernels, x, matrix_dtype)
    addend = torch.full((num_rows, plain.packed_columns), -0.0)
    has_addend = torch.arange(num_rows) % 2 == 0
    packed = torch.zeros(plain.packed_columns)
    for half, first, part in plain._halves(bias, 0):
        packed[plain._columns_of(half, first, part.shape[0])] = part
    addend[has_addend] = packed
    options: dict[str, object] = {}
    if finish in ("gelu", "gate"):
        options["activation"] = "silu" if gated else "gelu"
    if finish == "operands":
        options["as_operands"] = True

    def product(matrix: PackedMatrix, added: Tensor | None) -> Tensor:
        own = dict(options)
        if finish == "add":
            own["add_to"] = numbers(num_rows, n, seed=3)
        if added is not None:
            own["addend"] = added
        out = multiply(cpu_kernels, rows, matrix, **own)  # type: ignore[arg-type]
        return in_row_order(cpu_kernels, out, num_rows) if finish == "operands" else out

    out = product(plain, addend)

    assert torch.equal(out[~has_addend, :n], product(plain, None)[~has_addend, :n])
    assert torch.equal(out[has_addend, :n], product(biased, None)[has_addend, :n])


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
    rows = EncodedRows(kernels, numbers(2, 16), torch.float32)
    of_rows = None if tokens is None else torch.tensor(tokens, dtype=torch.int32)

    with pytest.raises(ValueError, match=message):
        multiply_adapters(
            kernels, rows, torch.tensor(ids, dtype=torch.int32), adapters, tokens=of_rows
        )


def test_rejects_matrices_that_do_not_fit() -> None:
    kernels = kernels_of(NATIVE[-1], 1)
    one, other = pairs_of(32, 16, [4], torch.float32), pairs_of(32, 24, [4], torch.float32)
    for pairs in (one + other, [None]):
        with pytest.raises(ValueError, match=r"A \[rank, k\] and B \[n, rank\]"):
            PackedAdapters(kernels, pairs, torch.float32)
