"""Rotary positions on the CPU against the reference: any part of a head, both styles, sections."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.cpu_kernels import EMULATED, NATIVE, kernels_of
from taco_kernels.cpu.elementwise import rotate_rows
from taco_kernels.library import CpuKernels
from taco_kernels.reference.rotary import (
    ROTARY_STYLES,
    RotaryStyle,
    apply_rotary,
    gather_angles,
)

NUM_POSITIONS = 40


def heads_and_table(
    num_tokens: int, num_heads: int, head_dim: int, rotary_dim: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Heads beside others in one buffer, and the cosines and sines of all positions."""
    generator = torch.Generator().manual_seed(head_dim)
    buffer = torch.randn(num_tokens, num_heads + 1, head_dim, generator=generator)
    shape = (NUM_POSITIONS, (head_dim if rotary_dim is None else rotary_dim) // 2)
    angles = torch.rand(shape, generator=generator) * 1000
    return buffer, angles.cos(), angles.sin()


def rotated(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, **options: Any) -> Tensor:
    sections = options.pop("sections", ())
    angles = gather_angles(torch.cat((cos, sin), dim=1), positions.long(), sections)
    return apply_rotary(x, *angles, **options)


@pytest.mark.parametrize("style", ROTARY_STYLES)
@pytest.mark.parametrize("head_dim", [2, 16, 30, 32, 64, 80, 128])
def test_heads_turn_as_in_the_reference(
    cpu_kernels: CpuKernels, head_dim: int, style: RotaryStyle
) -> None:
    x, cos, sin = heads_and_table(5, 3, head_dim)
    positions = torch.tensor([4, 0, 39, 7, 7], dtype=torch.int32)
    expected = rotated(x[:, :3], positions, cos, sin, style=style)
    untouched = x[:, 3].clone()
    rotate_rows(cpu_kernels, x[:, :3], positions, cos, sin, style=style)
    torch.testing.assert_close(x[:, :3], expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(x[:, 3], untouched)


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    num_tokens=st.integers(0, 9),
    num_heads=st.integers(1, 4),
    sections=st.lists(st.integers(0, 20), min_size=1, max_size=3).filter(any),
    has_sections=st.booleans(),
    before=st.integers(0, 20),
    after=st.integers(0, 20),
    style=st.sampled_from(ROTARY_STYLES),
    threads=st.integers(1, 3),
)
def test_any_part_of_a_head(
    isa: str,
    num_tokens: int,
    num_heads: int,
    sections: list[int],
    has_sections: bool,
    before: int,
    after: int,
    style: RotaryStyle,
    threads: int,
) -> None:
    rotary_dim = 2 * sum(sections)
    x, cos, sin = heads_and_table(num_tokens, num_heads, before + rotary_dim + after, rotary_dim)
    shape = (len(sections), num_tokens) if has_sections else (num_tokens,)
    positions = torch.randint(0, NUM_POSITIONS, shape, dtype=torch.int32)
    options: dict[str, Any] = {
        "offset": before,
        "style": style,
        "sections": sections if has_sections else (),
    }
    expected = x.clone()
    expected[:, :num_heads] = rotated(x[:, :num_heads], positions, cos, sin, **options)
    rotate_rows(kernels_of(isa, threads), x[:, :num_heads], positions, cos, sin, **options)
    torch.testing.assert_close(x, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(x[..., :before], expected[..., :before])


@pytest.mark.parametrize("style", ROTARY_STYLES)
def test_a_token_does_not_depend_on_the_others_nor_on_threads(
    cpu_kernels: CpuKernels, style: RotaryStyle
) -> None:
    x, cos, sin = heads_and_table(9, 3, 40)
    positions = torch.arange(9, dtype=torch.int32)
    alone = x.clone()
    single = kernels_of(cpu_kernels.isa, 1)
    for i in range(9):
        rotate_rows(single, alone[i : i + 1], positions[i : i + 1], cos, sin, style=style)
    rotate_rows(cpu_kernels, x, positions, cos, sin, style=style)
    assert torch.equal(x, alone)


def test_both_styles_give_a_pair_the_same_bits(cpu_kernels: CpuKernels) -> None:
    """A checkpoint may be re-laid from one style to the other without changing a token."""
    halves, cos, sin = heads_and_table(3, 2, 36)
    interleaved = halves.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2).contiguous()
    positions = torch.tensor([5, 1, 30], dtype=torch.int32)
    rotate_rows(cpu_kernels, halves, positions, cos, sin)
    rotate_rows(cpu_kernels, interleaved, positions, cos, sin, style="interleaved")
    assert torch.equal(halves, interleaved.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(2, 3, 16)[..., ::2]}, "adjacent numbers"),
        ({"x": torch.ones(2, 3, 8, dtype=torch.float64)}, "float32"),
        ({"cos": torch.ones(9, 3)}, r"not \[9, 3\] and \[9, 4\]"),
        ({"offset": 2}, "offset 2"),
        ({"style": "thirds"}, "unknown rotary style 'thirds'; known: half, interleaved"),
        ({"sections": (1, 2)}, r"sections must sum to rotary_dim / 2 = 4, not \[1, 2\]"),
        ({"sections": (2, 2)}, r"positions must be contiguous int32 \[2, 2\]"),
        ({"positions": torch.zeros(2, dtype=torch.int64)}, r"int32 \[2\], not torch.int64"),
        ({"positions": torch.tensor([0, 9], dtype=torch.int32)}, "positions must be 0 to 8"),
    ],
)
def test_wrong_arguments_are_rejected(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "x": torch.ones(2, 3, 8),
        "positions": torch.zeros(2, dtype=torch.int32),
        "cos": torch.ones(9, 4),
        "sin": torch.ones(9, 4),
        **change,
    }
    with pytest.raises(ValueError, match=message):
        rotate_rows(kernels_of("avx2", 1), **arguments)
