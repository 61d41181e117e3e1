"""Sums, factors, caps and gates of rows on the CPU against the reference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.cpu_kernels import EMULATED, NATIVE, kernels_of
from taco_kernels.cpu.elementwise import (
    add_rows,
    cap_rows,
    clip_rows,
    gate_rows,
    multiply_rows,
    scale_rows,
    xielu_rows,
)
from taco_kernels.library import CpuKernels
from taco_kernels.reference import elementwise as reference

KINDS = ("add", "multiply", "scale", "cap", "clip", "gate", "shared gate", "xielu")
# The last is eps, which is near 0 in published models.
XIELU = torch.tensor([0.7, 0.4, 0.5, -0.2])


def inside(num_rows: int, size: int, factor: float = 3.0) -> Tensor:
    """Rows with NaN between them."""
    around = torch.full((num_rows, size + 3), torch.nan)
    around[:, :size] = torch.randn(num_rows, size) * factor
    return around[:, :size]


def operation(
    kind: str, y: Tensor, number: float
) -> tuple[Callable[[CpuKernels, Tensor], None], Callable[[Tensor], Tensor]]:
    """Ours, in place, and the reference."""
    gate = y[:, :1] if kind == "shared gate" else y
    return {
        "add": (lambda k, x: add_rows(k, x, y, number), lambda x: reference.add(x, y, number)),
        "multiply": (lambda k, x: multiply_rows(k, x, y), lambda x: reference.multiply(x, y)),
        "scale": (lambda k, x: scale_rows(k, x, number), lambda x: reference.scale(x, number)),
        "cap": (lambda k, x: cap_rows(k, x, number), lambda x: reference.cap(x, number)),
        "clip": (lambda k, x: clip_rows(k, x, number), lambda x: reference.clip(x, number)),
        "gate": (lambda k, x: gate_rows(k, x, gate), lambda x: reference.gate(x, gate)),
        "shared gate": (lambda k, x: gate_rows(k, x, gate), lambda x: reference.gate(x, gate)),
        "xielu": (lambda k, x: xielu_rows(k, x, XIELU), lambda x: reference.xielu(x, XIELU)),
    }[kind]


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(KINDS),
    num_rows=st.integers(0, 5),
    size=st.integers(1, 70),
    number=st.sampled_from([0.22, 1.0, 30.0]),
    threads=st.integers(1, 3),
)
def test_any_rows(
    isa: str, kind: str, num_rows: int, size: int, number: float, threads: int
) -> None:
    x, y = inside(num_rows, size), inside(num_rows, size)
    ours, expected = operation(kind, y, number)
    wanted = expected(x)
    ours(kernels_of(isa, threads), x)
    torch.testing.assert_close(x, wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_the_others_nor_on_threads(
    cpu_kernels: CpuKernels, kind: str
) -> None:
    x, y = inside(9, 37), inside(9, 37)
    alone, single = x.clone(), kernels_of(cpu_kernels.isa, 1)
    for i in range(9):
        operation(kind, y[i : i + 1], 0.7)[0](single, alone[i : i + 1])
    operation(kind, y, 0.7)[0](cpu_kernels, x)
    assert torch.equal(x, alone)


def test_a_factor_of_one_is_the_plain_sum(cpu_kernels: CpuKernels) -> None:
    x, y = inside(4, 50), inside(4, 50)
    expected = x + y
    add_rows(cpu_kernels, x, y)
    assert torch.equal(x, expected)


def test_nan_is_not_hidden(cpu_kernels: CpuKernels) -> None:
    for kind in KINDS:
        x, y = torch.tensor([[torch.nan, 1.0]]), torch.ones(1, 2)
        operation(kind, y, 2.0)[0](cpu_kernels, x)
        assert x[0, 0].isnan()
        assert x[0, 1].isfinite()


def test_wrong_arguments_are_rejected() -> None:
    kernels, x = kernels_of("avx2", 1), torch.ones(2, 4)
    with pytest.raises(ValueError, match="x must be float32"):
        scale_rows(kernels, x.double(), 2.0)
    with pytest.raises(ValueError, match=r"y or gate must be float32 \[2, 4\].* \[2, 3\]"):
        add_rows(kernels, x, torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"y or gate must be float32 \[2, 1\].* \[1, 1\]"):
        gate_rows(kernels, x, torch.ones(1, 1))
    with pytest.raises(ValueError, match="adjacent numbers"):
        cap_rows(kernels, torch.ones(4, 2).T, 2.0)
