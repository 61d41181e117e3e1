"""Rotary positions of heads in place against their reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from taco_kernels.reference.rotary import RotaryStyle, apply_rotary, gather_angles
from taco_kernels.triton import rotary
from taco_kernels.triton.rotary import rotate

pytestmark = pytest.mark.usefixtures("tensors_on_device")

# bfloat16: the interpreter cuts where the device rounds.
TOLERANCES: dict[torch.dtype, dict[str, Any]] = {
    torch.float32: {"atol": 1e-6, "rtol": 1e-6},
    torch.float16: {"atol": 1e-6, "rtol": 2e-3},
    torch.bfloat16: {"atol": 1e-6, "rtol": 2e-2},
}
NUM_POSITIONS = 50


def _table(rotary_dim: int) -> Tensor:
    angles = torch.rand(NUM_POSITIONS, rotary_dim // 2) * 100
    return torch.cat((angles.cos(), angles.sin()), dim=1)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize("sections", [(), (5, 3, 4), (0, 12), (12,)], ids=str)
@pytest.mark.parametrize("offset", [0, 7])
def test_it_agrees_with_the_reference(
    offset: int, sections: tuple[int, ...], style: RotaryStyle, dtype: torch.dtype
) -> None:
    buffer = torch.randn(5, 9, 40).to(dtype)
    before = buffer.clone()
    shape = (len(sections), 5) if sections else (5,)
    positions, cos_sin = torch.randint(0, NUM_POSITIONS, shape, dtype=torch.int32), _table(24)
    rotate(buffer[:, 2:8], positions, cos_sin, offset=offset, style=style, sections=sections)
    cos, sin = gather_angles(cos_sin, positions.long(), sections)
    expected = before.clone()
    expected[:, 2:8] = apply_rotary(before[:, 2:8], cos, sin, offset=offset, style=style)
    torch.testing.assert_close(buffer, expected, **TOLERANCES[dtype])
    assert torch.equal(buffer[..., :offset], before[..., :offset])
    assert torch.equal(buffer[..., offset + 24 :], before[..., offset + 24 :])


def test_positions_of_a_longer_step_may_be_a_view() -> None:
    """As a CUDA graph's input is, whose tokens are padded."""
    all_positions, cos_sin = torch.randint(0, NUM_POSITIONS, (3, 9)), _table(16)
    x = torch.randn(4, 2, 16)
    cos, sin = gather_angles(cos_sin, all_positions[:, :4], (2, 3, 3))
    expected = apply_rotary(x, cos, sin)
    rotate(x, all_positions[:, :4], cos_sin, sections=(2, 3, 3))
    torch.testing.assert_close(x, expected, **TOLERANCES[torch.float32])


def test_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """More heads share a program then."""
    monkeypatch.setattr(rotary, "_FEW_TOKENS", 5)
    x, positions, cos_sin = torch.randn(6, 11, 32), torch.arange(6), _table(32)
    cos, sin = gather_angles(cos_sin, positions)
    expected = apply_rotary(x, cos, sin)
    rotate(x, positions, cos_sin)
    torch.testing.assert_close(x, expected, **TOLERANCES[torch.float32])


def test_no_tokens_need_no_launch() -> None:
    rotate(torch.empty(0, 2, 8), torch.empty(0, dtype=torch.int64), _table(8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(3, 8, 2).mT}, "x must be .*adjacent"),
        ({"positions": torch.zeros(3)}, r"positions must be .*\[3\].* not torch.float32"),
        ({"sections": (2, 2)}, r"positions must be int32 or int64 \[2, 3\]"),
        ({"cos_sin": torch.ones(9, 10)}, r"cos_sin must be .*at most 8.*\[9, 10\]"),
        ({"cos_sin": torch.ones(9, 5)}, "rotary_dim even"),
        ({"offset": 2}, "at most 8 - offset 2"),
        ({"offset": -1}, "at most 8 - offset -1"),
        ({"style": "thirds"}, "unknown rotary style 'thirds'; known: half, interleaved"),
        (
            {"sections": (1, 2), "positions": torch.zeros(2, 3, dtype=torch.int32)},
            r"sum to rotary_dim / 2 = 4, not \[1, 2\]",
        ),
        (
            {"sections": (1, 1, 1, 1), "positions": torch.zeros(4, 3, dtype=torch.int32)},
            "sections must be up to 3 numbers",
        ),
    ],
)
def test_error_names_the_mismatch(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "x": torch.ones(3, 2, 8),
        "positions": torch.zeros(3, dtype=torch.int32),
        "cos_sin": torch.ones(9, 8),
        **change,
    }
    with pytest.raises(ValueError, match=message):
        rotate(**arguments)
