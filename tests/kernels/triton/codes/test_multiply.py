"""The product with a matrix of codes against its values in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.random_codes import KINDS, random_codes, shuffled_groups
from support.triton_interpreter import DEVICE
from taco_kernels.code_packing import pack
from taco_kernels.group_codes import CodeKind, GroupCodes
from taco_kernels.packed_codes import E2M1, PackedCodes
from taco_kernels.triton.codes.multiply import multiply_codes

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Of a sum's rounding to the type, and of float32's in the order of the sum; tables are rounded.
ROUNDING = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 1e-6}


def packed(codes: GroupCodes) -> PackedCodes:
    return pack(codes).map_tensors(lambda _, tensor: tensor.to(DEVICE))


def random_rows(num_rows: int, k: int, dtype: torch.dtype, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, k, generator=generator).to(dtype).to(DEVICE)


def assert_is_product(out: Tensor, x: Tensor, weight: PackedCodes, bias: Tensor | None) -> None:
    """Within the rounding of the result, and of a table's numbers."""
    values = weight.values().double()
    wanted = x.double() @ values.T
    magnitude = x.double().abs() @ values.abs().T
    if bias is not None:
        wanted = wanted + bias.double()
    rounding = ROUNDING[x.dtype]
    sums = 2e-6 * magnitude
    if weight.table is not None:
        sums = (2e-6 + rounding) * magnitude
    if weight.zeros is not None or weight.minima is not None:
        sums = 1e-5 * magnitude + 1e-5 * x.double().abs().sum(1, keepdim=True)
    assert out.dtype == x.dtype
    assert bool(((out.double() - wanted).abs() <= rounding * wanted.abs() + sums + 1e-6).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [32, 128, 300])
def test_every_kind(kind: CodeKind, dtype: torch.dtype, group: int) -> None:
    weight, x = packed(random_codes(kind, 70, 300, group)), random_rows(3, 300, dtype)
    bias = random_rows(1, 70, dtype, seed=2)[0]

    assert_is_product(multiply_codes(x, weight, bias), x, weight, bias)


@pytest.mark.parametrize("extra", ["zero", "zeros", "minima"])
@pytest.mark.parametrize("group", [16, 64, 200])
@pytest.mark.parametrize(("kind", "dtype"), [("int4", torch.bfloat16), ("int8", torch.float16)])
def test_zeros_and_minima(kind: CodeKind, dtype: torch.dtype, group: int, extra: str) -> None:
    zeros = {"zero": (8, 8), "zeros": (0, 16)}.get(extra)
    codes = random_codes(kind, 70, 200, group, zeros=zeros, has_minima=extra == "minima")
    weight, x = packed(codes), random_rows(3, 200, dtype)

    assert_is_product(multiply_codes(x, weight), x, weight, None)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(KINDS),
    num_rows=st.sampled_from([1, 5, 17, 33, 70, 130]),
    n=st.integers(1, 150),
    k=st.integers(1, 300),
    group=st.sampled_from([16, 24, 32, 96, 128, 512]),
    is_shuffled=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)
def test_every_shape(
    kind: CodeKind,
    num_rows: int,
    n: int,
    k: int,
    group: int,
    is_shuffled: bool,
    dtype: torch.dtype,
) -> None:
    """Every form, tails of all sizes, groups that are no power of two, and orders of columns."""
    groups = shuffled_groups(k, group) if is_shuffled else None
    weight = packed(random_codes(kind, n, k, group, group_of_column=groups))
    x = random_rows(num_rows, k, dtype)

    assert_is_product(multiply_codes(x, weight), x, weight, None)


