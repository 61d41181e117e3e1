"""Lets Triton's interpreter work out once what it works out for each operation of a kernel.

Most of its time goes into types of shapes, with their names and constants, and into looking for
overflows by operations of the same kind. What a kernel computes, and what is refused, stays.
"""

from __future__ import annotations

import operator
from functools import cache
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

_np_dtype = interpreter._get_np_dtype
_np_dtype_of_scalar = cache(_np_dtype)
_broadcast_any = TritonSemantic.broadcast_impl_value
_blocks: dict[tuple[str, tuple[int, ...]], tl.block_type] = {}
_OPERATORS = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}


def install() -> None:
    tl.block_type.with_element_ty = _with_element_type
    interpreter.InterpreterBuilder.get_block_ty = _get_block_type
    interpreter._get_np_dtype = _get_np_dtype
    tl.tensor.__init__ = _init_tensor
    TritonSemantic.broadcast_impl_value = _broadcast
    TritonSemantic.binary_op_sanitize_overflow_impl = _check_overflow


def _block_type(scalar: tl.dtype, shape: tuple[int, ...]) -> tl.block_type:
    key = (scalar.name, shape)
    if key not in _blocks:
        _blocks[key] = tl.block_type(scalar, list(shape))
    return _blocks[key]


def _with_element_type(block: tl.block_type, scalar: tl.dtype) -> tl.block_type:
    return _block_type(scalar, tuple(block.shape))


def _get_block_type(builder: object, scalar: tl.dtype, shape: Any) -> tl.block_type:
    return _block_type(scalar, tuple(shape))


def _get_np_dtype(of: tl.dtype) -> np.dtype[Any]:
    scalar = of.scalar
    return _np_dtype(scalar) if scalar.is_ptr() else _np_dtype_of_scalar(scalar)


@cache
def _constants(shape: tuple[int, ...]) -> tuple[tl.core.tuple, tl.constexpr]:
    return tl.core.tuple([tl.constexpr(size) for size in shape]), tl.constexpr(
        np.prod(shape, dtype=int).item()
    )


def _init_tensor(tensor: tl.tensor, handle: object, of: tl.dtype) -> None:
    tensor.handle = handle
    tensor.type = of
    tensor.dtype = of.scalar
    tensor.shape, tensor.numel = _constants(tuple(of.shape) if of.is_block() else ())


def _broadcast(
    semantic: TritonSemantic, left: tl.tensor, right: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    if left.shape is right.shape:  # the same constants
        return left, right
    return _broadcast_any(semantic, left, right)


def _check_overflow(
    semantic: TritonSemantic, left: tl.tensor, right: tl.tensor, operation: Any
) -> None:
    """As Triton does it, in 64 bits."""
    number = left.type.scalar
    if number.int_bitwidth >= 64 or not semantic.builder.options.sanitize_overflow:
        return
    assert number == right.type.scalar
    assert number.is_int()
    wide = (side.handle.data.astype(np.int64) for side in (left, right))
    result = _OPERATORS[operation.__name__](*wide)
    low, high = number.get_int_min_value(), number.get_int_max_value()
    fits = bool((low <= result).all() and (result <= high).all())
    assert fits, f"int{number.int_bitwidth} overflow detected for operation {operation.__name__}"
