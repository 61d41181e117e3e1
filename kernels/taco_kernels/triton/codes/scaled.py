"""Products of 8-bit floats by torch: both operands are e4m3, with a scale for each row.

Activations are rounded to e4m3, with the scale that takes a row's greatest magnitude to 448. That
is what checkpoints of 8-bit floats are made for; the tensor cores multiply them twice as fast as
16-bit floats.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from taco_kernels.packed_codes import PackedCodes

_GREATEST = tl.constexpr(448.0)
_FIRST_CAPABILITY = (8, 9)
# What torch's product needs of both sizes of a matrix.
_MULTIPLE = 16


def multiplies_fp8(device: torch.device) -> bool:
    """Whether torch multiplies 8-bit floats with scales of rows on the device.

    Some devices that could do it have no such product in their libraries: a small one shows it.
    """
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _FIRST_CAPABILITY:
        return False
    ones = torch.ones(_MULTIPLE, _MULTIPLE, device=device)
    codes, scales = ones.to(torch.float8_e4m3fn), ones[:, :1].contiguous()
    try:
        product = torch._scaled_mm(codes, codes.T, scales, scales.T, out_dtype=torch.bfloat16)
        return bool((product == _MULTIPLE).all())
    except RuntimeError:
        return False


def can_scale(x: Tensor, weight: PackedCodes) -> bool:
    """Whether `multiply_scaled` can multiply these."""
    return (
        weight.kind == "e4m3"
        and weight.scales is None
        and weight.order is None
        and x.dtype == torch.bfloat16
        and weight.codes.shape[1] == weight.k  # some of torch's kernels need adjacent rows
        and weight.k % _MULTIPLE == 0
        and weight.n % _MULTIPLE == 0
    )


def multiply_scaled(x: Tensor, weight: PackedCodes, bias: Tensor | None = None) -> Tensor:
    """x W^T + b; see `can_scale`.

    Args:
        x: [num_rows, k]; the last stride must be 1.
        bias: bfloat16 [n].

    Returns:
        bfloat16 [num_rows, n].
    """
    if x.shape[0] == 0:
        return x.new_empty((0, weight.n))
    codes, scales = round_rows(x)
    matrix = weight.codes.view(torch.float8_e4m3fn)
    return torch._scaled_mm(
        codes, matrix.T, scales, weight.row_scales[None], bias=bias, out_dtype=torch.bfloat16
    )


def round_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 [num_rows, k] and their scales, float32 [num_rows, 1]."""
    num_rows, k = x.shape
    codes = torch.empty((num_rows, k), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((num_rows, 1), dtype=torch.float32, device=x.device)
    block = min(4096, triton.next_power_of_2(k))
    _round_kernel[(num_rows,)](
        x, codes, scales, x.stride(0), K=k, BLOCK=block, num_warps=max(1, min(8, block // 512))
    )
    return codes, scales


@triton.jit
def _round_kernel(x, codes, scales, x_row, K: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    greatest = tl.zeros([BLOCK], tl.float32)
    for start in range(0, K, BLOCK):
        mask = start + columns < K
        numbers = tl.load(x + row * x_row + start + columns, mask=mask, other=0.0)
        greatest = tl.maximum(greatest, tl.abs(numbers.to(tl.float32)))
    scale = tl.maximum(tl.max(greatest, axis=0) / _GREATEST, 1e-30)
    tl.store(scales + row, scale)
    for start in range(0, K, BLOCK):
        mask = start + columns < K
        numbers = tl.load(x + row * x_row + start + columns, mask=mask, other=0.0)
        scaled = numbers.to(tl.float32) / scale
        scaled = tl.minimum(tl.maximum(scaled, -_GREATEST), _GREATEST)
        tl.store(codes + row * K + start + columns, scaled.to(tl.float8e4nv), mask=mask)