@pytest.mark.parametrize("kind", ["int4", "e4m3", "int8", "table16"])
def test_every_code_is_its_number(kind: CodeKind) -> None:
    """One row per column of an identity, so that nothing is summed; 4-bit floats are the table."""
    codes = torch.arange(256 if kind in ("e4m3", "int8") else 16).byte()
    table = None
    if kind == "e4m3":
        codes = codes[codes & 127 != 127]  # those are NaN
    if kind == "int8":
        codes = codes.view(torch.int8)
    if kind == "table16":
        table = torch.tensor(E2M1)
    whole = GroupCodes(kind, codes[None], codes.shape[0], torch.ones(1, 1), table=table)
    weight = packed(whole)
    assert weight.kind == ("e2m1" if kind == "table16" else kind)
    for dtype in DTYPES:
        x = torch.eye(codes.shape[0], dtype=dtype, device=DEVICE)
        assert torch.equal(multiply_codes(x, weight)[:, 0].float().cpu(), whole.values()[0])


@pytest.mark.parametrize("sizes", [(1, 16), (17, 32), (33, 64), (65, 130)])
def test_bits_of_a_row_depend_on_the_form_only(sizes: tuple[int, int]) -> None:
    """Not on the other rows, nor on their number within a form."""
    weight = packed(random_codes("int4", 40, 1024, 64, zeros=(0, 15)))
    least, most = sizes
    x = random_rows(most, 1024, torch.float16)

    whole = multiply_codes(x, weight)

    for first in (0, most - least):
        others = multiply_codes(x[first : first + least], weight)
        assert torch.equal(others, whole[first : first + least])


def test_parts_of_k_are_added_in_their_order() -> None:
    """A row that only the last part multiplies, and one that only the first does."""
    weight, x = packed(random_codes("int8", 40, 2048, 128)), random_rows(2, 2048, torch.float16)
    x[0, :1900], x[1, 100:] = 0, 0

    assert_is_product(multiply_codes(x, weight), x, weight, None)


def test_rows_may_be_columns_of_a_wider_buffer() -> None:
    weight, wide = packed(random_codes("int4", 20, 64, 32)), random_rows(5, 200, torch.float16)
    out = multiply_codes(wide[:, 30:94], weight)
    assert torch.equal(out, multiply_codes(wide[:, 30:94].contiguous(), weight))


def test_no_rows_need_no_launch() -> None:
    weight = packed(random_codes("int4", 20, 64, 32))
    assert multiply_codes(random_rows(0, 64, torch.float16), weight).shape == (0, 20)


@pytest.mark.parametrize("num_rows", [3, 70])
def test_padding_of_irregular_groups_reads_nothing(num_rows: int) -> None:
    """Columns of one group only, of several that the matrix could have."""
    groups = torch.full((50,), 1, dtype=torch.int32)
    codes = random_codes("int4", 10, 50, 20, has_minima=True, group_of_column=groups)
    weight, x = packed(codes), random_rows(num_rows, 50, torch.float16)

    assert_is_product(multiply_codes(x, weight), x, weight, None)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captures a CUDA graph")
def test_a_graph_replays_with_other_rows() -> None:
    weight, x = packed(random_codes("int4", 20, 64, 32)), random_rows(2, 64, torch.float16)
    multiply_codes(x, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = multiply_codes(x, weight)
    x.copy_(random_rows(2, 64, torch.float16, seed=5))
    graph.replay()
    assert_is_product(out, x, weight, None)


@pytest.mark.parametrize(
    ("x", "bias", "message"),
    [
        (torch.ones(3, 63), None, r"x must be .*\[num_rows, 64\]"),
        (torch.ones(64, 3).T, None, "x must be .* adjacent numbers"),
        (torch.ones(3, 64, dtype=torch.float64), None, "x must be float16"),
        (torch.ones(3, 64), torch.ones(19), r"bias must be .*\[20\]"),
        (torch.ones(3, 64), torch.ones(20).half(), "bias must be .*float32"),
    ],
)
def test_error_names_the_mismatch(x: Tensor, bias: Tensor | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        multiply_codes(x, packed(random_codes("int4", 20, 64, 32)), bias)
