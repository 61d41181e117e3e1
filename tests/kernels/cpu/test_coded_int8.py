"""Matrices of codes with int8 activations have the bits of their definition."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from support.cpu_kernels import EMULATED, NATIVE, WITH_TILES, decode_int8, kernels_of
from support.group_codes import random_codes, random_step_codes
from taco_kernels.code_layout import CodeLayout, RowSegment, ScaleType, StepType, takes_int8
from taco_kernels.cpu.coded_matrix import CodedMatrix
from taco_kernels.cpu.coded_part import layout_of
from taco_kernels.cpu.matmul import EncodedRows, in_row_order, multiply, multiply_argmax
from taco_kernels.cpu.packed_matrix import PackedMatrix
from taco_kernels.cpu.token_masks import MaskColumns
from taco_kernels.group_codes import CodeKind, GroupCodes
from taco_kernels.library import CpuKernels
from taco_kernels.reference.linear import coded_linear

ON_VECTORS = [isa for isa in (*NATIVE, *EMULATED) if not isa.endswith("amx")]
SCALE_TYPES: tuple[ScaleType, ...] = ("F32", "BF16", "F16", "F8_E8M0")
GROUP_OF_BITS = {5: 32, 6: 16, 8: 1}  # columns of a group are a multiple


def activations(count: int, k: int, *, num_outliers: int = 0, seed: int = 0) -> Tensor:
    """Normal numbers; every second row has outliers."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(count, k, generator=random)
    columns = torch.randperm(k, generator=random)[:num_outliers]
    x[1::2, columns] *= 50
    return x


def encoded(kernels: CpuKernels, x: Tensor) -> EncodedRows:
    return EncodedRows(kernels, x, torch.int8)


def expected(
    kernels: CpuKernels, rows: EncodedRows, codes: GroupCodes, bias: Tensor | None = None
) -> Tensor:
    count, k = rows.struct.count, rows.k
    low = decode_int8(in_row_order(kernels, rows.data, count), kernels)[:, :k]
    assert rows.row_scales is not None
    high = rows.row_scales.high_parts(k) / 254
    return coded_linear(low, high, rows.row_scales.scales, codes, bias)


def packed(
    kernels: CpuKernels,
    codes: GroupCodes,
    bias: Tensor | None = None,
    *,
    gated: bool = False,
    scale_type: ScaleType = "F32",
    zero: int | None = None,
    bits: int = 8,
) -> CodedMatrix:
    return CodedMatrix.from_codes(
        kernels,
        codes,
        scale_type=scale_type,
        zero=zero,
        bits=bits,
        operands=torch.int8,
        bias=bias,
        gated=gated,
    )


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    count=st.sampled_from([1, 2, 7, 13, 15, 17, 33, 90]),
    n=st.integers(1, 100),
    k=st.integers(1, 700),
    kind=st.sampled_from(["int4", "int8"]),
    bits=st.sampled_from([5, 6, 8]),
    group=st.sampled_from([16, 32, 48, 64, 128, 192, 1024, None]),
    offset=st.sampled_from(["none", "one zero", "zeros", "minima"]),
    scale_type=st.sampled_from(SCALE_TYPES),
    num_outliers=st.sampled_from([0, 1, 20]),
    threads=st.integers(1, 3),
)
def test_a_product_has_the_bits_of_its_definition(
    isa: str,
    count: int,
    n: int,
    k: int,
    kind: CodeKind,
    bits: int,
    group: int | None,
    offset: str,
    scale_type: ScaleType,
    num_outliers: int,
    threads: int,
) -> None:
    kernels = kernels_of(isa, threads)
    if kernels.has_tiles:
        group = group and -(-group // 64) * 64
        offset = "none" if offset == "minima" else offset
    if kind == "int8" and offset != "minima":
        offset = "none"
    kinds = {"one zero": "zeros"}
    if kind == "int4" or kernels.has_tiles or min(group or k, k) % GROUP_OF_BITS[bits]:
        bits = 8
    codes = random_codes(
        n, k, kind, group or k, offset=kinds.get(offset, offset), scale_type=scale_type, bits=bits
    )
    zero = None
    if offset == "one zero" and codes.zeros is not None:
        zero = 8
        codes = replace(codes, zeros=torch.full_like(codes.zeros, zero))
    bias = torch.randn(n)
    rows = encoded(kernels, activations(count, k, num_outliers=num_outliers))
    matrix = packed(kernels, codes, bias, scale_type=scale_type, zero=zero, bits=bits)

    out = multiply(kernels, rows, matrix)

    assert torch.equal(out, expected(kernels, rows, codes, bias))


@pytest.mark.parametrize("isa", ON_VECTORS)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    count=st.sampled_from([1, 2, 7, 13, 25, 90]),
    n=st.integers(1, 100),
    num_units=st.integers(1, 5),
    kind=st.sampled_from(["int4", "int8"]),
    bits=st.sampled_from([5, 6, 8]),
    group=st.sampled_from([16, 32, 64]),
    groups_per_unit=st.sampled_from([2, 3, 8, 16]),
    step_type=st.sampled_from(["U8", "I8", "F8_E4M3"]),
    has_minima=st.booleans(),
    num_outliers=st.sampled_from([0, 5]),
)
def test_products_of_scales_that_are_steps_of_units(
    isa: str,
    count: int,
    n: int,
    num_units: int,
    kind: CodeKind,
    bits: int,
    group: int,
    groups_per_unit: int,
    step_type: StepType,
    has_minima: bool,
    num_outliers: int,
) -> None:
    kernels, k = kernels_of(isa, 2), num_units * group * groups_per_unit
    bits = 8 if kind == "int4" or group % GROUP_OF_BITS[bits] else bits
    codes = random_step_codes(
        n, k, kind, group, groups_per_unit, step_type, has_minima=has_minima, bits=bits
    )
    rows = encoded(kernels, activations(count, k, num_outliers=min(num_outliers, k)))

    out = multiply(kernels, rows, packed(kernels, codes, scale_type="F16", bits=bits))

    assert torch.equal(out, expected(kernels, rows, codes))


