"""Elementwise kernels on the CPU: activations, norms, rotary embedding, sums, factors and gates."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from taco_kernels.cpu import structs
from taco_kernels.cpu.matmul import ACTIVATIONS, RowScales, empty_operands, in_row_order
from taco_kernels.cpu.packed_matrix import DTYPES
from taco_kernels.library import CpuKernels
from taco_kernels.reference import activation as reference_activation
from taco_kernels.reference.activation import ALPHA, check_activation
from taco_kernels.reference.rotary import ROTARY_STYLES, RotaryStyle

# Numbers of the functions in csrc/elementwise/elementwise_args.h.
FUNCTIONS = {
    **{name: ACTIVATIONS[name] for name in reference_activation.ACTIVATIONS},
    "exp": 16,
    "tanh": 17,
    "erf": 18,
    "exp2": 19,
    "exp2_for_bf16": 20,
    "silu_for_bf16": 21,
    "softplus": 22,
}
NORM_KINDS = ("rms", "layer")
_ROW_OPS = ("add", "scale", "cap", "clip", "gate", "xielu", "multiply")


def apply_function(kernels: CpuKernels, name: str, x: Tensor) -> Tensor:
    """Applies one of FUNCTIONS to each number of x, which is float32 and contiguous.

    Raises:
        ValueError: the function is unknown or the tensor has the wrong type.
    """
    if name not in FUNCTIONS:
        raise ValueError(f"unknown function {name!r}; known: {', '.join(FUNCTIONS)}")
    _check(x, "x")
    out = torch.empty_like(x)
    call = structs.Mapped(FUNCTIONS[name], x.numel(), x.data_ptr(), out.data_ptr())
    kernels.lib.taco_map(kernels.pool, ctypes.byref(call))
    return out


def activate_rows(
    kernels: CpuKernels,
    x: Tensor,
    activation: str,
    *,
    gated: bool = False,
    alpha: float = ALPHA,
    limit: float = math.inf,
    out: Tensor | None = None,
) -> Tensor:
    """act(x), or act(gate) * up of rows that hold gate and up side by side.

    Args:
        x: float32 [num_rows, size], or [num_rows, 2 * size] if gated; the last stride must be 1.
        activation, alpha, limit: as in `taco_kernels.reference.activation`.
        out: float32 [num_rows, size]; may be x or a part of it.

    Returns:
        `out`, or a new tensor.

    Raises:
        ValueError: the activation is unknown, or a tensor has the wrong type or shape.
    """
    check_activation(activation, gated=gated, limit=limit)
    _check_rows(x, "x")
    num_rows, width = x.shape
    if gated and width % 2:
        raise ValueError(f"gated rows must hold gate and up of one size, not {width} numbers")
    size = width // 2 if gated else width
    out = torch.empty(num_rows, size) if out is None else out
    _check_rows(out, "out", (num_rows, size))
    call = structs.ActivatedRows(
        ACTIVATIONS[activation],
        alpha,
        limit,
        num_rows,
        size,
        x.data_ptr(),
        x.data_ptr() + size * x.element_size() if gated else None,
        x.stride(0),
        out.data_ptr(),
        out.stride(0),
    )
    kernels.lib.taco_activate_rows(kernels.pool, ctypes.byref(call))
    return out


def add_rows(kernels: CpuKernels, x: Tensor, y: Tensor, factor: float = 1.0) -> None:
    """x += factor * y; both float32 [num_rows, size], the last stride 1, as in all row functions.

    Raises:
        ValueError: a tensor has the wrong type or shape; likewise in all row functions.
    """
    _apply(kernels, "add", x, factor, y, x.shape[-1])


def scale_rows(kernels: CpuKernels, x: Tensor, factor: float) -> None:
    """x *= factor"""
    _apply(kernels, "scale", x, factor)


def cap_rows(kernels: CpuKernels, x: Tensor, cap: float) -> None:
    """x = cap * tanh(x / cap)"""
    _apply(kernels, "cap", x, cap)


def clip_rows(kernels: CpuKernels, x: Tensor, limit: float) -> None:
    """x within [-limit, limit]"""
    _apply(kernels, "clip", x, limit)


def gate_rows(kernels: CpuKernels, x: Tensor, gate: Tensor) -> None:
    """x *= sigmoid(gate); gate [num_rows, size] or [num_rows, 1]."""
    _apply(kernels, "gate", x, 0.0, gate, 1 if gate.shape[-1] == 1 else x.shape[-1])


def xielu_rows(kernels: CpuKernels, x: Tensor, weight: Tensor) -> None:
    """x = xIELU(x); weight: float32 [4], as of the reference."""
    _apply(kernels, "xielu", x, 0.0, weight.expand(len(x), 4), 4)


def multiply_rows(kernels: CpuKernels, x: Tensor, y: Tensor) -> None:
    """x *= y"""
    _apply(kernels, "multiply", x, 0.0, y, x.shape[-1])


def _apply(
    kernels: CpuKernels,
    kind: str,
    x: Tensor,
    number: float,
    other: Tensor | None = None,
    other_size: int = 0,
) -> None:
    _check_rows(x, "x")
    if other is not None:
        _check_rows(other, "y or gate", (x.shape[0], other_size))
    call = structs.RowOp(
        _ROW_OPS.index(kind),
        number,
        *x.shape,
        x.data_ptr(),
        x.stride(0),
        None if other is None else other.data_ptr(),
        0 if other is None else other.stride(0),
        other_size,
    )
    kernels.lib.taco_apply_row_op(kernels.pool, ctypes.byref(call))


def norm_rows(
    kernels: CpuKernels,
    kind: str,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    dtype: torch.dtype = torch.float32,
    *,
    group: int | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, RowScales]:
    """RMSNorm or LayerNorm of rows, encoded as operands for a matrix of `dtype`.

    Args:
        kind: one of NORM_KINDS.
        x: float32 [num_rows, size]; the last stride must be 1.
        weight, bias: float32 [size]; with groups [group] for all of them, or [size] for each its
            own; None: 1 and 0.
        dtype: float32, bfloat16, or int8; with groups float32.
        group: number of adjacent columns that are normed together, such as a head; None: all.
        out: for float32 only: [num_rows, size]; may be x.

    Returns:
        Operands [num_rows, padded size] of the instruction set, in row order, and the scales of
        int8 rows.

    Raises:
        ValueError: kind or dtype is unknown, or a tensor has the wrong type or shape.
    """
    if kind not in NORM_KINDS or dtype not in DTYPES:
        raise ValueError(f"unknown norm {kind!r} or dtype {dtype}")
    _check_rows(x, "x")
    num_rows, size = x.shape
    group = size if group is None else group
    if group < 1 or size % group:
        raise ValueError(f"{size} columns cannot be normed in groups of {group}")
    if dtype != torch.float32 and (out is not None or group != size):
        raise ValueError(f"groups and out need float32, not {dtype}")
    num_weights = group
    for vector in (weight, bias):
        if vector is None:
            continue
        _check(vector, "weight or bias")
        num_weights = vector.numel()
        if vector.ndim != 1 or num_weights not in (group, size):
            raise ValueError(f"weight and bias must be [{group}] or [{size}], not {vector.shape}")
    if weight is not None and bias is not None and weight.shape != bias.shape:
        raise ValueError(f"weight and bias must be alike, not {weight.shape} and {bias.shape}")
    out = empty_operands(kernels, dtype, num_rows, size) if out is None else out
    if dtype == torch.float32:
        _check_rows(out, "out", (num_rows, size))
    scales = RowScales(num_rows)
    call = structs.NormRows(
        NORM_KINDS.index(kind),
        eps,
        num_rows,
        group,
        size // group,
        x.data_ptr(),
        x.stride(0),
        None if weight is None else weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        group if num_weights > group else 0,
        DTYPES[dtype],
        out.data_ptr(),
        out.stride(0),
        scales.data_ptr(),
    )
    kernels.lib.taco_norm_rows(kernels.pool, ctypes.byref(call))
    return (out if dtype == torch.float32 else in_row_order(kernels, out, num_rows)), scales


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


def _check_rows(rows: Tensor, name: str, shape: tuple[int, int] | None = None) -> None:
    if (
        rows.dtype != torch.float32
        or rows.ndim != 2
        or rows.stride(1) != 1
        or (shape is not None and rows.shape != shape)
    ):
        wanted = "[num_rows, size]" if shape is None else list(shape)
        raise ValueError(
            f"{name} must be float32 {wanted} with adjacent numbers, not {rows.dtype} "
            f"{list(rows.shape)} with strides {rows.stride()}"
        )
