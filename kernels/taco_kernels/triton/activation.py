"""Gated activation of an MLP (SwiGLU). Reference: `taco_kernels.reference.activation`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Below this many numbers, smaller programs spread better over the device.
_FEW_NUMBERS = 2**22


def silu_mul(gate_up: Tensor, *, out: Tensor | None = None) -> Tensor:
    """SwiGLU (Shazeer 2020): silu(gate) * up, with silu rounded to the dtype first.

    Args:
        gate_up: [num_tokens, 2 * size], the gate first; the last stride must be 1.
        out: [num_tokens, size]; must not overlap `gate_up`.

    Returns:
        `out`, or a new tensor.

    Raises:
        ValueError: a tensor has the wrong shape, dtype or strides.
    """
    if gate_up.dtype not in _DTYPES or gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(
            f"gate_up must be float16, bfloat16 or float32 [num_tokens, 2 * size], not "
            f"{gate_up.dtype} {list(gate_up.shape)}"
        )
    num_tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    if out is None:
        out = torch.empty((num_tokens, size), dtype=gate_up.dtype, device=gate_up.device)
    if (
        out.dtype != gate_up.dtype
        or out.shape != (num_tokens, size)
        or gate_up.stride(1) != 1
        or out.stride(1) != 1
    ):
        raise ValueError(
            f"out must be {gate_up.dtype} {[num_tokens, size]} and all rows adjacent numbers, not "
            f"{out.dtype} {list(out.shape)} with strides {out.stride()} and {gate_up.stride()}"
        )
    if out.numel() == 0:
        return out
    block, num_warps = (512, 2) if out.numel() < _FEW_NUMBERS else (4096, 8)
    block = min(block, max(64, triton.next_power_of_2(size)))
    _silu_mul_kernel[(num_tokens, triton.cdiv(size, block))](
        gate_up,
        out,
        gate_up.stride(0),
        out.stride(0),
        SIZE=size,
        BLOCK=block,
        num_warps=num_warps,
    )
    return out


@triton.jit
def _silu_mul_kernel(
    gate_up, out, gate_up_token, out_token, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    gate = tl.load(gate_up + token * gate_up_token + columns, mask=mask, other=0.0)
    up = tl.load(gate_up + token * gate_up_token + SIZE + columns, mask=mask, other=0.0)
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    product = silu.to(tl.float32) * up.to(tl.float32)
    tl.store(out + token * out_token + columns, product.to(gate.dtype), mask=mask)