@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_extreme_codes_and_activations(cpu_kernels: CpuKernels, kind: CodeKind) -> None:
    """Nothing saturates where codes and activations are as great as they can be."""
    k = 512
    codes = random_codes(4, k, kind, 256, offset="zeros" if kind == "int4" else "none")
    ends = (0, 15) if kind == "int4" else (-128, 127)
    codes.codes[0], codes.codes[1] = ends
    if codes.zeros is not None:
        codes.zeros[2:] = torch.tensor([[-112], [128]])
    x = torch.ones(5, k)
    x[1], x[2, ::2] = -1, -1
    rows = encoded(cpu_kernels, x)

    out = multiply(cpu_kernels, rows, packed(cpu_kernels, codes))

    assert torch.equal(out, expected(cpu_kernels, rows, codes))


@pytest.mark.parametrize("group", [32, 64, 256, 2100])
@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_bits_do_not_depend_on_neighbours_or_threads(
    cpu_kernels: CpuKernels, kind: CodeKind, group: int
) -> None:
    group = max(group, 64) if cpu_kernels.has_tiles else group
    x = activations(130, 2100, num_outliers=5)
    codes = random_codes(200, 2100, kind, group, offset="zeros" if kind == "int4" else "none")
    matrix = packed(cpu_kernels, codes)
    alone = [multiply(cpu_kernels, encoded(cpu_kernels, row[None]), matrix) for row in x]
    wanted = torch.cat(alone)

    for threads in (1, 3):
        kernels = kernels_of(cpu_kernels.isa, threads)
        for begin, end in ((0, 130), (3, 20), (0, 2), (0, 33), (8, 24), (5, 120)):
            out = multiply(kernels, encoded(kernels, x[begin:end]), matrix)
            assert torch.equal(out, wanted[begin:end]), (threads, begin, end)


@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_bits_do_not_depend_on_whether_weights_are_cached(
    cpu_kernels: CpuKernels, kind: CodeKind
) -> None:
    matrix = packed(cpu_kernels, random_codes(200, 1000, kind, 128))
    for count in range(1, 5):
        rows = encoded(cpu_kernels, activations(count, 1000, num_outliers=2))
        matrix.struct.is_cached = False
        wanted = multiply(cpu_kernels, rows, matrix)
        matrix.struct.is_cached = True
        assert torch.equal(multiply(cpu_kernels, rows, matrix), wanted), count


