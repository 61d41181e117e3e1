"""Products that are cut into blocks, parts and ranges of k: sums, and bits that no cut changes."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.cpu_kernels import EMULATED, NATIVE, kernels_of
from taco_kernels.cpu.matmul import (
    EncodedRows,
    ProductCall,
    empty_operands,
    in_row_order,
    multiply,
    multiply_argmax,
    multiply_in_turn,
)
from taco_kernels.cpu.packed_matrix import PackedMatrix
from taco_kernels.library import CpuKernels
from taco_kernels.reference.linear import int8_linear, linear

DTYPES = (torch.float32, torch.bfloat16, torch.int8)
EPILOGUES = ("store", "add", "gate", "operands", "relu")
# Rows, columns and k that reach each way of csrc/matmul/blocking.h and multiply_tiles.h.
SHAPES = {
    "one stream": (32, 70, 300),
    "one stream of a tile": (16, 48, 100),
    "two parts of k": (75, 100, 1000),
    "ragged rows": (49, 40, 200),
    "two blocks of rows": (540, 40, 100),
    "blocks of fewer rows": (280, 20, 970),
    "ranges of k": (161, 150, 2100),
    "ranges of k of few rows": (128, 24, 5400),
}


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def multiply_as(
    kernels: CpuKernels, x: Tensor, matrix: PackedMatrix, epilogue: str, before: Tensor
) -> Tensor:
    """The product of some rows with one of EPILOGUES; `before` is the residual stream."""
    rows = EncodedRows(kernels, x, matrix.dtype)
    options: dict[str, Any] = {"gate": {"activation": "silu"}, "relu": {"activation": "relu"}}.get(
        epilogue, {}
    )
    if epilogue == "add":
        return multiply(kernels, rows, matrix, add_to=before.clone(), factor=0.5)
    if epilogue == "operands":
        out = multiply(kernels, rows, matrix, activation="silu", as_operands=True)
        columns = matrix.shape[0] // 2
        return in_row_order(kernels, out, x.shape[0])[:, :columns].float()
    return multiply(kernels, rows, matrix, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("name", SHAPES)
def test_no_cut_changes_a_bit(
    cpu_kernels: CpuKernels, dtype: torch.dtype, epilogue: str, name: str
) -> None:
    count, n, k = SHAPES[name]
    x, w, bias = numbers(count, k), numbers(n, k, seed=1), numbers(n, seed=2)
    gated = epilogue in ("gate", "operands")
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, dtype, bias=bias, gated=gated)
    before = numbers(count, n // 2 if gated else n, seed=3)
    wanted = multiply_as(cpu_kernels, x, matrix, epilogue, before)

    for threads in (1, 3):
        kernels = kernels_of(cpu_kernels.isa, threads)
        for begin, end in ((0, count), (0, 1), (count - 1, count), (3, 16), (1, 33), (7, count)):
            part = slice(begin, min(end, count))
            out = multiply_as(kernels, x[part], matrix, epilogue, before[part])
            assert torch.equal(out, wanted[part]), (threads, begin, end)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SHAPES)
def test_sums_are_those_of_the_reference(
    cpu_kernels: CpuKernels, dtype: torch.dtype, name: str
) -> None:
    count, n, k = SHAPES[name]
    x, w, bias = numbers(count, k), numbers(n, k, seed=1), numbers(n, seed=2)
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, dtype, bias=bias)

    out = multiply(cpu_kernels, EncodedRows(cpu_kernels, x, dtype), matrix)

    assert_near(out, reference(cpu_kernels, x, w, bias, dtype), x, w)


def reference(
    kernels: CpuKernels, x: Tensor, w: Tensor, bias: Tensor, dtype: torch.dtype
) -> Tensor:
    if dtype == torch.int8:
        return int8_linear(x, w, bias).double()
    narrow = dtype == torch.bfloat16 and kernels.bf16_operand_bytes == 2
    return linear(x.bfloat16().float() if narrow else x, w.to(dtype), bias)


def assert_near(actual: Tensor, wanted: Tensor, x: Tensor, w: Tensor) -> None:
    """Assert equality within the error of float32 sums of `k` products."""
    bound = 2e-6 * (x.double().abs() @ w.double().abs().T) + 1e-6 * wanted.abs() + 1e-30
    assert actual.shape == wanted.shape
    assert ((actual.double() - wanted).abs() <= bound).all()


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_rows_of_any_product_have_the_bits_of_each_row_alone(
    isa: str, data: st.DataObject
) -> None:
    count, n = data.draw(st.integers(1, 100)), data.draw(st.integers(1, 70))
    k, dtype = data.draw(st.integers(1, 1200)), data.draw(st.sampled_from(DTYPES))
    threads, row = data.draw(st.integers(1, 3)), data.draw(st.integers(0, count - 1))
    end = data.draw(st.integers(row + 1, count))
    kernels = kernels_of(isa, threads)
    x, w = numbers(count, k), numbers(n, k, seed=1)
    matrix = PackedMatrix.from_tensor(kernels, w, dtype)
    out = multiply(kernels, EncodedRows(kernels, x, dtype), matrix)

    for part in (slice(row, row + 1), slice(row, end)):
        again = multiply(kernels, EncodedRows(kernels, x[part], dtype), matrix)
        assert torch.equal(again, out[part])
    assert_near(out, reference(kernels, x, w, torch.zeros(n), dtype), x, w)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_greatest_column_of_many_rows(cpu_kernels: CpuKernels, dtype: torch.dtype) -> None:
    x, w = numbers(300, 70), numbers(150, 70, seed=1)
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, dtype)
    rows = EncodedRows(cpu_kernels, x, dtype)
    logits = multiply(cpu_kernels, rows, matrix)

    columns = multiply_argmax(cpu_kernels, rows, matrix)

    assert torch.equal(columns.long(), logits.argmax(dim=1))


def test_rows_past_the_last_change_no_bit(cpu_kernels: CpuKernels) -> None:
    """The memory of a tile's missing rows may hold anything."""
    x = numbers(5, 100)
    matrix = PackedMatrix.from_tensor(cpu_kernels, numbers(40, 100, seed=1), torch.bfloat16)
    wanted = multiply(cpu_kernels, EncodedRows(cpu_kernels, x, matrix.dtype), matrix)
    many = EncodedRows(cpu_kernels, torch.cat([x, torch.full((11, 100), torch.nan)]), matrix.dtype)
    many.struct.count = 5

    out = multiply(cpu_kernels, many, matrix)

    assert torch.equal(out, wanted)


