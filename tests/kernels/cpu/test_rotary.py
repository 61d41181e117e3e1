import pytest
import torch

from support.cpu_kernels import kernels_of
from taco_kernels.cpu.elementwise import rotate_rows
from taco_kernels.library import CpuKernels
from taco_kernels.reference.rotary import apply_rotary


def tensors(
    num_tokens: int, num_heads: int, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(head_dim)
    x = torch.randn(num_tokens, num_heads + 1, head_dim, generator=generator)
    angles = torch.rand(num_tokens, head_dim // 2, generator=generator) * 1000
    return x, angles.cos(), angles.sin()


@pytest.mark.parametrize("head_dim", [2, 16, 30, 32, 64, 80, 128])
def test_heads_turn_as_in_the_reference(cpu_kernels: CpuKernels, head_dim: int) -> None:
    x, cos, sin = tensors(5, 3, head_dim)
    expected = apply_rotary(x[:, :3], cos, sin)
    untouched = x[:, 3].clone()
    rotate_rows(cpu_kernels, x[:, :3], cos, sin)
    torch.testing.assert_close(x[:, :3], expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(x[:, 3], untouched)


def test_a_token_does_not_depend_on_the_others_nor_on_threads(cpu_kernels: CpuKernels) -> None:
    x, cos, sin = tensors(9, 3, 40)
    alone = x.clone()
    for i in range(9):
        rows = slice(i, i + 1)
        rotate_rows(kernels_of(cpu_kernels.isa, 1), alone[rows], cos[rows], sin[rows])
    rotate_rows(cpu_kernels, x, cos, sin)
    assert torch.equal(x, alone)


def test_wrong_arguments_are_rejected(cpu_kernels: CpuKernels) -> None:
    x, cos, sin = tensors(2, 3, 8)
    with pytest.raises(ValueError, match="contiguous heads"):
        rotate_rows(cpu_kernels, x[..., :6], cos[:, :3], sin[:, :3])
    with pytest.raises(ValueError, match="cos and sin must be"):
        rotate_rows(cpu_kernels, x, cos[:1], sin)