@pytest.mark.parametrize("group", [32, 128])
def test_all_instruction_sets_give_the_same_bits(group: int) -> None:
    x = activations(50, 1000, num_outliers=3)
    codes = random_codes(130, 1000, "int4", group, offset="zeros")
    products = []
    for isa in (*NATIVE, *EMULATED) if group >= 64 else ON_VECTORS:
        kernels = kernels_of(isa, 2)
        products.append(multiply(kernels, encoded(kernels, x), packed(kernels, codes)))

    assert all(torch.equal(product, products[0]) for product in products)


@pytest.mark.parametrize("count", [1, 20, 70])
@pytest.mark.parametrize("inner", [16, 37, 100])
def test_gated_pair(cpu_kernels: CpuKernels, count: int, inner: int) -> None:
    codes, bias = random_codes(2 * inner, 200, "int4", 64, offset="zeros"), torch.randn(2 * inner)
    rows = encoded(cpu_kernels, activations(count, 200, num_outliers=2))
    pair = packed(cpu_kernels, codes, bias, gated=True)

    out = multiply(cpu_kernels, rows, pair, activation="silu")

    gate, up = expected(cpu_kernels, rows, codes, bias).chunk(2, dim=1)
    # silu of products with rounded operands errs by 1.1e-5.
    torch.testing.assert_close(out, functional.silu(gate) * up, atol=1e-5, rtol=1.3e-5)


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("n", [50, 64])
def test_adds_to_the_residual_stream(cpu_kernels: CpuKernels, count: int, n: int) -> None:
    codes, stream = random_codes(n, 300, "int4", 64), torch.randn(count, n)
    rows = encoded(cpu_kernels, activations(count, 300))
    wanted = stream + expected(cpu_kernels, rows, codes)

    multiply(cpu_kernels, rows, packed(cpu_kernels, codes), add_to=stream)

    assert torch.equal(stream, wanted)


@pytest.mark.parametrize("count", [1, 9, 120])
def test_argmax(cpu_kernels: CpuKernels, count: int) -> None:
    codes = random_codes(700, 200, "int8", 128)
    matrix, rows = packed(cpu_kernels, codes), encoded(cpu_kernels, activations(count, 200))

    columns = multiply_argmax(cpu_kernels, rows, matrix)

    assert torch.equal(columns.long(), multiply(cpu_kernels, rows, matrix).argmax(dim=1))


@pytest.mark.parametrize("count", [1, 9, 40])
@pytest.mark.parametrize("operands", [torch.int8, torch.bfloat16])
@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_argmax_of_masked_columns(
    cpu_kernels: CpuKernels, kind: CodeKind, operands: torch.dtype, count: int
) -> None:
    """Every third row has no mask in the second round: then no block may be skipped."""
    n, k = 1100, 200
    codes = random_codes(n, k, kind, 64, offset="zeros" if kind == "int4" else "none")
    matrix = CodedMatrix.from_codes(cpu_kernels, codes, operands=operands)
    rows = EncodedRows(cpu_kernels, activations(count, k, num_outliers=2), operands)
    products = multiply(cpu_kernels, rows, matrix)
    is_allowed = torch.rand(count, n, generator=torch.Generator().manual_seed(0)) < 0.01
    is_allowed[:, 500:800] = False  # whole blocks
    is_allowed[torch.arange(count), torch.arange(count) * 29 % 500] = True
    for masked in (torch.arange(count), torch.arange(count)[torch.arange(count) % 3 > 0]):
        bits = np.packbits(
            np.pad(is_allowed[masked].numpy(), ((0, 0), (0, -n % 32))), axis=1, bitorder="little"
        ).view(np.int32)
        allowed = torch.ones(count, n, dtype=torch.bool)
        allowed[masked] = is_allowed[masked]

        columns = multiply_argmax(
            cpu_kernels, rows, matrix, masks=MaskColumns.of(masked.numpy(), bits, count)
        )

        wanted = products.masked_fill(~allowed, -torch.inf).argmax(dim=1)
        assert torch.equal(columns.long(), wanted)
        if operands == torch.bfloat16:
            plain = PackedMatrix.from_tensor(cpu_kernels, codes.values(), torch.bfloat16)
            masks = MaskColumns.of(masked.numpy(), bits, count)
            assert torch.equal(columns, multiply_argmax(cpu_kernels, rows, plain, masks=masks))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("count", [1, 50])
