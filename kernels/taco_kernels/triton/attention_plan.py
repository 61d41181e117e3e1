"""Plans attention launches: tiles, grids and KV splits, from upper bounds known on the host.

A plan does not contain the sequences' lengths, which the device reads itself. So its launches can
be captured in a CUDA graph and serve every batch within the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import triton

# Up to this many rows (tokens times the query heads of a KV head) one tile takes all rows of a
# sequence, and attention is bound by the speed of reading KV.
_FEW_ROWS = 64
# The smallest dimension of a tensor core's product.
_MIN_ROWS = 16
# Bytes of keys that a tile of few rows reads at a time: enough loads in flight, little waste at the
# end.
_FEW_ROWS_TILE_BYTES = 16 * 1024
# For several sequences, this many times as many programs are launched as run at once.
_WAVES = 2
_MIN_TILES_PER_SPLIT = 2
MAX_SPLITS = 64
# Maximum query heads of a tile of latent attention, whose sums are 512 numbers a row.
_LATENT_HEADS = 16


@dataclass(frozen=True, slots=True)
class Tiling:
    """Compile-time parameters of one variant of the kernel.

    Attributes:
        block_m: rows of a tile, tokens times the query heads of a KV head.
        block_n: KV tokens per loop iteration.
        num_warps: warps per program.
        num_stages: Triton's pipeline stages: loads of KV in flight.
        programs_per_sm: programs that fit on a multiprocessor.
        masks_all: whether one loop masks every tile. Otherwise there is a loop without masks
            and one with them, each with its own pipeline start: faster for many rows only.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    programs_per_sm: int
    masks_all: bool