def test_refuses_memory_of_another_shape_or_type() -> None:
    kernels = kernels_of("avx2", 1)
    matrix = PackedMatrix.from_tensor(kernels, numbers(8, 8).bfloat16(), gated=True)
    rows = EncodedRows(kernels, numbers(2, 8), torch.bfloat16)

    with pytest.raises(ValueError, match=r"out must be float32 \[2, 4\]"):
        multiply(kernels, rows, matrix, out=torch.empty(2, 8))
    with pytest.raises(ValueError, match=r"out must be torch.float32 \[2, 32\]"):
        multiply(kernels, rows, matrix, as_operands=True, out=torch.empty(2, 8))
    with pytest.raises(ValueError, match=r"add_to must be float32 \[2, 4\]"):
        multiply(kernels, rows, matrix, add_to=torch.empty(3, 4))
    out = empty_operands(kernels, torch.bfloat16, 2, 4)
    assert multiply(kernels, rows, matrix, as_operands=True, out=out) is out


def test_products_in_turn_are_those_of_single_calls(cpu_kernels: CpuKernels) -> None:
    """Each call adds to what the ones before it have left."""
    matrices = [
        PackedMatrix.from_tensor(cpu_kernels, numbers(200, 96, seed=seed), torch.bfloat16)
        for seed in range(3)
    ]
    rows = EncodedRows(cpu_kernels, numbers(5, 96), torch.bfloat16)
    one_by_one, in_turn = torch.zeros(5, 200), torch.zeros(5, 200)
    for matrix in matrices:
        multiply(cpu_kernels, rows, matrix, add_to=one_by_one, factor=0.5)
    multiply_in_turn(
        cpu_kernels,
        [ProductCall(cpu_kernels, rows, each, add_to=in_turn, factor=0.5) for each in matrices],
    )
    assert one_by_one.any()
    assert torch.equal(in_turn, one_by_one)
