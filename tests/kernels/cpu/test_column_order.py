"""Codes whose columns have any order of groups multiply int8 activations in the groups' order."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.cpu_kernels import EMULATED, NATIVE, decode_int8, kernels_of
from support.group_codes import random_codes
from taco_kernels.code_layout import RowSegment
from taco_kernels.cpu.coded_matrix import CodedMatrix
from taco_kernels.cpu.coded_part import layout_of
from taco_kernels.cpu.column_order import ColumnOrder, order_of
from taco_kernels.cpu.matmul import EncodedRows, in_row_order, multiply
from taco_kernels.group_codes import GroupCodes
from taco_kernels.library import CpuKernels


def activations(count: int, k: int) -> torch.Tensor:
    """Normal numbers; every second row has outliers."""
    random = torch.Generator().manual_seed(count)
    x = torch.randn(count, k, generator=random)
    x[1::2, torch.randperm(k, generator=random)[:3]] *= 50
    return x


def sorted_codes(codes: GroupCodes, order: ColumnOrder) -> GroupCodes:
    return replace(codes, codes=codes.codes[:, order.columns], group_of_column=None)


def random_order(k: int) -> ColumnOrder:
    return ColumnOrder(torch.randperm(k, generator=torch.Generator().manual_seed(k)))


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
@pytest.mark.parametrize("k", [1, 63, 64, 200, 1000])
def test_operands_are_those_of_the_plain_row_in_the_order(isa: str, k: int) -> None:
    kernels, x, order = kernels_of(isa, 2), activations(18, k), random_order(k)
    plain = EncodedRows(kernels, x, torch.int8)

    rows = EncodedRows(kernels, x, torch.int8, order)

    numbers, wanted = (
        decode_int8(in_row_order(kernels, one.data, 18), kernels) for one in (rows, plain)
    )
    assert torch.equal(numbers[:, :k], wanted[:, :k][:, order.columns])
    assert not numbers[:, k:].any()
    assert rows.row_scales is not None
    assert plain.row_scales is not None
    assert torch.equal(rows.row_scales.scales, plain.row_scales.scales)
    assert plain.row_scales.num_outliers.any() or k == 1
    high = plain.row_scales.high_parts(k)[:, order.columns]
    assert torch.equal(rows.row_scales.high_parts(k), high)


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    count=st.sampled_from([1, 7, 33]),
    n=st.integers(1, 70),
    k=st.integers(65, 500),
    kind=st.sampled_from(["int4", "int8"]),
    group=st.sampled_from([64, 128, 192]),
)
def test_a_product_has_the_bits_of_sorted_columns(
    isa: str, count: int, n: int, k: int, kind: str, group: int
) -> None:
    kernels = kernels_of(isa, 2)
    offset = "zeros" if kind == "int4" else "none"
    codes = random_codes(n, k, kind, group, offset=offset, has_column_groups=True)  # type: ignore[arg-type]
    x = activations(count, k)

    matrix = CodedMatrix.from_codes(kernels, codes, operands=torch.int8)

    order = matrix.column_order
    assert order is not None or k <= group
    if order is None:
        return
    out = multiply(kernels, EncodedRows(kernels, x, torch.int8, order), matrix)
    plain = CodedMatrix.from_codes(kernels, sorted_codes(codes, order), operands=torch.int8)
    rows = EncodedRows(kernels, x[:, order.columns].contiguous(), torch.int8)
    # Rows without outliers: their limit is a sum of floats in another order.
    assert rows.row_scales is not None
    alike = rows.row_scales.num_outliers == 0
    assert torch.equal(out[alike], multiply(kernels, rows, plain)[alike])
    torch.testing.assert_close(out, x @ codes.values().T, atol=0.3 * k**0.5, rtol=0.05)


def test_one_order_serves_segments_without_one(cpu_kernels: CpuKernels) -> None:
    """Rows of one group take any order of columns."""
    k, x = 256, activations(5, 256)
    parts = [
        random_codes(48, k, "int4", 64, offset="zeros", has_column_groups=True),
        random_codes(32, k, "int8", k, seed=1),
    ]
    order = order_of(parts)
    assert order is not None
    segments = [RowSegment(part.shape[0], layout_of(part)) for part in parts]
    matrix = CodedMatrix(80, k, segments, operands=torch.int8, order=order)
    matrix.pack_codes(cpu_kernels, parts[0], 0)
    matrix.pack_codes(cpu_kernels, parts[1], 48)

    out = multiply(cpu_kernels, EncodedRows(cpu_kernels, x, torch.int8, order), matrix)

    alone = [CodedMatrix.from_codes(cpu_kernels, part, operands=torch.int8) for part in parts]
    first = EncodedRows(cpu_kernels, x, torch.int8, order)
    assert torch.equal(out[:, :48], multiply(cpu_kernels, first, alone[0]))
    second = EncodedRows(cpu_kernels, x, torch.int8)
    plain = multiply(cpu_kernels, second, alone[1])
    alike = second.row_scales.num_outliers == 0  # type: ignore[union-attr]
    assert alike.any()
    assert torch.equal(out[alike, 48:], plain[alike])


def test_groups_in_order_need_none() -> None:
    codes = random_codes(4, 256, "int4", 64)
    in_order = replace(codes, group_of_column=torch.arange(256, dtype=torch.int32) // 64)
    assert order_of([codes, in_order]) is None


def test_which_columns_have_no_order() -> None:
    codes = random_codes(4, 256, "int4", 64, has_column_groups=True)
    others = random_codes(4, 256, "int4", 64, has_column_groups=True, seed=1)
    uneven = torch.zeros(256, dtype=torch.int32)

    with pytest.raises(ValueError, match="unlike orders"):
        order_of([codes, others])
    with pytest.raises(ValueError, match="unlike orders"):
        order_of([codes, replace(codes, group_of_column=None)])
    with pytest.raises(ValueError, match="a group of 64 columns has another number"):
        order_of([replace(codes, group_of_column=uneven)])


def test_codes_in_another_order_are_rejected(cpu_kernels: CpuKernels) -> None:
    codes = random_codes(16, 256, "int4", 64, has_column_groups=True)
    matrix = CodedMatrix(16, 256, [RowSegment(16, layout_of(codes))], operands=torch.int8)
    with pytest.raises(ValueError, match="not in the order of their groups"):
        matrix.pack_codes(cpu_kernels, codes)
