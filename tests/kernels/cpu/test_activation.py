"""Activations of rows on the CPU, plain and gated, against the reference."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.cpu_kernels import EMULATED, NATIVE, kernels_of
from taco_kernels.cpu.elementwise import activate_rows
from taco_kernels.library import CpuKernels
from taco_kernels.reference.activation import ACTIVATIONS, GATED_ACTIVATIONS, act_mul, activate

# Values near 0 on the left are differences of numbers near x.
CLOSE: dict[str, Any] = {"rtol": 1e-6, "atol": 2e-6}
# The other half, up to 20, multiplies that error.
GATED_CLOSE: dict[str, Any] = {"rtol": 1e-6, "atol": 4e-5}


def inside(num_rows: int, size: int) -> Tensor:
    """Rows with NaN between them."""
    around = torch.full((num_rows, size + 5), torch.nan)
    around[:, :size] = torch.randn(num_rows, size) * 4
    return around[:, :size]


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(GATED_ACTIVATIONS),
    num_rows=st.integers(0, 5),
    size=st.integers(1, 70),
    limit=st.sampled_from([0.5, 7.0, math.inf]),
    alpha=st.sampled_from([1.0, 1.702]),
    threads=st.integers(1, 3),
)
def test_gate_times_up(
    isa: str, kind: str, num_rows: int, size: int, limit: float, alpha: float, threads: int
) -> None:
    x = inside(num_rows, 2 * size)
    options: dict[str, Any] = {"alpha": alpha, "limit": limit}
    expected = act_mul(x, kind, **options)
    out = inside(num_rows, size)
    kernels = kernels_of(isa, threads)
    assert activate_rows(kernels, x, kind, gated=True, out=out, **options) is out
    torch.testing.assert_close(out, expected, **GATED_CLOSE)
    assert torch.equal(activate_rows(kernels, x, kind, gated=True, **options), out)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_plain_and_in_place(cpu_kernels: CpuKernels, kind: str) -> None:
    x = inside(3, 37)
    expected = activate(x, kind)
    torch.testing.assert_close(activate_rows(cpu_kernels, x, kind), expected, **CLOSE)
    activate_rows(cpu_kernels, x, kind, out=x)
    torch.testing.assert_close(x, expected, **CLOSE)


def test_the_gate_may_become_the_product(cpu_kernels: CpuKernels) -> None:
    x = inside(3, 2 * 21)
    expected = activate_rows(cpu_kernels, x, "silu", gated=True)
    activate_rows(cpu_kernels, x, "silu", gated=True, out=x[:, :21])
    assert torch.equal(x[:, :21], expected)


@pytest.mark.parametrize("kind", GATED_ACTIVATIONS)
def test_a_row_does_not_depend_on_the_others_nor_on_threads(
    cpu_kernels: CpuKernels, kind: str
) -> None:
    x = inside(9, 2 * 37)
    together = activate_rows(cpu_kernels, x, kind, gated=True, limit=3.0)
    single = kernels_of(cpu_kernels.isa, 1)
    for i in range(9):
        alone = activate_rows(single, x[i : i + 1], kind, gated=True, limit=3.0)
        assert torch.equal(alone[0], together[i])


def test_limits_bound_gate_and_up(cpu_kernels: CpuKernels) -> None:
    x = torch.tensor([[9.0, -9.0, 1.0, torch.nan, 1.0, 9.0, -9.0, torch.nan]])
    out = activate_rows(cpu_kernels, x, "swiglu_clipped", gated=True, limit=2.0)
    torch.testing.assert_close(out, act_mul(x, "swiglu_clipped", limit=2.0), equal_nan=True)
    assert out[0, 2] < 0
    assert out[0, 3].isnan()


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (torch.ones(2, 4), {"activation": "swish"}, "unknown activation 'swish'; known: relu, "),
        (torch.ones(2, 4), {"activation": "swiglu_clipped"}, "unknown activation"),
        (
            torch.ones(2, 4),
            {"activation": "swiglu_clipped", "gated": True, "limit": 0.0},
            "limit of swiglu_clipped must be positive, not 0.0",
        ),
        (torch.ones(2, 5), {"activation": "silu", "gated": True}, "of one size, not 5 numbers"),
        (torch.ones(2, 4).double(), {"activation": "silu"}, "x must be float32"),
        (torch.ones(2, 4), {"activation": "silu", "out": torch.ones(2, 3)}, r"float32 \[2, 4\]"),
    ],
)
def test_wrong_arguments_are_rejected(x: Tensor, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        activate_rows(kernels_of("avx2", 1), x, **options)
