from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.cpu_kernels import EMULATED, NATIVE, decode_int8, kernels_of
from taco_kernels.cpu.elementwise import NORM_KINDS, norm_rows
from taco_kernels.cpu.matmul import EncodedRows, in_row_order
from taco_kernels.library import CpuKernels
from taco_kernels.reference.linear import quantize_activations
from taco_kernels.reference.norm import layer_norm, rms_norm

SIZES = [1, 16, 17, 63, 64, 100, 896]
DTYPES = [torch.float32, torch.bfloat16, torch.int8]


def tensors(size: int, num_rows: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    scales = torch.logspace(-3, 3, num_rows).unsqueeze(1)
    x = torch.randn(num_rows, size, generator=generator) * scales + 0.3 * scales
    weight, bias = torch.randn(2, size, generator=generator).unbind()
    return x, weight.contiguous(), bias.contiguous()


@pytest.mark.parametrize("size", SIZES)
def test_norms_agree_with_the_reference(cpu_kernels: CpuKernels, size: int) -> None:
    x, weight, bias = tensors(size)
    rms, _ = norm_rows(cpu_kernels, "rms", x, weight, None, 1e-5)
    wide = (x.double(), weight.double())
    torch.testing.assert_close(rms.double(), rms_norm(*wide, 1e-5).double(), rtol=1e-6, atol=1e-7)
    layer, _ = norm_rows(cpu_kernels, "layer", x, weight, bias, 1e-5)
    centered = wide[0] - wide[0].mean(-1, keepdim=True)
    scale = torch.rsqrt(centered.square().mean(-1, keepdim=True) + 1e-5)
    torch.testing.assert_close(
        layer.double(), centered * scale * wide[1] + bias.double(), rtol=1e-5, atol=2e-6
    )
    torch.testing.assert_close(layer, layer_norm(x, weight, bias, 1e-5), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_operands_are_those_of_the_float_norm(
    cpu_kernels: CpuKernels, kind: str, size: int
) -> None:
    x, weight, bias = tensors(size)
    arguments = (x, weight, bias if kind == "layer" else None, 1e-6)
    floats, _ = norm_rows(cpu_kernels, kind, *arguments)

    operands, _ = norm_rows(cpu_kernels, kind, *arguments, torch.bfloat16)
    assert torch.equal(operands[:, :size], floats.to(operands.dtype))
    assert not operands[:, size:].any()

    operands, row_scales = norm_rows(cpu_kernels, kind, *arguments, torch.int8)
    scales = row_scales.scales
    assert torch.equal(scales, quantize_activations(floats)[1])
    numbers = decode_int8(operands, cpu_kernels)
    numbers[:, :size] += row_scales.high_parts(size)
    numbers *= scales.unsqueeze(1)
    error = (numbers[:, :size] - floats).abs().amax(-1)
    assert (error <= 0.5001 * scales).all()
    assert not numbers[:, size:].any()


def test_a_row_of_zeros_has_a_scale_and_no_nan(cpu_kernels: CpuKernels) -> None:
    x, weight = torch.zeros(2, 70), torch.ones(70)
    operands, scales = norm_rows(cpu_kernels, "rms", x, weight, None, 1e-6, torch.int8)
    assert torch.equal(scales.scales, torch.ones(2))
    assert not decode_int8(operands, cpu_kernels).any()


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_outliers_are_those_of_the_float_norm(cpu_kernels: CpuKernels, kind: str) -> None:
    x, weight, bias = tensors(330)
    weight[3], weight[100:104], weight[329] = 90, -64, 70
    arguments = (x, weight, bias if kind == "layer" else None, 1e-6)
    floats, _ = norm_rows(cpu_kernels, kind, *arguments)
    wanted = EncodedRows(cpu_kernels, floats, torch.int8)

    operands, row_scales = norm_rows(cpu_kernels, kind, *arguments, torch.int8)

    assert wanted.row_scales is not None
    assert row_scales.num_outliers.max() > 2
    assert torch.equal(operands, in_row_order(cpu_kernels, wanted.data, x.shape[0]))
    assert torch.equal(row_scales.scales, wanted.row_scales.scales)
    assert torch.equal(row_scales.high_parts(330), wanted.row_scales.high_parts(330))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_a_row_does_not_depend_on_the_others_nor_on_threads(
    cpu_kernels: CpuKernels, kind: str, dtype: torch.dtype
) -> None:
    x, weight, bias = tensors(75, num_rows=9)
    together, scales = norm_rows(cpu_kernels, kind, x, weight, bias, 1e-5, dtype)
    for i in range(9):
        alone, scale = norm_rows(
            kernels_of(cpu_kernels.isa, 1), kind, x[i : i + 1], weight, bias, 1e-5, dtype
        )
        assert torch.equal(alone[0], together[i])
        if dtype == torch.int8:
            assert torch.equal(scale.scales[0], scales.scales[i])


def test_wrong_arguments_are_rejected(cpu_kernels: CpuKernels) -> None:
    x, weight, _ = tensors(8)
    with pytest.raises(ValueError, match="unknown norm 'batch'"):
        norm_rows(cpu_kernels, "batch", x, weight, None, 1e-5)
    with pytest.raises(ValueError, match=r"must be \[8\]"):
        norm_rows(cpu_kernels, "rms", x, weight[:7].clone(), None, 1e-5)


def expected_norm(
    kind: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    if kind == "rms":
        return rms_norm(x, weight, eps, bias)
    return layer_norm(x, weight, bias, eps)


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(NORM_KINDS),
    num_rows=st.integers(0, 4),
    num_groups=st.integers(1, 4),
    group=st.integers(1, 40),
    has_weight=st.booleans(),
    has_bias=st.booleans(),
    is_shared=st.booleans(),
    in_place=st.booleans(),
    threads=st.integers(1, 3),
)
def test_heads_and_missing_weights(
    isa: str,
    kind: str,
    num_rows: int,
    num_groups: int,
    group: int,
    has_weight: bool,
    has_bias: bool,
    is_shared: bool,
    in_place: bool,
    threads: int,
) -> None:
    """Norms of heads inside a buffer: those beside them stay as they are."""
    size = num_groups * group
    buffer = torch.randn(num_rows, size + 7) * 2 + 1
    before, x = buffer.clone(), buffer[:, 3 : 3 + size]
    heads = x.unflatten(1, (num_groups, group))
    vectors = torch.randn(2, group if is_shared else size).unbind()
    weight, bias = (
        vector.contiguous() if given else None
        for vector, given in zip(vectors, (has_weight, has_bias), strict=True)
    )
    row, bias_row = (
        None if vector is None else vector if is_shared else vector.view(num_groups, group)
        for vector in (weight, bias)
    )
    expected = expected_norm(kind, heads, row, bias_row, 1e-5).flatten(1)
    out, _ = norm_rows(
        kernels_of(isa, threads),
        kind,
        x,
        weight,
        bias,
        1e-5,
        group=group,
        out=x if in_place else None,
    )
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=3e-6)
    if in_place:
        before[:, 3 : 3 + size] = out
    assert torch.equal(buffer, before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_of_one_change_no_bit(cpu_kernels: CpuKernels, dtype: torch.dtype) -> None:
    x, _, _ = tensors(75)
    for kind in NORM_KINDS:
        plain, _ = norm_rows(cpu_kernels, kind, x, None, None, 1e-5, dtype)
        ones, _ = norm_rows(cpu_kernels, kind, x, torch.ones(75), torch.zeros(75), 1e-5, dtype)
        assert torch.equal(plain, ones)


@pytest.mark.parametrize("kind", NORM_KINDS)
def test_a_head_has_the_bits_of_a_row(cpu_kernels: CpuKernels, kind: str) -> None:
    x, weight = torch.randn(5, 3 * 40), torch.randn(40)
    heads, _ = norm_rows(cpu_kernels, kind, x, weight, None, 1e-5, group=40)
    rows, _ = norm_rows(cpu_kernels, kind, x.view(15, 40), weight, None, 1e-5)
    assert torch.equal(heads.view(15, 40), rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group": 3}, "8 columns cannot be normed in groups of 3"),
        ({"group": 0}, "groups of 0"),
        ({"group": 4, "dtype": torch.bfloat16}, "groups and out need float32"),
        ({"group": 4, "weight": torch.ones(2)}, r"must be \[4\] or \[8\]"),
        ({"weight": torch.ones(8), "bias": torch.ones(4), "group": 4}, "must be alike"),
        ({"out": torch.ones(2, 7)}, r"out must be float32 \[2, 8\]"),
        ({"x": torch.ones(8, 2).T}, "adjacent numbers"),
    ],
    ids=str,
)
def test_groups_that_do_not_fit_are_rejected(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"x": torch.ones(2, 8), "weight": None, "bias": None, **change}
    with pytest.raises(ValueError, match=message):
        norm_rows(kernels_of("avx2", 1), "rms", eps=1e-5, **arguments)
