"""The paged attention kernel: one program computes one tile of query rows over a share of their KV.

A tile's rows are some tokens of one sequence times all query heads of one KV head, so that each key
and value is read once for all of them and tensor cores have enough rows. Softmax is computed online
(Milakov and Gimelshein 2018; Dao 2023, "FlashAttention-2"), in powers of two.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Score of an unseen token. Finite, so that rows which have seen nothing yet need no special case:
# their sums get weight 0 once a real score comes.
_UNSEEN = tl.constexpr(-1.0e30)
# A row whose highest score is below this has seen nothing.
_SEEN = tl.constexpr(-1.0e20)
_LOG2_E = tl.constexpr(1.4426950408889634)
# Maximum tokens of a sequence's step with a tree mask, one bit each; see `TreeRows`.
_MASK_BITS = tl.constexpr(64)
_FP16_MAX = tl.constexpr(65504.0)
# Less than any scale that is not 0.
_LEAST_UNIT = tl.constexpr(2.0**-120)
# Kinds of the kernel's three loops over KV tiles.
_UNMASKED_LOOP = tl.constexpr(1)


@triton.jit
def locate_tile(
    query_start, tile, num_seqs, TOKENS_PER_TILE: tl.constexpr, IS_ONE_TILE: tl.constexpr
):
    """Find a tile's sequence, the sequence's first row and length in the step, and the tile's first
    token in it, which is negative for a tile that the sequence does not need.

    Where a sequence may have several tiles, those of sequence s are numbered from
    query_start[s] // TOKENS_PER_TILE + s: enough for all, without a sum over earlier sequences. The
    tile with the last tokens comes first: it sees the most keys, and short tiles should end last.
    """
    sequence = tile
    first_tile = tile
    if not IS_ONE_TILE:
        low = 0
        high = num_seqs
        while low < high:
            middle = (low + high) // 2
            if tl.load(query_start + middle) // TOKENS_PER_TILE + middle <= tile:
                low = middle + 1
            else:
                high = middle
        sequence = low - 1
        first_tile = tl.load(query_start + sequence) // TOKENS_PER_TILE + sequence
    query_begin = tl.load(query_start + sequence)
    query_len = tl.load(query_start + sequence + 1) - query_begin
    num_tiles = (query_len + TOKENS_PER_TILE - 1) // TOKENS_PER_TILE
    first_token = (num_tiles - 1 - (tile - first_tile)) * TOKENS_PER_TILE
    return sequence, query_begin, query_len, first_token


@triton.jit(
    do_not_specialize=[
        "num_seqs",
        "min_query_len",
        "max_query_len",
        "window",
        "table_stride",
    ]
)
def attention_kernel(
    query,
    key_cache,
    value_cache,
    out,
    partial_out,
    partial_lse,
    query_start,
    seq_lens,
    block_tables,
    tree_masks,
    tree_positions,
    alibi,
    sinks,
    num_seqs,
    min_query_len,
    max_query_len,
    score_factor,
    cap,
    window,
    log_n_factor,
    value_scale,
    key_scales,
    value_scales,
    scale_block,
    scale_token,
    query_token,
    query_head,
    kv_block,
    key_token,
    key_head,
    value_token,
    value_head,
    out_token,
    out_head,
    table_stride,
    GROUP: tl.constexpr,
    TILES_PER_KV_HEAD: tl.constexpr,
    MAIN_DIM: tl.constexpr,
    PADDED_MAIN: tl.constexpr,
    REST_DIM: tl.constexpr,
    PADDED_REST: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PADDED_VALUE: tl.constexpr,
    IS_LATENT: tl.constexpr,
    HAS_ONE_LAYOUT: tl.constexpr,
    SPARSE_BLOCK: tl.constexpr,
    SPARSE_LOCAL: tl.constexpr,
    SPARSE_STRIDE: tl.constexpr,
    SPARSE_HEAD_STEP: tl.constexpr,
    SPARSE_HEAD_OFFSET: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TOKENS_PER_TILE: tl.constexpr,
    IS_ONE_TILE: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    MASKS_ALL: tl.constexpr,
):
    """Kernel of `taco_kernels.triton.attention.paged_attention`, which describes shared arguments.

    query_token, ... table_stride are strides. score_factor turns products into exponents of
    two; with a cap (also in exponents of two), into the exponent of its tanh. log_n_factor is
    1 / log2(log_n). key_scales and value_scales: of the cache's tokens. tree_masks are the low and
    high halves of the masks, [num_tokens, 2]. Arguments that are None are compiled away, and so is
    block-sparse attention with SPARSE_BLOCK 0.

    A tile has GROUP query heads; TILES_PER_KV_HEAD tiles share one KV head. A key is read as
    MAIN_DIM numbers and then REST_DIM more. With IS_LATENT the first are the value too: MAIN_DIM is
    VALUE_DIM. HAS_ONE_LAYOUT: keys and values have the same strides.

    Grid: with IS_ONE_TILE (groups of heads, tiles, splits), so that programs that run together read
    the same blocks; else (tiles, groups of heads, splits), so that they read the same keys.
    """
    if IS_ONE_TILE:
        head_group = tl.program_id(0)
        tile = tl.program_id(1)
        num_heads = tl.num_programs(0) * GROUP
    else:
        tile = tl.program_id(0)
        head_group = tl.program_id(1)
        num_heads = tl.num_programs(1) * GROUP
    kv_head = (head_group // TILES_PER_KV_HEAD).to(tl.int64)
    split = tl.program_id(2)
    num_splits = tl.num_programs(2)

    sequence, query_begin, query_len, first_token = locate_tile(
        query_start, tile, num_seqs, TOKENS_PER_TILE, IS_ONE_TILE
    )
    seq_len = tl.load(seq_lens + sequence)
    if (query_len < min_query_len) | (query_len > max_query_len) | (first_token < 0):
        return

    context_len = seq_len - query_len
    first_row = (query_begin + first_token).to(tl.int64)
    rows = tl.arange(0, BLOCK_M)
    row_tokens = rows // GROUP  # from the tile's first on
    row_heads = head_group * GROUP + rows % GROUP
    is_row = (rows < TOKENS_PER_TILE * GROUP) & (first_token + row_tokens < query_len)
    row_positions = context_len + first_token + row_tokens

    # Every row sees the keys in [all_see_begin, all_see_end), if there are any, and no row sees
    # keys outside [see_begin, see_end). Positions in a tree are depths, so the bounds are wider
    # there.
    see_end = context_len + tl.minimum(first_token + TOKENS_PER_TILE, query_len)
    first_position = context_len + first_token
    last_position = see_end - 1
    all_see_end = first_position + 1
    if tree_masks is not None:
        is_tree = query_len <= _MASK_BITS
        see_end = tl.where(is_tree, seq_len, see_end)
        first_position = tl.where(is_tree, context_len, first_position)
        last_position = tl.where(is_tree, seq_len - 1, last_position)
        all_see_end = tl.where(is_tree, context_len, all_see_end)
        masks_at = tree_masks + 2 * first_row + 2 * row_tokens
        low_masks = tl.load(masks_at, mask=is_row, other=-1)
        high_masks = tl.load(masks_at + 1, mask=is_row, other=-1)
        row_positions = tl.load(tree_positions + first_row + row_tokens, mask=is_row, other=0)
        is_causal = (low_masks & high_masks) == -1
    see_begin = 0
    all_see_begin = 0
    if window is not None:
        see_begin = tl.maximum(first_position - window + 1, 0)
        all_see_begin = tl.maximum(last_position - window + 1, 0)

    # This program's share of the KV, in whole tiles from the first block on.
    tl.static_assert(BLOCK_N % BLOCK_SIZE == 0)
    tiles_begin = see_begin // BLOCK_SIZE * BLOCK_SIZE
    num_kv_tiles = (see_end - tiles_begin + BLOCK_N - 1) // BLOCK_N
    share = (num_kv_tiles + num_splits - 1) // num_splits * BLOCK_N
    begin = tiles_begin + split * share
    end = tl.minimum(begin + share, see_end)
    first_part = tile.to(tl.int64) * TOKENS_PER_TILE * num_heads * num_splits + split
    row_parts = (row_tokens * num_heads + row_heads) * num_splits
    if IS_SPLIT and begin >= end:
        nothing = tl.full([BLOCK_M], float("-inf"), tl.float32)
        tl.store(partial_lse + first_part + row_parts, nothing, mask=is_row)
        return

    # float8 to float16 is eight times faster than to bfloat16; both are exact, as they are of int8.
    IS_CLAMPED: tl.constexpr = (
        query.dtype.element_ty == tl.bfloat16 and key_cache.dtype.element_ty.primitive_bitwidth == 8
    )
    dims = tl.arange(0, PADDED_MAIN)
    in_main = dims < MAIN_DIM
    rows_at = query + first_row * query_token
    rows_at += (row_tokens * query_token + row_heads * query_head)[:, None]
    queries = tl.load(rows_at + dims[None, :], mask=is_row[:, None] & in_main[None, :], other=0.0)
    if IS_CLAMPED:
        queries = tl.clamp(queries.to(tl.float32), -_FP16_MAX, _FP16_MAX).to(tl.float16)
    if REST_DIM > 0:
        rest_dims = MAIN_DIM + tl.arange(0, PADDED_REST)
        in_rest = rest_dims < MAIN_DIM + REST_DIM
        rest_mask = is_row[:, None] & in_rest[None, :]
        rest_queries = tl.load(rows_at + rest_dims[None, :], mask=rest_mask, other=0.0)
        if IS_CLAMPED:
            rest_queries = tl.clamp(rest_queries.to(tl.float32), -_FP16_MAX, _FP16_MAX)
            rest_queries = rest_queries.to(tl.float16)
    value_dims = tl.arange(0, PADDED_VALUE)
    in_value = value_dims < VALUE_DIM
    out_mask = is_row[:, None] & in_value[None, :]
    if alibi is not None:
        slopes = tl.load(alibi + row_heads, mask=is_row, other=0.0) * _LOG2_E
    if log_n_factor is not None:
        lengths = tl.maximum(row_positions + 1, 1).to(tl.float32)
        growth = tl.maximum(tl.log2(lengths) * log_n_factor, 1.0)
    if SPARSE_BLOCK > 0:
        row_blocks = row_positions // SPARSE_BLOCK
        row_shifts = SPARSE_HEAD_OFFSET + row_heads * SPARSE_HEAD_STEP + 1

    # Invariant from tile to tile: a tile begins where a block does.
    columns = tl.arange(0, BLOCK_N)
    ids_at = block_tables + sequence.to(tl.int64) * table_stride + columns // BLOCK_SIZE
    places = (columns % BLOCK_SIZE).to(tl.int64)
    keys_in_block = places * key_token + kv_head * key_head
    if not HAS_ONE_LAYOUT:
        values_in_block = places * value_token + kv_head * value_head
    acc = tl.zeros([BLOCK_M, PADDED_VALUE], tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    row_max = tl.full([BLOCK_M], _UNSEEN, tl.float32)
    if value_scales is not None:
        # acc is in units of the greatest scale so far, so that weights times scales are 1 at most:
        # small ones would lose digits in float16.
        unit = _LEAST_UNIT

    # Three loops: the window's edge, the keys that all rows see, and the diagonal.
    FIRST_LOOP: tl.constexpr = 2 if MASKS_ALL or SPARSE_BLOCK else (1 if window is None else 0)
    IS_SCALED_LATE: tl.constexpr = cap is None and alibi is None
    start = begin
    for loop in tl.static_range(FIRST_LOOP, 3):
        stop = end
        if loop == 0:
            edge_tiles = (all_see_begin - tiles_begin + BLOCK_N - 1) // BLOCK_N
            stop = tl.minimum(tiles_begin + edge_tiles * BLOCK_N, end)
        if loop == _UNMASKED_LOOP:
            whole_tiles = tl.maximum(all_see_end - tiles_begin, 0) // BLOCK_N
            stop = tl.minimum(tiles_begin + whole_tiles * BLOCK_N, end)
        # Block ids are read one tile ahead, so that no load waits for another. Past the sequence's
        # end they may be anything.
        blocks = tl.load(ids_at + start // BLOCK_SIZE, mask=start + columns < see_end, other=0)
        for tile_begin in tl.range(start, stop, BLOCK_N):
            positions = tile_begin + columns
            blocks_at = blocks.to(tl.int64) * kv_block
            keys_at = (blocks_at + keys_in_block)[:, None]
            values_at = keys_at
            if not HAS_ONE_LAYOUT:
                values_at = (blocks_at + values_in_block)[:, None]
            if loop != _UNMASKED_LOOP:
                # Values past the end may be NaN, which not even a weight of zero removes.
                is_read = positions < see_end
                if window is not None:
                    is_read = is_read & (positions >= see_begin)
                if SPARSE_BLOCK > 0:
                    # Blocks that no row sees are not read.
                    key_blocks = positions // SPARSE_BLOCK
                    in_pattern = row_blocks[:, None] - key_blocks[None, :] < SPARSE_LOCAL
                    turns = (key_blocks[None, :] + row_shifts[:, None]) % SPARSE_STRIDE
                    in_pattern = in_pattern | (turns == 0)
                    any_row_sees = tl.max((in_pattern & is_row[:, None]).to(tl.int32), 0) > 0
                    is_read = is_read & (any_row_sees | (positions >= context_len))
                main_mask = is_read[:, None] & in_main[None, :]
                keys = tl.load(key_cache + keys_at + dims[None, :], mask=main_mask, other=0.0)
            elif PADDED_MAIN != MAIN_DIM:
                keys = tl.load(
                    key_cache + keys_at + dims[None, :], mask=in_main[None, :], other=0.0
                )
            else:
                keys = tl.load(key_cache + keys_at + dims[None, :])
            if IS_LATENT:
                values = keys
            elif loop != _UNMASKED_LOOP:
                value_mask = is_read[:, None] & in_value[None, :]
                values = tl.load(
                    value_cache + values_at + value_dims[None, :], mask=value_mask, other=0.0
                )
            elif PADDED_VALUE != VALUE_DIM:
                values = tl.load(
                    value_cache + values_at + value_dims[None, :],
                    mask=in_value[None, :],
                    other=0.0,
                )
            else:
                values = tl.load(value_cache + values_at + value_dims[None, :])
            if REST_DIM > 0:
                rest_read = in_rest[None, :]
                if loop != _UNMASKED_LOOP:
                    rest_read = is_read[:, None] & rest_read
                rest_keys = tl.load(
                    key_cache + keys_at + rest_dims[None, :], mask=rest_read, other=0.0
                )
            if key_scales is not None:
                scales_at = blocks.to(tl.int64) * scale_block + places * scale_token + kv_head
                if loop != _UNMASKED_LOOP:
                    row_key_scales = tl.load(key_scales + scales_at, mask=is_read, other=0.0)
                else:
                    row_key_scales = tl.load(key_scales + scales_at)
                if IS_LATENT:
                    row_value_scales = row_key_scales
                elif loop != _UNMASKED_LOOP:
                    row_value_scales = tl.load(value_scales + scales_at, mask=is_read, other=0.0)
                else:
                    row_value_scales = tl.load(value_scales + scales_at)
            next_begin = tile_begin + BLOCK_N
            blocks = tl.load(
                ids_at + next_begin // BLOCK_SIZE, mask=next_begin + columns < see_end, other=0
            )

            keys = tl.trans(keys.to(queries.dtype))
            scores = tl.dot(queries, keys, input_precision="ieee")
            if REST_DIM > 0:
                rest_keys = tl.trans(rest_keys.to(queries.dtype))
                scores = tl.dot(rest_queries, rest_keys, scores, input_precision="ieee")
            if key_scales is not None:
                scores = scores * row_key_scales[None, :]
            if log_n_factor is not None:
                scores = scores * growth[:, None]
            key_positions = positions
            if cap is not None:
                scores = cap * (1.0 - 2.0 / (1.0 + tl.exp2(scores * score_factor)))
            elif not IS_SCALED_LATE:
                scores = scores * score_factor
            if loop != _UNMASKED_LOOP and tree_masks is not None:
                in_step = positions - context_len
                is_step = (in_step >= 0) & (positions < seq_len)
                if window is not None or alibi is not None or SPARSE_BLOCK > 0:
                    depths = tl.load(tree_positions + query_begin + in_step, mask=is_step, other=0)
                    key_positions = tl.where(is_step, depths, positions)
            if alibi is not None:
                distances = key_positions[None, :] - row_positions[:, None]
                scores += slopes[:, None] * distances.to(tl.float32)
            if loop != _UNMASKED_LOOP:
                if tree_masks is None:
                    own_columns = (row_positions - tile_begin)[:, None]
                    seen = columns[None, :] <= own_columns
                    if window is not None:
                        seen = seen & (columns[None, :] > own_columns - window)
                else:
                    words = tl.where(in_step[None, :] < 32, low_masks[:, None], high_masks[:, None])
                    bits = (words >> (in_step & 31)[None, :]) & 1
                    causal = in_step[None, :] <= (first_token + row_tokens)[:, None]
                    seen = tl.where(is_causal[:, None], causal, bits != 0) & is_step[None, :]
                    seen = seen | (in_step < 0)[None, :]
                    if window is not None:
                        window_begins = row_positions - window
                        seen = seen & (key_positions[None, :] > window_begins[:, None])
                if SPARSE_BLOCK > 0:
                    if tree_masks is not None:
                        key_blocks = key_positions // SPARSE_BLOCK
                        in_pattern = row_blocks[:, None] - key_blocks[None, :] < SPARSE_LOCAL
                        turns = (key_blocks[None, :] + row_shifts[:, None]) % SPARSE_STRIDE
                        in_pattern = in_pattern | (turns == 0)
                    seen = seen & in_pattern
                scores = tl.where(seen, scores, _UNSEEN)

            if IS_SCALED_LATE:
                new_max = tl.maximum(row_max, tl.max(scores, 1) * score_factor)
                weights = tl.exp2(scores * score_factor - new_max[:, None])
            else:
                new_max = tl.maximum(row_max, tl.max(scores, 1))
                weights = tl.exp2(scores - new_max[:, None])
            shrink = tl.exp2(row_max - new_max)
            row_sum = row_sum * shrink + tl.sum(weights, 1)
            row_max = new_max
            if value_scales is not None:
                new_unit = tl.maximum(unit, tl.max(row_value_scales, 0))
                weights = weights * (row_value_scales / new_unit)[None, :]
                shrink = shrink * (unit / new_unit)
                unit = new_unit
            weights = weights.to(queries.dtype)
            values = values.to(queries.dtype)
            acc = tl.dot(weights, values, acc * shrink[:, None], input_precision="ieee")
        start = tl.maximum(start, stop)

    if value_scales is not None:
        acc = acc * unit
    if IS_SPLIT:
        acc = acc / row_sum[:, None]
        # Scores of NaN alone leave row_max as it was.
        has_seen = (row_max > _SEEN) | (row_sum != row_sum)
        lse = tl.where(has_seen, row_max + tl.log2(row_sum), float("-inf"))
        parts_at = partial_out + first_part * VALUE_DIM
        parts_at += row_parts[:, None] * VALUE_DIM + value_dims[None, :]
        tl.store(parts_at, acc, mask=out_mask)
        tl.store(partial_lse + first_part + row_parts, lse, mask=is_row)
    else:
        if sinks is not None:
            row_sinks = tl.load(sinks + row_heads, mask=is_row, other=0.0) * _LOG2_E
            row_sum += tl.exp2(row_sinks - row_max)
        acc = acc * (value_scale / row_sum)[:, None]
        out_at = out + first_row * out_token
        out_at += (row_tokens * out_token + row_heads * out_head)[:, None] + value_dims[None, :]
        tl.store(out_at, acc.to(out.dtype.element_ty), mask=out_mask)
