"""Matrices of codes have the bits of the bfloat16 matrix with the same values."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.code_words import in_words
from support.cpu_kernels import EMULATED, NATIVE, kernels_of
from support.group_codes import random_codes, random_step_codes
from taco_kernels.code_layout import CodeLayout, RowSegment, ScaleType, StepType, coded_bytes
from taco_kernels.cpu.coded_matrix import CodedMatrix
from taco_kernels.cpu.coded_part import layout_of
from taco_kernels.cpu.column_order import order_of
from taco_kernels.cpu.matmul import EncodedRows, multiply, multiply_argmax
from taco_kernels.cpu.packed_matrix import PackedMatrix, WeightMatrix
from taco_kernels.group_codes import CodeKind, GroupCodes
from taco_kernels.library import CpuKernels
from taco_kernels.segments import MAX_SEGMENTS, TILE_K

KINDS: tuple[CodeKind, ...] = ("int4", "int8", "e4m3", "table16")
OFFSETS = ("none", "zeros", "minima")
STEP_TYPES: tuple[StepType, ...] = ("U8", "I8", "F8_E4M3")
SCALE_TYPES: tuple[ScaleType, ...] = ("F32", "BF16", "F16", "F8_E8M0")


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def encoded(kernels: CpuKernels, x: Tensor) -> EncodedRows:
    return EncodedRows(kernels, x, torch.bfloat16)


def decoded(
    kernels: CpuKernels, codes: GroupCodes, bias: Tensor | None = None, *, gated: bool = False
) -> PackedMatrix:
    return PackedMatrix.from_tensor(kernels, codes.values().bfloat16(), bias=bias, gated=gated)


def assert_same_products(
    kernels: CpuKernels, x: Tensor, matrix: WeightMatrix, wanted: WeightMatrix
) -> None:
    rows = encoded(kernels, x)
    out = multiply(kernels, rows, matrix)
    assert torch.isfinite(out).all()
    assert torch.equal(out, multiply(kernels, rows, wanted))


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    count=st.sampled_from([1, 2, 3, 7, 8, 9, 15, 17, 33, 90]),
    n=st.integers(1, 100),
    k=st.integers(1, 700),
    kind=st.sampled_from(KINDS),
    group=st.sampled_from([16, 24, 32, 48, 128, 256, 1024, 19]),
    offset=st.sampled_from(OFFSETS),
    scale_type=st.sampled_from(SCALE_TYPES),
    has_column_groups=st.booleans(),
    threads=st.integers(1, 3),
)
def test_a_product_has_the_bits_of_the_decoded_matrix(
    isa: str,
    count: int,
    n: int,
    k: int,
    kind: CodeKind,
    group: int,
    offset: str,
    scale_type: ScaleType,
    has_column_groups: bool,
    threads: int,
) -> None:
    kernels = kernels_of(isa, threads)
    codes = random_codes(
        n,
        k,
        kind,
        group,
        offset=offset,
        scale_type=scale_type,
        has_column_groups=has_column_groups,
    )
    bias = numbers(n, seed=2)
    matrix = CodedMatrix.from_codes(kernels, codes, scale_type=scale_type, bias=bias)

    assert_same_products(kernels, numbers(count, k), matrix, decoded(kernels, codes, bias))


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    count=st.sampled_from([1, 15, 40]),
    n=st.integers(1, 60),
    units=st.integers(1, 5),
    kind=st.sampled_from(KINDS),
    shared=st.sampled_from([(32, 8), (16, 16), (16, 3), (64, 1), (24, 2)]),
    step_type=st.sampled_from(STEP_TYPES),
    unit_type=st.sampled_from(["F16", "F32"]),
    has_minima=st.booleans(),
)
def test_scales_are_steps_of_units(
    isa: str,
    count: int,
    n: int,
    units: int,
    kind: CodeKind,
    shared: tuple[int, int],
    step_type: StepType,
    unit_type: ScaleType,
    has_minima: bool,
) -> None:
    kernels, (group, groups_per_unit) = kernels_of(isa, 2), shared
    k = units * group * groups_per_unit
    codes = random_step_codes(n, k, kind, group, groups_per_unit, step_type, has_minima=has_minima)
    matrix = CodedMatrix.from_codes(kernels, codes, scale_type=unit_type)

    assert_same_products(kernels, numbers(count, k), matrix, decoded(kernels, codes))


def test_steps_take_few_bytes(cpu_kernels: CpuKernels) -> None:
    """4.625 bits a weight, where Q4_K has 4.5."""
    codes = random_step_codes(160, 1024, "int4", 32, 8, "U8", has_minima=True)

    matrix = CodedMatrix.from_codes(cpu_kernels, codes, scale_type="F16")

    assert matrix.nbytes == 160 * 1024 * 4.625 / 8


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("offset", OFFSETS)
def test_every_code_is_decoded(cpu_kernels: CpuKernels, kind: CodeKind, offset: str) -> None:
    codes = random_codes(40, 512, kind, 32, offset=offset)
    every = torch.arange(256, dtype=torch.uint8)
    if kind == "int8":
        every = every.view(torch.int8)
    elif kind == "e4m3":
        every[[0x7F, 0xFF]] = 0
    else:
        every &= 15
    codes.codes[7] = every.repeat(2)
    matrix = CodedMatrix.from_codes(cpu_kernels, codes)

    rows = matrix.rows(cpu_kernels, torch.tensor([7, 0, 39, 7]))

    assert torch.equal(rows, codes.values().bfloat16().float()[[7, 0, 39, 7]])


def test_zeros_that_are_one_number_take_no_memory(cpu_kernels: CpuKernels) -> None:
    codes = random_codes(40, 96, "int4", 32)
    codes = replace(codes, zeros=torch.full((40, 3), 8, dtype=torch.int16))
    plain = CodedMatrix.from_codes(cpu_kernels, replace(codes, zeros=None))

    matrix = CodedMatrix.from_codes(cpu_kernels, codes, zero=8)

    assert matrix.nbytes == plain.nbytes
    assert_same_products(cpu_kernels, numbers(5, 96), matrix, decoded(cpu_kernels, codes))


def test_codes_take_few_bytes(cpu_kernels: CpuKernels) -> None:
    codes = random_codes(160, 1024, "int4", 128, scale_type="F16")

    matrix = CodedMatrix.from_codes(cpu_kernels, codes, scale_type="F16")

    assert matrix.nbytes == 160 * 1024 * (4 + 16 / 128) / 8


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 20, 70])
@pytest.mark.parametrize("inner", [16, 37, 100])
def test_gated_pair(cpu_kernels: CpuKernels, kind: CodeKind, count: int, inner: int) -> None:
    codes = random_codes(2 * inner, 200, kind, 32)
    bias = numbers(2 * inner, seed=2)
    matrix = CodedMatrix.from_codes(cpu_kernels, codes, bias=bias, gated=True)
    rows = encoded(cpu_kernels, numbers(count, 200))

    out = multiply(cpu_kernels, rows, matrix, activation="silu")

    wanted = decoded(cpu_kernels, codes, bias, gated=True)
    assert torch.equal(out, multiply(cpu_kernels, rows, wanted, activation="silu"))


@pytest.mark.parametrize("count", [1, 40])
def test_adds_to_the_residual_stream(cpu_kernels: CpuKernels, count: int) -> None:
    codes, stream = random_codes(50, 300, "int4", 64), numbers(count, 50, seed=3)
    rows = encoded(cpu_kernels, numbers(count, 300))
    matrix, wanted = CodedMatrix.from_codes(cpu_kernels, codes), stream.clone()

    multiply(cpu_kernels, rows, matrix, add_to=stream, factor=0.5)

    multiply(cpu_kernels, rows, decoded(cpu_kernels, codes), add_to=wanted, factor=0.5)
    assert torch.equal(stream, wanted)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("count", [1, 9, 40, 100])
def test_segments_of_rows_have_their_own_codes(
    cpu_kernels: CpuKernels, gated: bool, count: int
) -> None:
    """As of queries, keys and values of unlike formats, one of them without codes."""
    k, plain = 160, numbers(64, 160, seed=4).bfloat16()
    parts = [
        random_codes(32, k, "int4", 32, offset="zeros", scale_type="F16"),
        random_codes(48, k, "int8", 16, has_column_groups=True),
        random_codes(28, k, "table16", 64, scale_type="BF16"),
    ]
    if gated:  # the last two are of both halves, and end with a part of a panel
        parts[2] = random_codes(16, k, "e4m3", 64, scale_type="BF16")
    scale_types: list[ScaleType] = ["F16", "F32", "BF16"]
    rows = [
        RowSegment(part.shape[0], layout_of(part, scale_type))
        for part, scale_type in zip(parts, scale_types, strict=True)
    ]
    segments = [rows[0], rows[1], RowSegment(64, None), rows[2]]
    n = sum(segment.count for segment in segments)
    matrix = CodedMatrix(n, k, segments, gated=gated)
    for part, first in zip(parts, (0, 32, 144), strict=True):
        matrix.pack_codes(cpu_kernels, part, first)
    matrix.pack(cpu_kernels, plain, 80)
    numbers_of = [parts[0].values(), parts[1].values(), plain.float(), parts[2].values()]
    wanted = PackedMatrix.from_tensor(cpu_kernels, torch.cat(numbers_of).bfloat16(), gated=gated)

    activation = "silu" if gated else "none"
    x = encoded(cpu_kernels, numbers(count, k))
    out = multiply(cpu_kernels, x, matrix, activation=activation)

    assert torch.equal(out, multiply(cpu_kernels, x, wanted, activation=activation))


@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_packed_in_slices(cpu_kernels: CpuKernels, kind: CodeKind) -> None:
    codes = random_codes(75, 90, kind, 32, offset="zeros")
    matrix = CodedMatrix(75, 90, [RowSegment(75, layout_of(codes))])

    for rows in (slice(30, 47), slice(0, 5), slice(47, 75), slice(5, 30)):
        matrix.pack_codes(cpu_kernels, codes.map_rows(itemgetter(rows)), rows.start)

    assert_same_products(cpu_kernels, numbers(3, 90), matrix, decoded(cpu_kernels, codes))


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
@pytest.mark.parametrize("segments", [2, MAX_SEGMENTS])
@pytest.mark.parametrize("count", [1, 20, 100])
def test_segments_of_k(isa: str, segments: int, count: int) -> None:
    kernels, k = kernels_of(isa, 2), 5 * segments * TILE_K
    codes = random_codes(100, k, "int4", 48)
    matrix = CodedMatrix.from_codes(kernels, codes, segments=segments)
    values = codes.values().bfloat16()
    wanted = PackedMatrix.from_tensor(kernels, values, segments=segments)
    rows = encoded(kernels, numbers(count, k))

    assert torch.equal(multiply(kernels, rows, matrix), multiply(kernels, rows, wanted))
    best = multiply_argmax(kernels, rows, matrix)
    assert torch.equal(best, multiply_argmax(kernels, rows, wanted))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 40])
def test_argmax_and_masks(cpu_kernels: CpuKernels, kind: CodeKind, count: int) -> None:
    codes = random_codes(203, 70, kind, 32)
    matrix, wanted = CodedMatrix.from_codes(cpu_kernels, codes), decoded(cpu_kernels, codes)
    rows = encoded(cpu_kernels, numbers(count, 70))
    logprobs, wanted_logprobs = torch.empty(count), torch.empty(count)

    columns = multiply_argmax(cpu_kernels, rows, matrix, logprobs)

    assert torch.equal(columns, multiply_argmax(cpu_kernels, rows, wanted, wanted_logprobs))
    assert torch.equal(logprobs, wanted_logprobs)


def test_long_matrices_are_multiplied_in_blocks(cpu_kernels: CpuKernels) -> None:
    """More rows and columns than a block, and ranges of k on tiles."""
    codes = random_codes(640, 2080, "int4", 128, scale_type="F16")
    matrix = CodedMatrix.from_codes(cpu_kernels, codes, scale_type="F16")

    assert_same_products(cpu_kernels, numbers(300, 2080), matrix, decoded(cpu_kernels, codes))


def test_rejects_codes_that_do_not_fit(cpu_kernels: CpuKernels) -> None:
    codes = random_codes(32, 64, "int4", 32)
    with pytest.raises(ValueError, match="not exact in F16"):
        CodedMatrix.from_codes(cpu_kernels, codes, scale_type="F16")
    with pytest.raises(ValueError, match="no multiple of 16"):
        coded_bytes(32, 64, [RowSegment(20, None), RowSegment(12, None)], False)
    with pytest.raises(ValueError, match="are not 32"):
        coded_bytes(32, 64, [RowSegment(16, None)], False)
    matrix = CodedMatrix(32, 64, [RowSegment(32, CodeLayout("int8", 32))])
    with pytest.raises(ValueError, match="another layout"):
        matrix.pack_codes(cpu_kernels, codes)
    with pytest.raises(ValueError, match="does not fit"):
        matrix.pack_codes(cpu_kernels, codes, 1)
    with pytest.raises(ValueError, match="int8 codes"):
        matrix.pack(cpu_kernels, numbers(32, 64))
    floats = random_codes(32, 64, "e4m3", 32)
    floats.codes[3, 4] = 0xFF
    with pytest.raises(ValueError, match="no number"):
        CodedMatrix.from_codes(cpu_kernels, floats)
    floats = random_codes(32, 64, "e4m3", 32)
    floats.scales[3, 1] = 2.0**120
    with pytest.raises(ValueError, match="a scale of 8-bit floats is"):
        CodedMatrix.from_codes(cpu_kernels, floats)
    steps = random_step_codes(32, 64, "int4", 32, 2, "U8", has_minima=False)
    with pytest.raises(ValueError, match="steps times their units"):
        CodedMatrix.from_codes(cpu_kernels, replace(steps, scales=steps.scales * 2))
    columns = random_codes(32, 64, "int4", 32, has_column_groups=True)
    matrix = CodedMatrix.from_codes(cpu_kernels, columns)
    assert columns.group_of_column is not None
    other = replace(columns, group_of_column=columns.group_of_column.flip(0))
    with pytest.raises(ValueError, match="unlike groups"):
        matrix.pack_codes(cpu_kernels, other)


def packed_bytes_of(
    kernels: CpuKernels, codes: GroupCodes, operands: torch.dtype, parts: list[int]
) -> Tensor:
    """The memory of a matrix that is packed in these parts of its rows."""
    n, k = codes.shape
    segments = [RowSegment(n, layout_of(codes))]
    memory = torch.zeros(coded_bytes(n, k, segments, False), dtype=torch.uint8)
    order = order_of([codes]) if operands == torch.int8 else None
    matrix = CodedMatrix(n, k, segments, operands=operands, order=order, memory=memory)
    start = 0
    for count in parts:
        rows = codes.map_rows(itemgetter(slice(start, start + count)))
        matrix.pack_codes(kernels, rows, start)
        start += count
    return memory


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    n=st.integers(1, 70),
    words=st.integers(1, 40),
    kind=st.sampled_from(("int4", "table16")),
    group=st.sampled_from([32, 64, 128, 256, 19]),
    takes_int8=st.booleans(),
    has_column_groups=st.booleans(),
    by_row=st.booleans(),
    cut=st.integers(0, 70),
)
def test_words_of_eight_codes_pack_as_bytes_do(
    isa: str,
    n: int,
    words: int,
    kind: CodeKind,
    group: int,
    takes_int8: bool,
    has_column_groups: bool,
    by_row: bool,
    cut: int,
) -> None:
    kernels, k = kernels_of(isa, 2), 8 * words
    takes_int8 = takes_int8 and kind == "int4" and group % 64 == 0
    offset = "zeros" if kind == "int4" else "none"
    codes = random_codes(n, k, kind, group, offset=offset, has_column_groups=has_column_groups)
    parts = [min(cut, n), n - min(cut, n)] if 0 < cut < n else [n]
    operands = torch.int8 if takes_int8 else torch.bfloat16
    wanted = packed_bytes_of(kernels, codes, operands, parts)
    found = packed_bytes_of(kernels, in_words(codes, by_row=by_row), operands, parts)
    assert torch.equal(found, wanted)
