"""Row statistics: one pass over logits that leaves later kernels little to read.

A row is split into tiles, one program each, so that a single row keeps the whole device busy. For
each tile the result is its greatest logit and the sum of its weights; for each group of 32 tokens
the
greatest logit: 3% of the row.

Logits are compared as integers of the same order. Weights, exp((logit - max) / temperature), are
integers too, in units of 2^-42 of the greatest. Their sums are exact and independent of the order,
so that a row's result cannot depend on how the row was split.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = tl.constexpr(2048)
GROUP = tl.constexpr(32)

# The sums of 2^20 weights of 2^42 fit into 63 bits.
MAX_VOCAB_SIZE = 2**20
UNIT = tl.constexpr(2.0**42)
NO_WEIGHT = tl.constexpr(2.0**-43)
LOG2_E = tl.constexpr(1.4426950408889634)
COLDEST = tl.constexpr(1e-6)  # below it, effectively only the greatest logits have weight
FLOAT_MAX = tl.constexpr(3.4028234663852886e38)

# Keys of padding and of NaN. Keys of finite numbers lie between those of the infinities.
NO_KEY = tl.constexpr(-(2**31))
NAN_KEY = tl.constexpr(0x7FFFFFFF)
INFINITY_KEY = tl.constexpr(0x7F800000)


@dataclass(frozen=True, slots=True)
class RowStatistics:
    """Statistics of rows of logits.

    Attributes:
        tile_keys: int32 [num_rows, num_tiles], `ordered_keys` of each tile's greatest logit.
        tile_weights: int64 [num_rows, num_tiles], relative to the tile's own greatest logit.
        tile_greater: int32 [num_rows, num_tiles], number of logits greater than that of the row's
            token.
        group_keys: int32 [num_rows, num_groups], `ordered_keys` of each group's greatest logit.
    """

    tile_keys: Tensor
    tile_weights: Tensor
    tile_greater: Tensor
    group_keys: Tensor

    @property
    def num_tiles(self) -> int:
        return self.tile_keys.shape[1]

    @property
    def num_groups(self) -> int:
        return self.group_keys.shape[1]


def compute_statistics(
    logits: Tensor,
    *,
    temperature: Tensor | None = None,
    token_ids: Tensor | None = None,
    has_weights: bool = False,
    has_groups: bool = False,
) -> RowStatistics:
    """Compute the statistics in one launch. Tensors that were not requested have no columns.

    Args:
        logits: float32 [num_rows, vocab_size].
        temperature: float32 [num_rows], of the weights; None is 1.
        token_ids: int64 [num_rows], tokens whose greater logits are counted.
    """
    num_rows, vocab_size = logits.shape
    num_tiles = triton.cdiv(vocab_size, TILE.value)
    num_groups = triton.cdiv(vocab_size, GROUP.value)

    def columns(count: int, dtype: torch.dtype) -> Tensor:
        return torch.empty((num_rows, count), dtype=dtype, device=logits.device)

    statistics = RowStatistics(
        columns(num_tiles, torch.int32),
        columns(num_tiles if has_weights else 0, torch.int64),
        columns(num_tiles if token_ids is not None else 0, torch.int32),
        columns(num_groups if has_groups else 0, torch.int32),
    )
    if num_rows == 0:
        return statistics
    _statistics_kernel[(num_rows * num_tiles,)](
        logits,
        logits.stride(0),
        vocab_size,
        num_tiles,
        num_groups,
        logits if temperature is None else temperature,
        logits if token_ids is None else token_ids,
        statistics.tile_keys,
        statistics.tile_weights,
        statistics.tile_greater,
        statistics.group_keys,
        HAS_TEMPERATURE=temperature is not None,
        HAS_WEIGHTS=has_weights,
        HAS_TOKENS=token_ids is not None,
        HAS_GROUPS=has_groups,
        num_warps=4,
    )
    return statistics


def check_logits(logits: Tensor) -> None:
    """Raise ValueError unless logits are float32 rows."""
    if logits.dtype != torch.float32 or logits.dim() != 2 or logits.stride(1) != 1:
        raise ValueError(f"logits must be float32 rows, not {logits.dtype} {tuple(logits.shape)}")
    if not 0 < logits.shape[1] <= MAX_VOCAB_SIZE:
        raise ValueError(f"a row must have 1 to {MAX_VOCAB_SIZE} logits, not {logits.shape[1]}")


def check_column(name: str, column: Tensor, dtype: torch.dtype, like: Tensor, count: int) -> None:
    """Raise ValueError unless the column has `count` numbers on the device of `like`."""
    if (
        column.dtype != dtype
        or column.shape != (count,)
        or not column.is_contiguous()
        or column.device != like.device
    ):
        raise ValueError(
            f"{name} must be {dtype} [{count}] on {like.device}, not "
            f"{column.dtype} {list(column.shape)} on {column.device}"
        )


@triton.jit
def _statistics_kernel(
    logits,
    stride,
    vocab_size,
    num_tiles,
    num_groups,
    temperature,
    token_ids,
    tile_keys,
    tile_weights,
    tile_greater,
    group_keys,
    HAS_TEMPERATURE: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    HAS_TOKENS: tl.constexpr,
    HAS_GROUPS: tl.constexpr,
):
    place = tl.program_id(0)
    row = (place // num_tiles).to(tl.int64)
    tile = place % num_tiles
    row_logits = logits + row * stride
    tokens = tile_tokens(tile)
    numbers = tl.load(row_logits + tokens, mask=tokens < vocab_size, other=-float("inf"))
    keys = tl.where(tokens < vocab_size, ordered_keys(numbers), NO_KEY)
    group_tops = tl.max(keys, axis=1)
    top = tl.max(group_tops, axis=0)
    tl.store(tile_keys + place, top)
    if HAS_GROUPS:
        groups = tile * (TILE // GROUP) + tl.arange(0, TILE // GROUP)
        tl.store(group_keys + row * num_groups + groups, group_tops, mask=groups < num_groups)
    if HAS_WEIGHTS:
        row_temperature = tl.load(temperature + row) if HAS_TEMPERATURE else 1.0
        weights = fixed_weights(numbers, float_of(top), sharpness_of(row_temperature))
        tl.store(tile_weights + place, tl.sum(weights))
    if HAS_TOKENS:
        own = tl.load(row_logits + tl.load(token_ids + row))
        tl.store(tile_greater + place, tl.sum((numbers > own).to(tl.int32)))


@triton.jit
def tile_tokens(tile):
    """Token ids of a tile, [TILE / GROUP, GROUP], including those past the row's end."""
    groups = tl.arange(0, TILE // GROUP)[:, None]
    return tile * TILE + groups * GROUP + tl.arange(0, GROUP)[None, :]


@triton.jit
def ordered_keys(numbers):
    """int32 keys in the order of the numbers: both zeros are equal, NaN is greatest."""
    bits = tl.where(numbers == 0, 0.0, numbers).to(tl.int32, bitcast=True)
    keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(numbers != numbers, NAN_KEY, keys)


@triton.jit
def float_of(key):
    """The number with this key; NO_KEY gives NaN."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def is_finite(key):
    return (key < INFINITY_KEY) & (key > -INFINITY_KEY)


@triton.jit
def floor_key(greatest, temperature, min_p):
    """The least key whose weight reaches min_p; with min_p 0 the least with any weight."""
    # A device's logarithm of 1 may be slightly above 0.
    logarithm = tl.minimum(tl.log(tl.maximum(min_p, NO_WEIGHT)), 0.0)
    return ordered_keys(greatest + temperature * logarithm)


@triton.jit
def sharpness_of(temperature):
    """Factor on differences of logits before `exp2`; finite at temperature 0."""
    return 1.0 / tl.maximum(temperature, COLDEST) * LOG2_E


@triton.jit
def fixed_weights(numbers, greatest, sharpness):
    """int64 weights: UNIT for the greatest number, 0 for -inf and NaN."""
    exponents = (numbers - tl.maximum(greatest, -FLOAT_MAX)) * sharpness
    return (tl.where(exponents <= 0, tl.exp2(exponents), 0.0) * UNIT).to(tl.int64)


@triton.jit
def row_weights(tile_keys, tile_weights, greatest, sharpness):
    """The tiles' weights relative to the row's greatest number: int64, exact up to rounding."""
    exponents = (float_of(tile_keys) - greatest) * sharpness
    scales = tl.where(exponents <= 0, tl.exp2(exponents), 0.0)
    return (tile_weights.to(tl.float64) * scales.to(tl.float64)).to(tl.int64)