@pytest.mark.parametrize("has_short_groups", [False, True])
def test_segments_of_unlike_codes(
    cpu_kernels: CpuKernels, gated: bool, count: int, has_short_groups: bool
) -> None:
    k = 256
    parts = [
        random_codes(96, k, "int4", 64, offset="zeros"),
        random_codes(32, k, "int8", 128, seed=1),
        random_codes(64, k, "int4", k, seed=2),
        random_codes(192, k, "int4", 128, seed=3),
    ]
    bits = [8] * 4
    if has_short_groups and not cpu_kernels.has_tiles:
        parts[1] = random_codes(32, k, "int8", 32, offset="minima", bits=5, seed=1)
        parts[2] = random_step_codes(64, k, "int8", 16, 16, "I8", has_minima=False, bits=6, seed=2)
        parts[3] = random_step_codes(192, k, "int4", 32, 8, "U8", has_minima=True, seed=3)
        bits[1:3] = 5, 6
    segments = [
        RowSegment(part.shape[0], layout_of(part, bits=each))
        for part, each in zip(parts, bits, strict=True)
    ]
    matrix = CodedMatrix(384, k, segments, operands=torch.int8, gated=gated)
    start = 0
    for part in parts:
        matrix.pack_codes(cpu_kernels, part, start)
        start += part.shape[0]
    rows = encoded(cpu_kernels, activations(count, k, num_outliers=1))

    out = multiply(cpu_kernels, rows, matrix, activation="silu" if gated else "none")

    wanted = torch.cat([expected(cpu_kernels, rows, part) for part in parts], dim=1)
    if gated:
        gate, up = wanted.chunk(2, dim=1)
        torch.testing.assert_close(out, functional.silu(gate) * up, atol=1e-5, rtol=1e-5)
    else:
        assert torch.equal(out, wanted)


def test_packs_slices(cpu_kernels: CpuKernels) -> None:
    codes = random_codes(86, 200, "int4", 64, offset="zeros")
    layout = layout_of(codes)
    sliced = CodedMatrix(86, 200, [RowSegment(86, layout)], operands=torch.int8)
    for begin, end in ((50, 86), (0, 7), (7, 50)):
        sliced.pack_codes(cpu_kernels, codes.map_rows(itemgetter(slice(begin, end))), begin)
    rows = encoded(cpu_kernels, activations(3, 200))

    out = multiply(cpu_kernels, rows, sliced)

    assert torch.equal(out, multiply(cpu_kernels, rows, packed(cpu_kernels, codes)))


@pytest.mark.parametrize("isa", ON_VECTORS)
@pytest.mark.parametrize("bits", [5, 6])
def test_packs_slices_of_codes_whose_high_bits_are_apart(isa: str, bits: int) -> None:
    kernels = kernels_of(isa, 2)
    codes = random_codes(86, 200, "int8", 64, bits=bits)
    whole = packed(kernels, codes, bits=bits)
    sliced = CodedMatrix(
        86, 200, [RowSegment(86, layout_of(codes, bits=bits))], operands=torch.int8
    )
    for begin, end in ((50, 86), (0, 7), (7, 50)):
        sliced.pack_codes(kernels, codes.map_rows(itemgetter(slice(begin, end))), begin)
    rows = encoded(kernels, activations(3, 200))

    assert torch.equal(multiply(kernels, rows, sliced), multiply(kernels, rows, whole))
    block_bytes = {5: 7 * 320, 6: 13 * 192}[bits]
    assert packed(kernels, codes).nbytes - whole.nbytes == 6 * (50 * 64 - block_bytes)