@dataclass(frozen=True, slots=True)
class AttentionPass:
    """One launch, for the sequences whose number of query tokens is within bounds.

    Attributes:
        min_query_len, max_query_len: the bounds, inclusive.
        tokens_per_tile: query tokens per tile.
        num_tiles: tiles of the grid.
        is_one_tile: each sequence has at most one tile, with the sequence's number.
        num_splits: programs that share a tile's KV; with more than one, a second kernel combines
            their results.
    """

    tiling: Tiling
    min_query_len: int
    max_query_len: int
    tokens_per_tile: int
    num_tiles: int
    is_one_tile: bool
    num_splits: int

    @property
    def num_rows(self) -> int:
        """Capacity of the grid in query tokens."""
        return self.num_tiles * self.tokens_per_tile


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The launches of a step's attention, in order, and the workspace that they need.

    Attributes:
        num_tokens, num_seqs: capacity of the batches that the plan serves.
        heads_per_tile: query heads of a tile's rows, which share a KV head.
        workspace_size: float32 numbers for partial results of splits.
    """

    passes: tuple[AttentionPass, ...]
    num_tokens: int
    num_seqs: int
    heads_per_tile: int
    workspace_size: int


def few_rows_tiling(rows: int, head_dim: int, kv_bytes: int) -> Tiling:
    """Tiling for decode and verification: memory-bound, so few rows and many bytes in flight.

    Args:
        rows: rows that a tile must hold, without padding.
        kv_bytes: bytes of one number in the cache.
    """
    token_bytes = triton.next_power_of_2(head_dim) * kv_bytes
    block_n = max(32, min(64, _FEW_ROWS_TILE_BYTES // token_bytes))
    is_small = block_n * token_bytes <= _FEW_ROWS_TILE_BYTES // 2
    return Tiling(
        block_m=max(_MIN_ROWS, triton.next_power_of_2(rows)),
        block_n=block_n,
        num_warps=4,
        num_stages=4 if is_small else 3,
        programs_per_sm=3 if block_n * token_bytes <= _FEW_ROWS_TILE_BYTES else 2,
        masks_all=True,
    )


def many_rows_tiling(
    group: int, head_dim: int, kv_bytes: int, query_bytes: int, is_plain: bool
) -> Tiling:
    """Tiling for prefill: compute-bound, so the largest products that fit in registers.

    Wider tiles take fewer instructions per token, but a window, a cap and conversions need
    registers
    too. is_plain: neither window nor cap.
    """
    padded = triton.next_power_of_2(head_dim)
    block_m, num_warps, num_stages = 128, 8, 3
    if query_bytes == 4:  # no tensor cores: products in full precision
        block_m, block_n, num_warps, num_stages = 32, 32, 4, 2
    elif padded <= 64:
        block_n = 128
    elif padded <= 128:
        block_n = 128 if is_plain and kv_bytes == query_bytes else 64
    elif padded <= 256:
        block_n, num_stages = 32, 2
    else:  # the sums of a wider tile, or of a second loop, would not fit in registers
        block_m, block_n, num_stages = 64, 32, 2
    return Tiling(
        block_m=max(block_m, triton.next_power_of_2(group)),
        block_n=block_n,
        num_warps=num_warps,
        num_stages=num_stages,
        programs_per_sm=1,
        masks_all=padded > 256,
    )


def plan_attention(
    *,
    num_tokens: int,
    num_seqs: int,
    max_query_len: int,
    max_seq_len: int,
    num_heads: int,
    num_kv_heads: int,
    key_dim: int,
    value_dim: int,
    kv_bytes: int,
    query_bytes: int,
    num_sms: int,
    window: int | None = None,
    cap: float | None = None,
    latent: bool = False,
    few_rows: Tiling | None = None,
    many_rows: Tiling | None = None,
    num_splits: int | None = None,
) -> AttentionPlan:
    """Tiles, grids and splits for all batches within the bounds.

    Args:
        num_tokens, num_seqs, max_query_len, max_seq_len: upper bounds.
        kv_bytes, query_bytes: bytes of one number in the cache and in the query.
        num_sms: multiprocessors of the device.
        window, cap: as in AttentionOptions.
        latent: whether a value is a part of its key, as in KVEntry.
        few_rows, many_rows, num_splits: override the choice, for measurements; a tiling's
            block_m is raised to the required rows.
    """
    group, head_dim = num_heads // num_kv_heads, max(key_dim, value_dim)
    if latent:  # wide rows of many heads: several tiles share the KV head, and its blocks in L2
        group = max(n for n in range(1, _LATENT_HEADS + 1) if group % n == 0)
    num_groups = num_heads // group
    if window is not None:
        max_seq_len = min(max_seq_len, window + max_query_len)

    def few(min_query_len: int, max_query_len: int) -> AttentionPass:
        rows = max_query_len * group
        tiling = few_rows or few_rows_tiling(rows, head_dim, kv_bytes)
        tiling = replace(tiling, block_m=max(tiling.block_m, triton.next_power_of_2(rows)))
        # A power of two if it fits, so that few variants are compiled.
        tokens_per_tile = min(triton.next_power_of_2(max_query_len), tiling.block_m // group)
        # With sequences of different lengths, splits let early finishers take more work.
        waves = _WAVES if num_seqs > 1 else 1
        splits = num_splits or _num_splits(
            tiling, waves * num_sms, num_seqs * num_groups, max_seq_len
        )
        return AttentionPass(
            tiling, min_query_len, max_query_len, tokens_per_tile, num_seqs, True, splits
        )

    def many(min_query_len: int) -> AttentionPass:
        is_plain = window is None and cap is None
        tiling = many_rows or many_rows_tiling(group, head_dim, kv_bytes, query_bytes, is_plain)
        tiling = replace(tiling, block_m=max(tiling.block_m, triton.next_power_of_2(group)))
        tokens_per_tile = tiling.block_m // group
        num_tiles = num_tokens // tokens_per_tile + num_seqs
        splits = num_splits or _num_splits(tiling, num_sms, num_tiles * num_groups, max_seq_len)
        return AttentionPass(
            tiling, min_query_len, max_query_len, tokens_per_tile, num_tiles, False, splits
        )

    if max_query_len * group <= max(_FEW_ROWS, triton.next_power_of_2(group)):
        passes: tuple[AttentionPass, ...] = (few(1, max_query_len),)
    elif num_seqs == 1:
        passes = (many(1),)
    else:
        # Decodes have their own launch: their KV is split and read without padding rows. They are
        # launched first: they are short, and prefill tiles fill the rest of the device.
        few_tokens = max(1, _MIN_ROWS // group)
        passes = (few(1, few_tokens), many(few_tokens + 1))
    split_passes = [part for part in passes if part.num_splits > 1]
    parts = max((part.num_rows * part.num_splits for part in split_passes), default=0)
    workspace_size = parts * num_heads * (value_dim + 1)
    return AttentionPlan(passes, num_tokens, num_seqs, group, workspace_size)


def _num_splits(tiling: Tiling, num_sms: int, num_programs: int, max_seq_len: int) -> int:
    """Number of programs that share a tile's KV, so that few tiles still fill the device.

    A share of the longest sequence keeps at least a few tiles.
    """
    wanted = num_sms * tiling.programs_per_sm // max(1, num_programs)
    longest = max_seq_len // (_MIN_TILES_PER_SPLIT * tiling.block_n)
    return max(1, min(wanted, longest, MAX_SPLITS))
