"""RMSNorm and LayerNorm of rows, fused with the preceding residual sum.

Reference: `taco_kernels.reference.norm`. A row that fits into one program's registers is read once,
a wider one once per sum and once more for the output.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# The widest row that one program holds: 32 numbers per thread.
_MAX_HELD = 16384
_WIDE_BLOCK = 4096
# Fewer rows do not fill the device: more threads per row make it faster.
_FEW_ROWS = 512


def rms_norm(
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Root mean square norm (Zhang and Sennrich 2019) of rows, computed in float32.

    Args:
        x: [num_rows, width] or [num_tokens, num_heads, width]; the last stride must be 1.
        weight, bias: [width], or [num_heads, width] for heads with weights each; in x's dtype or
            float32, which is rounded once (see the reference). None: 1 and 0.
        residual: as x; becomes residual + x, rounded to its dtype, which is then normed.
        out: as x; may be x itself.

    Returns:
        `out`, or a new contiguous tensor.

    Raises:
        ValueError: a tensor has the wrong shape, dtype or strides.
    """
    return _norm(x, weight, bias, eps, residual, out, is_centered=False)


def layer_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    residual: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Layer norm (Ba et al. 2016) of rows in float32; arguments as in `rms_norm`."""
    return _norm(x, weight, bias, eps, residual, out, is_centered=True)


def _norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    residual: Tensor | None,
    out: Tensor | None,
    *,
    is_centered: bool,
) -> Tensor:
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _check(x, weight, bias, residual, out)
    width = x.shape[-1]
    num_rows = x.numel() // width
    if num_rows == 0:
        return out
    summed = out if residual is None else residual  # unused without a residual
    arguments = (
        x,
        summed,
        x if weight is None else weight,  # not read without a weight; bias likewise
        x if bias is None else bias,
        out,
        num_rows,
        x.shape[1] if x.dim() == 3 else 1,
        *_row_strides(x),
        *_row_strides(summed),
        *_row_strides(out),
        eps,
    )
    kind = {
        "WIDTH": width,
        "CENTERED": is_centered,
        "HAS_WEIGHT": weight is not None,
        "HAS_BIAS": bias is not None,
        # Weights of one row for all heads, or of one row per head.
        "WEIGHT_HEAD": width if any(v is not None and v.dim() == 2 for v in (weight, bias)) else 0,
        "ROUNDS_FIRST": not is_centered and (weight is None or weight.dtype == x.dtype),
        "HAS_RESIDUAL": residual is not None,
    }
    block = triton.next_power_of_2(width)
    if block > _MAX_HELD:
        _norm_wide_row[(num_rows,)](*arguments, **kind, BLOCK=_WIDE_BLOCK, num_warps=16)
        return out
    if num_rows <= _FEW_ROWS:
        rows, num_warps = 1, block // 256
    else:
        rows = max(1, 2048 // block)
        num_warps = rows * block // 512
    _norm_held_rows[(triton.cdiv(num_rows, rows),)](
        *arguments, **kind, BLOCK=block, ROWS=rows, num_warps=max(1, min(16, num_warps))
    )
    return out


def _row_strides(x: Tensor) -> tuple[int, int]:
    """Strides of tokens and, if there are heads, of heads."""
    return (x.stride(0), x.stride(1)) if x.dim() == 3 else (x.stride(0), 0)


def _check(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None, out: Tensor
) -> None:
    if x.dtype not in _DTYPES or x.dim() not in (2, 3) or x.shape[-1] == 0:
        raise ValueError(
            f"x must be rows of float16, bfloat16 or float32, not {x.dtype} {list(x.shape)}"
        )
    for name, vector in (("weight", weight), ("bias", bias)):
        if vector is not None and (
            vector.dtype not in (x.dtype, torch.float32)
            or vector.shape not in (x.shape[-1:], x.shape[1:])
            or not vector.is_contiguous()
        ):
            raise ValueError(
                f"{name} must be {x.dtype} or float32 [{x.shape[-1]}], or of each head, not "
                f"{vector.dtype} {list(vector.shape)} with strides {vector.stride()}"
            )
    if weight is not None and bias is not None and weight.shape != bias.shape:
        raise ValueError(
            f"weight and bias must be of one shape, not {list(weight.shape)} and {list(bias.shape)}"
        )
    for name, rows in (("x", x), ("residual", residual), ("out", out)):
        if rows is not None and (
            rows.dtype != x.dtype or rows.shape != x.shape or rows.stride(-1) != 1
        ):
            raise ValueError(
                f"{name} must be {x.dtype} {list(x.shape)} like x with adjacent numbers, not "
                f"{rows.dtype} {list(rows.shape)} with strides {rows.stride()}"
            )


@triton.jit
def _sum_with_residual(x, residual, x_offsets, residual_offsets, mask, HAS_RESIDUAL: tl.constexpr):
    """Return the numbers to norm in float32; with a residual, store them as the new residual."""
    numbers = tl.load(x + x_offsets, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        numbers += tl.load(residual + residual_offsets, mask=mask, other=0.0).to(tl.float32)
        rounded = numbers.to(residual.dtype.element_ty)
        tl.store(residual + residual_offsets, rounded, mask=mask)
        numbers = rounded.to(tl.float32)
    return numbers


@triton.jit
def _vector(
    vector, head, columns, WIDTH: tl.constexpr, WEIGHT_HEAD: tl.constexpr, IS_GIVEN: tl.constexpr
):
    """The columns of a weight or bias, of all heads or of these; nothing useful if not given."""
    numbers = columns
    if IS_GIVEN:
        places = columns
        if WEIGHT_HEAD > 0:
            places = head * WEIGHT_HEAD + columns
        numbers = tl.load(vector + places, mask=columns < WIDTH, other=0.0)
    return numbers


@triton.jit
def _scaled(
    normed,
    weight,
    bias,
    dtype: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROUNDS_FIRST: tl.constexpr,
):
    """Apply weight and bias in float32, and round; RMSNorm rounds before, too, as in models."""
    if ROUNDS_FIRST:
        normed = normed.to(dtype).to(tl.float32)
    if HAS_WEIGHT:
        normed *= weight.to(tl.float32)
    if HAS_BIAS:
        normed += bias.to(tl.float32)
    return normed.to(dtype)


# Values that differ from step to step must not trigger specialized compilations.
@triton.jit(do_not_specialize=["num_rows"])
def _norm_held_rows(
    x,
    residual,
    weight,
    bias,
    out,
    num_rows,
    heads,
    x_token,
    x_head,
    residual_token,
    residual_head,
    out_token,
    out_head,
    eps,
    WIDTH: tl.constexpr,
    CENTERED: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WEIGHT_HEAD: tl.constexpr,
    ROUNDS_FIRST: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """ROWS whole rows per program, each in registers from load to store."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    mask = (rows < num_rows) & (columns < WIDTH)
    tokens, head = (rows // heads).to(tl.int64), (rows % heads).to(tl.int64)
    numbers = _sum_with_residual(
        x,
        residual,
        tokens * x_token + head * x_head + columns,
        tokens * residual_token + head * residual_head + columns,
        mask,
        HAS_RESIDUAL,
    )
    # Loaded before the sums: no load can be moved across their barriers.
    weights = _vector(weight, head, columns, WIDTH, WEIGHT_HEAD, HAS_WEIGHT)
    biases = _vector(bias, head, columns, WIDTH, WEIGHT_HEAD, HAS_BIAS)
    if CENTERED:
        mean = tl.sum(numbers, axis=1, keep_dims=True) / WIDTH
        numbers = tl.where(columns < WIDTH, numbers - mean, 0.0)
    mean_square = tl.sum(numbers * numbers, axis=1, keep_dims=True) / WIDTH
    normed = numbers * tl.rsqrt(mean_square + eps)
    scaled = _scaled(
        normed, weights, biases, out.dtype.element_ty, HAS_WEIGHT, HAS_BIAS, ROUNDS_FIRST
    )
    tl.store(out + tokens * out_token + head * out_head + columns, scaled, mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def _norm_wide_row(
    x,
    residual,
    weight,
    bias,
    out,
    num_rows,
    heads,
    x_token,
    x_head,
    residual_token,
    residual_head,
    out_token,
    out_head,
    eps,
    WIDTH: tl.constexpr,
    CENTERED: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WEIGHT_HEAD: tl.constexpr,
    ROUNDS_FIRST: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row per program, BLOCK columns at a time; later passes hit the cache."""
    row = tl.program_id(0)
    token, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    x += token * x_token + head * x_head
    residual += token * residual_token + head * residual_head
    out += token * out_token + head * out_head
    columns = tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, WIDTH, BLOCK):
        at = start + columns
        numbers = _sum_with_residual(x, residual, at, at, at < WIDTH, HAS_RESIDUAL)
        sums += numbers if CENTERED else numbers * numbers
    summed = x
    if HAS_RESIDUAL:
        summed = residual
        # Other threads may have stored the numbers that this one reads next.
        tl.debug_barrier()
    mean = 0.0
    if CENTERED:
        mean = tl.sum(sums) / WIDTH
        sums = tl.zeros([BLOCK], tl.float32)
        for start in range(0, WIDTH, BLOCK):
            at = start + columns
            numbers = tl.load(summed + at, mask=at < WIDTH, other=0.0).to(tl.float32)
            distances = tl.where(at < WIDTH, numbers - mean, 0.0)
            sums += distances * distances
    inverse = tl.rsqrt(tl.sum(sums) / WIDTH + eps)
    for start in range(0, WIDTH, BLOCK):
        at = start + columns
        normed = tl.load(summed + at, mask=at < WIDTH, other=0.0).to(tl.float32)
        normed = (normed - mean) * inverse
        weights = _vector(weight, head, at, WIDTH, WEIGHT_HEAD, HAS_WEIGHT)
        biases = _vector(bias, head, at, WIDTH, WEIGHT_HEAD, HAS_BIAS)
        scaled = _scaled(
            normed, weights, biases, out.dtype.element_ty, HAS_WEIGHT, HAS_BIAS, ROUNDS_FIRST
        )
        tl.store(out + at, scaled, mask=at < WIDTH)
