"""Elementwise kernels on the CPU: activations and math functions, norms, rotary embedding."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from taco_kernels.cpu import structs
from taco_kernels.library import CpuKernels
from taco_kernels.reference.rotary import ROTARY_STYLES, RotaryStyle

FUNCTIONS = ("relu", "gelu", "gelu_tanh", "silu", "exp", "tanh", "erf")
NORM_KINDS = ("rms", "layer")
_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}


def apply_function(kernels: CpuKernels, name: str, x: Tensor) -> Tensor:
    """Applies one of FUNCTIONS to each number of x, which is float32 and contiguous.

    Raises:
        ValueError: the function is unknown or the tensor has the wrong type.
    """
    if name not in FUNCTIONS:
        raise ValueError(f"unknown function {name!r}; known: {', '.join(FUNCTIONS)}")
    _check(x, "x")
    out = torch.empty_like(x)
    call = structs.Mapped(FUNCTIONS.index(name) + 1, x.numel(), x.data_ptr(), out.data_ptr())
    kernels.lib.taco_map(kernels.pool, ctypes.byref(call))
    return out


def norm_rows(
    kernels: CpuKernels,
    kind: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """RMSNorm or LayerNorm of rows, encoded as operands for a matrix of `dtype`.

    Args:
        kind: one of NORM_KINDS.
        x: float32 [num_rows, size], contiguous.
        weight, bias: float32 [size].
        dtype: float32, bfloat16, or int8.

    Returns:
        Operands [num_rows, padded size] of the instruction set, and the scales of int8 rows,
        float32 [num_rows].

    Raises:
        ValueError: kind or dtype is unknown, or a tensor has the wrong type or shape.
    """
    if kind not in NORM_KINDS or dtype not in _DTYPES:
        raise ValueError(f"unknown norm {kind!r} or dtype {dtype}")
    num_rows, size = x.shape
    _check(x, "x")
    for vector in (weight,) if bias is None else (weight, bias):
        _check(vector, "weight or bias")
        if vector.shape != (size,):
            raise ValueError(f"weight and bias must be [{size}], not {tuple(vector.shape)}")
    item_bytes = {
        torch.float32: 4,
        torch.bfloat16: kernels.bf16_operand_bytes,
        torch.int8: kernels.int8_operand_bytes,
    }[dtype]
    floats = torch.float32 if item_bytes == 4 else torch.bfloat16
    integers = torch.int8 if item_bytes == 1 else torch.int16
    padding = 0 if dtype == torch.float32 else -size % (64 // dtype.itemsize)
    out = torch.empty(num_rows, size + padding, dtype=integers if dtype == torch.int8 else floats)
    scales = torch.empty(num_rows)
    call = structs.NormRows(
        NORM_KINDS.index(kind),
        eps,
        num_rows,
        size,
        x.data_ptr(),
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        _DTYPES[dtype],
        out.data_ptr(),
        scales.data_ptr(),
    )
    kernels.lib.taco_norm_rows(kernels.pool, ctypes.byref(call))
    return out, scales


def rotate_rows(
    kernels: CpuKernels,
    x: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    offset: int = 0,
    style: RotaryStyle = "half",
    sections: Sequence[int] = (),
) -> None:
    """Rotary embedding in place of `rotary_dim` numbers of each head, from `offset` on.

    Args:
        x: float32 [num_tokens, num_heads, head_dim]; the last stride must be 1.
        positions: int32 [num_tokens]; with sections [len(sections), num_tokens]; contiguous.
        cos, sin: float32 [num_positions, rotary_dim / 2], contiguous.
        style, sections: as in `taco_kernels.reference.rotary`.

    Raises:
        ValueError: a tensor has the wrong type or shape, or a position is not in the table.
    """
    num_tokens, num_heads, head_dim = x.shape
    if x.dtype != torch.float32 or x.stride(2) != 1:
        raise ValueError(f"x must be float32 with adjacent numbers, not {x.dtype} {x.stride()}")
    if style not in ROTARY_STYLES:
        raise ValueError(f"unknown rotary style {style!r}; known: {', '.join(ROTARY_STYLES)}")
    for table in (cos, sin):
        _check(table, "cos and sin")
    half = cos.shape[-1]
    if cos.ndim != 2 or cos.shape != sin.shape or not 0 <= offset <= head_dim - 2 * half:
        raise ValueError(
            f"cos and sin must be [num_positions, rotary_dim / 2] with offset {offset} + rotary_dim"
            f" at most {head_dim}, not {list(cos.shape)} and {list(sin.shape)}"
        )
    if sections and (sum(sections) != half or min(sections) < 0):
        raise ValueError(f"sections must sum to rotary_dim / 2 = {half}, not {list(sections)}")
    axes = (len(sections),) if sections else ()
    if (
        positions.dtype != torch.int32
        or positions.shape != (*axes, num_tokens)
        or not positions.is_contiguous()
    ):
        raise ValueError(
            f"positions must be contiguous int32 {[*axes, num_tokens]}, not {positions.dtype} "
            f"{list(positions.shape)}"
        )
    if num_tokens == 0:
        return
    least, greatest = (int(bound) for bound in positions.aminmax())
    if least < 0 or greatest >= cos.shape[0]:
        raise ValueError(f"positions must be 0 to {cos.shape[0] - 1}, not {least} to {greatest}")
    pairs = (ctypes.c_int32 * len(sections))(*sections)
    rotation = structs.Rotation(
        ROTARY_STYLES.index(style),
        num_heads,
        x.stride(1),
        2 * half,
        cos.data_ptr(),
        sin.data_ptr(),
        len(sections),
        ctypes.addressof(pairs),
    )
    first = x.data_ptr() + offset * x.element_size()
    call = structs.RotaryRows(rotation, num_tokens, first, x.stride(0), positions.data_ptr())
    kernels.lib.taco_rotate_rows(kernels.pool, ctypes.byref(call))


def _check(tensor: Tensor, name: str) -> None:
    if tensor.dtype != torch.float32 or not tensor.is_contiguous():
        raise ValueError(f"{name} must be float32 and contiguous, not {tensor.dtype}")
