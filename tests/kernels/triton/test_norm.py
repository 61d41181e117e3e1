"""The norms against their references, for rows that one program holds and for wider ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from taco_kernels.reference import norm as reference
from taco_kernels.triton import norm
from taco_kernels.triton.norm import layer_norm, rms_norm

pytestmark = pytest.mark.usefixtures("tensors_on_device")

Norm = Callable[..., Tensor]

EPS = 1e-5
# The interpreter cuts float32 to bfloat16 where the device rounds: up to two units of the last
# place where an inner result is rounded too.
TOLERANCES: dict[torch.dtype, dict[str, Any]] = {
    torch.float32: {"atol": 2e-6, "rtol": 2e-6},
    torch.float16: {"atol": 1e-4, "rtol": 2e-3},
    torch.bfloat16: {"atol": 1e-3, "rtol": 3e-2},
}
KINDS = ["rms", "layer"]
# Rows: one, an odd few, and enough that several share a program. The widest goes in pieces.
SHAPES = [(1, 96), (3, 2880), (603, 40), (2, 1), (2, 17_000)]


def _inside(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Random rows with NaN between them."""
    around = torch.full((*shape[:-1], shape[-1] + 5), torch.nan, dtype=dtype)
    rows = around[..., : shape[-1]]
    rows.copy_(torch.randn(shape) * 3 + 1)
    return rows


def _is_intact_around(rows: Tensor) -> bool:
    """Whether there is still NaN between rows."""
    stride, width = rows.stride(0), rows.shape[1]
    gaps = rows.as_strided((rows.shape[0], stride - width), (stride, 1), width)
    return bool(gaps.isnan().all())


