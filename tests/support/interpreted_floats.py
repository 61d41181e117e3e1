"""Arithmetic of bfloat16, and rounding to it and to e4m3, for Triton's interpreter.

It holds the bits of such numbers as integers, which it adds and multiplies as integers, and cuts
off what it should round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

Binary = Callable[[Any, TensorHandle, TensorHandle], TensorHandle]


def install() -> None:
    builder: Any = InterpreterBuilder
    for name in ("create_fadd", "create_fsub", "create_fmul", "create_fdiv"):
        setattr(builder, name, _of_floats(getattr(builder, name)))
    builder.get_bf16 = lambda _, number: _rounded(np.array([number], np.float32))
    builder.create_dot = _dot_of_floats(builder.create_dot)
    builder.cast_impl = _cast(builder.cast_impl)
    builder.create_fp_to_fp = _cast(builder.create_fp_to_fp)


def _is_bfloat16(handle: TensorHandle) -> bool:
    return bool(handle.dtype.scalar == tl.bfloat16)


def _wide(handle: TensorHandle) -> TensorHandle:
    """As float32, if it is bfloat16."""
    if not _is_bfloat16(handle):
        return handle
    return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def _rounded(numbers: NDArray[np.float32]) -> TensorHandle:
    """To the nearest bfloat16, ties to even; NaN stays one."""
    bits = np.ascontiguousarray(numbers).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    rounded = np.where(np.isnan(numbers), 0x7FC0, rounded)
    return TensorHandle(rounded.astype(np.uint16), tl.bfloat16)


def _of_floats(operation: Binary) -> Binary:
    def run(builder: Any, left: TensorHandle, right: TensorHandle) -> TensorHandle:
        if not _is_bfloat16(left):
            return operation(builder, left, right)
        result: TensorHandle = operation(builder, _wide(left), _wide(right))
        return _rounded(result.data.astype(np.float32))

    return run


def _dot_of_floats(dot: Callable[..., TensorHandle]) -> Callable[..., TensorHandle]:
    def run(builder: Any, a: TensorHandle, b: TensorHandle, *rest: Any) -> TensorHandle:
        return dot(builder, _wide(a), _wide(b), *rest)

    return run


def _cast(cast: Callable[..., TensorHandle]) -> Callable[..., TensorHandle]:
    def run(builder: Any, source: TensorHandle, to: Any, *rest: Any) -> TensorHandle:
        scalar = to.scalar
        if scalar == tl.bfloat16 and not _is_bfloat16(source):
            return _rounded(source.data.astype(np.float32))
        if scalar == tl.float8e4nv:
            numbers = torch.from_numpy(_wide(source).data.astype(np.float32))
            bits = numbers.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
            return TensorHandle(bits, tl.float8e4nv)
        if _is_bfloat16(source) and scalar != tl.bfloat16:
            wide = _wide(source)
            return wide if scalar == tl.float32 else cast(builder, wide, to, *rest)
        return cast(builder, source, to, *rest)

    return run