@pytest.mark.parametrize(
    ("kind", "bits", "offset"),
    [
        *(("int4", 8, "zeros"), ("int4", 8, "none"), ("int8", 8, "none")),
        *(("int8", 5, "none"), ("int8", 6, "minima")),
    ],
)
def test_reads_rows(cpu_kernels: CpuKernels, kind: CodeKind, bits: int, offset: str) -> None:
    if cpu_kernels.has_tiles:
        bits, offset = 8, "none" if offset == "minima" else offset
    codes = random_codes(40, 200, kind, 64, offset=offset, bits=bits)

    rows = packed(cpu_kernels, codes, bits=bits).rows(cpu_kernels, torch.tensor([7, 0, 39, 7]))

    assert torch.equal(rows, codes.values()[[7, 0, 39, 7]].bfloat16().float())


STEPS = CodeLayout("int4", 32, has_minima=True, step_type="U8", groups_per_unit=8)


@pytest.mark.parametrize(
    ("layout", "k", "on_vectors", "on_tiles"),
    [
        (CodeLayout("int4", 128), 1000, True, True),
        (CodeLayout("int4", 1000), 1000, True, True),
        (CodeLayout("int4", 64, has_zeros=True), 1000, True, True),
        (CodeLayout("int8", 128), 1000, True, True),
        (CodeLayout("int8", 128, has_zeros=True), 1000, False, False),
        (CodeLayout("int4", 32), 1000, True, False),
        (CodeLayout("int4", 16), 1000, True, False),
        (CodeLayout("int4", 40), 1000, False, False),
        (CodeLayout("int4", 128, has_minima=True), 1000, True, False),
        (STEPS, 1024, True, False),
        (CodeLayout("int4", 128, has_column_groups=True), 1000, True, True),
        (CodeLayout("e4m3", 128), 1000, False, False),
        (CodeLayout("table16", 128), 1000, False, False),
    ],
)
def test_which_codes_take_int8_activations(
    layout: CodeLayout, k: int, on_vectors: bool, on_tiles: bool
) -> None:
    assert takes_int8(layout, k) == on_vectors
    assert takes_int8(layout, k, on_tiles=True) == on_tiles
    if not on_vectors:
        with pytest.raises(ValueError, match="do not multiply"):
            CodedMatrix(32, k, [RowSegment(32, layout)], operands=torch.int8)


def test_short_groups_are_rejected_on_tiles() -> None:
    kernels = kernels_of(WITH_TILES, 1)

    with pytest.raises(ValueError, match="int8 codes of such groups do not multiply int8 on tiles"):
        packed(kernels, random_codes(16, 64, "int8", 32))


def test_zeros_that_make_codes_too_great_are_rejected() -> None:
    kernels = kernels_of("avx2", 1)
    codes = random_codes(16, 64, "int4", 64, offset="zeros")
    assert codes.zeros is not None
    codes.zeros[3] = -113

    with pytest.raises(ValueError, match="from -113 to"):
        packed(kernels, codes)


def test_codes_of_more_bits_are_rejected() -> None:
    kernels = kernels_of("avx2", 1)
    codes = random_codes(16, 64, "int8", 32, bits=6)
    codes.codes[3, 5] = -17

    with pytest.raises(ValueError, match="do not fit 5 bits: -16 to 15"):
        packed(kernels, codes, bits=5)


def test_codes_of_few_bits_are_rejected_on_tiles_and_for_bfloat16() -> None:
    codes = random_codes(16, 64, "int8", 64, bits=6)

    with pytest.raises(ValueError, match="codes of 6 bits are not multiplied on tiles"):
        packed(kernels_of(WITH_TILES, 1), codes, bits=6)
    with pytest.raises(ValueError, match="codes of 6 bits multiply no bfloat16 operands"):
        CodedMatrix(16, 64, [RowSegment(16, layout_of(codes, bits=6))])


@pytest.mark.parametrize(
    ("kind", "bits", "group"), [("int4", 5, 32), ("int8", 5, 16), ("int8", 7, 32)]
)
def test_layouts_of_other_bits_are_rejected(kind: CodeKind, bits: int, group: int) -> None:
    with pytest.raises(ValueError, match="codes of 5 and 6 bits are int8"):
        CodeLayout(kind, group, bits=bits)


def test_numbers_that_are_no_codes_are_rejected() -> None:
    with pytest.raises(ValueError, match="bfloat16 numbers do not multiply"):
        CodedMatrix(32, 64, [RowSegment(32, None)], operands=torch.int8)