def _vectors(width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    weight, bias = torch.randn(2, width).to(dtype)
    return weight, bias


def _pair(kind: str, width: int, dtype: torch.dtype) -> tuple[Norm, Norm]:
    """Ours and the reference, as functions of rows."""
    weight, bias = _vectors(width, dtype)
    if kind == "rms":
        return (
            lambda x, **options: rms_norm(x, weight, EPS, **options),
            partial(reference.rms_norm, weight=weight, eps=EPS),
        )
    return (
        lambda x, **options: layer_norm(x, weight, bias, EPS, **options),
        partial(reference.layer_norm, weight=weight, bias=bias, eps=EPS),
    )


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_the_reference(kind: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    ours, expected = _pair(kind, shape[1], dtype)
    x = _inside(shape, dtype)
    before = x.clone()
    out = _inside(shape, dtype).fill_(torch.nan)
    assert ours(x, out=out) is out
    torch.testing.assert_close(out, expected(x), **TOLERANCES[dtype])
    torch.testing.assert_close(ours(x), out, rtol=0, atol=0)
    assert torch.equal(x, before)
    assert _is_intact_around(out)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_residual_takes_the_rounded_sum(
    kind: str, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    ours, expected = _pair(kind, shape[1], dtype)
    x, residual = _inside(shape, dtype), _inside(shape, dtype)
    before, total = x.clone(), residual + x
    out = ours(x, residual=residual)
    exact = {"rtol": 0, "atol": 0} if dtype != torch.bfloat16 else TOLERANCES[dtype]
    torch.testing.assert_close(residual, total, **exact)
    torch.testing.assert_close(out, expected(residual), **TOLERANCES[dtype])
    assert torch.equal(x, before)
    assert _is_intact_around(residual)


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_where_the_reference_does(kind: str) -> None:
    """One rounding more or less would change a quarter of the numbers, another order few."""
    ours, expected = _pair(kind, 1000, torch.float16)
    x = _inside((4, 1000), torch.float16)
    assert (ours(x) == expected(x)).float().mean() > 0.99


@pytest.mark.parametrize("num_tokens", [2, 300])
@pytest.mark.parametrize("kind", KINDS)
def test_heads_inside_a_fused_projection_can_be_normed_in_place(kind: str, num_tokens: int) -> None:
    """As models that norm queries and keys do: a head's tokens are no neighbours in memory."""
    ours, expected = _pair(kind, 24, torch.float32)
    fused = torch.randn(num_tokens, 3 + 2, 24)
    before = fused.clone()
    heads = fused[:, :3]
    ours(heads, out=heads)
    torch.testing.assert_close(heads, expected(before[:, :3]), **TOLERANCES[torch.float32])
    assert torch.equal(fused[:, 3:], before[:, 3:])


@pytest.mark.parametrize("num_tokens", [2, 300])
@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("weights", ["none", "shared", "of each head"])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_heads_and_none(
    kind: str,
    weights: str,
    has_bias: bool,
    is_wide: bool,
    num_tokens: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_wide:
        monkeypatch.setattr(norm, "_MAX_HELD", 8)
        num_tokens = 2
    fused = torch.randn(num_tokens, 5, 24)
    before, heads = fused.clone(), fused[:, :3]
    weight, bias = torch.randn(2, 3, 24) if weights == "of each head" else torch.randn(2, 24)
    given = None if weights == "none" else weight
    given_bias = bias if has_bias else None
    if kind == "rms":
        rms_norm(heads, given, EPS, bias=given_bias, out=heads)
        expected = reference.rms_norm(before[:, :3], given, EPS, given_bias)
    else:
        layer_norm(heads, given, given_bias, EPS, out=heads)
        expected = reference.layer_norm(before[:, :3], given, given_bias, EPS)
    torch.testing.assert_close(heads, expected, atol=4e-6, rtol=4e-6)
    assert torch.equal(fused[:, 3:], before[:, 3:])


@pytest.mark.parametrize("kind", KINDS)
def test_weights_in_float32_round_once(kind: str) -> None:
    """Gemma's 1 + weight is not a bfloat16 number."""
    x = _inside((4, 1000), torch.float16)
    weight = torch.randn(1000)
    ours = {"rms": rms_norm(x, weight, EPS), "layer": layer_norm(x, weight, None, EPS)}[kind]
    functions: dict[str, Norm] = {
        "rms": reference.rms_norm,
        "layer": partial(reference.layer_norm, bias=None),
    }
    wide = functions[kind](x.float(), weight=weight, eps=EPS)
    assert (ours == wide.half()).float().mean() > 0.99
    assert (functions[kind](x, weight=weight, eps=EPS) == wide.half()).float().mean() > 0.99


@pytest.mark.parametrize("kind", KINDS)
def test_large_float16_numbers_do_not_overflow(kind: str) -> None:
    ours, expected = _pair(kind, 64, torch.float16)
    x = torch.randn(2, 64).sign() * 60_000
    x[:, 0] = 50_000
    torch.testing.assert_close(ours(x.half()), expected(x.half()), **TOLERANCES[torch.float16])


def test_no_rows_need_no_launch() -> None:
    weight = torch.ones(8)
    assert rms_norm(torch.empty(0, 8), weight, EPS).shape == (0, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(2, 8, dtype=torch.float64)}, r"x must be rows of .* not torch.float64"),
        ({"x": torch.ones(8, 2).T}, r"x must be .*adjacent.* strides \(1, 2\)"),
        ({"weight": torch.ones(7)}, r"weight must be torch.float32 or float32 \[8\].*\[7\]"),
        ({"weight": torch.ones(8).half()}, "weight must be torch.float32 .*torch.float16"),
        ({"weight": torch.ones(2, 8)}, r"weight must be .* or of each head, not .*\[2, 8\]"),
        ({"residual": torch.ones(3, 8)}, r"residual must be .*\[2, 8\] .*\[3, 8\]"),
        ({"out": torch.ones(2, 8).half()}, "out must be torch.float32 .*torch.float16"),
    ],
)
def test_error_names_the_mismatch(change: dict[str, Tensor], message: str) -> None:
    arguments: dict[str, Any] = {
        "x": torch.ones(2, 8),
        "weight": torch.ones(8),
        "eps": EPS,
        **change,
    }
    with pytest.raises(ValueError, match=message):
        rms_norm(**arguments)
