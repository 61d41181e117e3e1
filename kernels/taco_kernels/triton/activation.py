"""Activations, plain and as the gate of a product.

Reference: `taco_kernels.reference.activation`.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from taco_kernels.reference.activation import ALPHA, check_activation

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Below this many numbers, smaller programs spread better over the device.
_FEW_NUMBERS = 2**22


def activate(x: Tensor, kind: str, *, out: Tensor | None = None) -> Tensor:
    """One of the reference's ACTIVATIONS of each number, computed in float32.

    Args:
        x: [num_tokens, size]; the last stride must be 1.
        out: as x; may be x itself.

    Returns:
        `out`, or a new tensor.

    Raises:
        ValueError: the kind is unknown, or a tensor has the wrong shape, dtype or strides.
    """
    check_activation(kind, gated=False)
    return _launch(x, kind, False, 0.0, math.inf, out)


def act_mul(
    gate_up: Tensor,
    kind: str = "silu",
    *,
    alpha: float = ALPHA,
    limit: float = math.inf,
    out: Tensor | None = None,
) -> Tensor:
    """act(gate) * up (GLU variants, Shazeer 2020), with the activation rounded to the dtype first.

    Args:
        gate_up: [num_tokens, 2 * size], the gate first; the last stride must be 1.
        kind, alpha, limit: as in the reference; "swiglu_clipped" is rounded once.
        out: [num_tokens, size]; must not overlap `gate_up`.

    Returns:
        `out`, or a new tensor.

    Raises:
        ValueError: the kind is unknown, or a tensor has the wrong shape, dtype or strides.
    """
    check_activation(kind, gated=True, limit=limit)
    return _launch(gate_up, kind, True, alpha, limit, out)


def _launch(
    x: Tensor, kind: str, is_gated: bool, alpha: float, limit: float, out: Tensor | None
) -> Tensor:
    parts = 2 if is_gated else 1
    if x.dtype not in _DTYPES or x.dim() != 2 or x.shape[1] % parts:
        wanted = "gate_up must be {} [num_tokens, 2 * size]" if is_gated else "x must be {} rows"
        raise ValueError(
            f"{wanted.format('float16, bfloat16 or float32')}, not {x.dtype} {list(x.shape)}"
        )
    num_tokens, size = x.shape[0], x.shape[1] // parts
    if out is None:
        out = torch.empty((num_tokens, size), dtype=x.dtype, device=x.device)
    if (
        out.dtype != x.dtype
        or out.shape != (num_tokens, size)
        or x.stride(1) != 1
        or out.stride(1) != 1
    ):
        raise ValueError(
            f"out must be {x.dtype} {[num_tokens, size]} and all rows adjacent numbers, not "
            f"{out.dtype} {list(out.shape)} with strides {out.stride()} and {x.stride()}"
        )
    if out.numel() == 0:
        return out
    block, num_warps = (512, 2) if out.numel() < _FEW_NUMBERS else (4096, 8)
    block = min(block, max(64, triton.next_power_of_2(size)))
    _activate_kernel[(num_tokens, triton.cdiv(size, block))](
        x,
        out,
        x.stride(0),
        out.stride(0),
        alpha,
        limit,
        KIND=kind,
        IS_GATED=is_gated,
        SIZE=size,
        BLOCK=block,
        num_warps=num_warps,
    )
    return out


@triton.jit
def activated(x, KIND: tl.constexpr):
    """The activation of float32 numbers; not of the clipped kind."""
    if KIND == "relu":
        y = tl.where(x < 0, 0.0, x)  # NaN stays NaN
    elif KIND == "relu2":
        y = tl.where(x < 0, 0.0, x)
        y = y * y
    elif KIND == "gelu":
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == "gelu_tanh":
        # (1 + tanh u) / 2 = sigmoid(2 u)
        y = x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    elif KIND == "quick_gelu":
        y = x / (1.0 + tl.exp(-1.702 * x))
    else:
        tl.static_assert(KIND == "silu")
        y = x / (1.0 + tl.exp(-x))
    return y


@triton.jit
def swiglu_clipped(gate, up, alpha, limit):
    """gpt-oss's activation of float32 numbers."""
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    return gate / (1.0 + tl.exp(-alpha * gate)) * (up + 1.0)


@triton.jit(do_not_specialize=["alpha", "limit"])
def _activate_kernel(
    x,
    out,
    x_token,
    out_token,
    alpha,
    limit,
    KIND: tl.constexpr,
    IS_GATED: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per BLOCK columns of a token; x_token and out_token are strides."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    gate = tl.load(x + token * x_token + columns, mask=mask, other=0.0)
    dtype = gate.dtype
    wide = gate.to(tl.float32)
    if IS_GATED:
        up = tl.load(x + token * x_token + SIZE + columns, mask=mask, other=0.0).to(tl.float32)
        if KIND == "swiglu_clipped":
            y = swiglu_clipped(wide, up, alpha, limit)
        else:
            y = activated(wide, KIND).to(dtype).to(tl.float32) * up
    else:
        y = activated(wide, KIND)
    tl.store(out + token * out_token + columns, y.to(dtype), mask=mask)
