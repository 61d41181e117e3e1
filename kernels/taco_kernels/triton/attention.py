"""Attention over the paged KV of a mixed batch: prefills, decodes and draft trees in one call."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from taco_kernels.attention_options import AttentionOptions, BlockSparse
from taco_kernels.kv_format import EIGHT_BIT_DTYPES
from taco_kernels.triton.attention_kernel import attention_kernel
from taco_kernels.triton.attention_plan import AttentionPass, AttentionPlan, plan_attention
from taco_kernels.triton.attention_reduce import reduce_splits_kernel
from taco_kernels.triton.kv_write import check_scales

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_BLOCK_SIZES = (8, 16, 32)
_LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class TreeRows:
    """Tree attention masks: which tokens of the same step a draft token sees.

    Attributes:
        masks: int64 [num_tokens]; bit j means that the token sees its sequence's j-th token of this
            step. Its own bit is set. -1 is causal order, and the only valid mask in a sequence
            with more than 64 tokens in the step.
        positions: int32 [num_tokens], true positions (context length plus depth in the tree), used
            by windows and ALiBi.
    """

    masks: Tensor
    positions: Tensor


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """One step's sequences on the device; in a CUDA graph the tensors keep address and capacity.

    Attributes:
        query_start: int32 [num_seqs + 1], first row of each sequence; unused entries repeat the end
            of the last sequence.
        seq_lens: int32 [num_seqs], tokens in the KV after the step.
        block_tables: int32 [num_seqs, max_blocks], each row contiguous; entries past a sequence's
            end are ignored.
        num_seqs, max_query_len, max_seq_len: upper bounds.
        tree: masks of draft trees; None if every sequence is in causal order.
    """

    query_start: Tensor
    seq_lens: Tensor
    block_tables: Tensor
    num_seqs: int
    max_query_len: int
    max_seq_len: int
    tree: TreeRows | None = None


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: AttentionBatch,
    options: AttentionOptions,
    *,
    key_scale: float | Tensor = 1.0,
    value_scale: float | Tensor = 1.0,
    plan: AttentionPlan | None = None,
    workspace: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attention of each query token over its sequence's KV, including that of the step itself.

    Reference: `taco_kernels.reference.attention.paged_attention`. Nothing is read back from the
    device, and the launches depend on the batch's bounds alone. Tokens past a sequence's end are
    never read.

    Args:
        query: [num_tokens, num_heads, key_dim], float16, bfloat16 or float32; views of a fused
            projection are fine.
        key_cache: [num_blocks, block_size, num_kv_heads, key_dim], in the query's dtype or
            of 8 bits. Block sizes 8, 16, 32.
        value_cache: [num_blocks, block_size, num_kv_heads, value_dim] in the same dtype. It may be
            the beginning of key_cache's last dimension (latent attention): then both are read once.
        options: blocks wholly before a window are not read.
        key_scale, value_scale: factors on stored keys and values: of all, or of each token and head
            (float32 [num_blocks, block_size, num_kv_heads], with equal strides).
        plan: from `plan_attention`, with bounds that cover the batch; None makes one.
        workspace: float32, `plan.workspace_size` numbers or more; None allocates them.
        out: [num_tokens, num_heads, value_dim] in the query's dtype; None allocates it. Rows that
            belong to no sequence stay unchanged.

    Raises:
        ValueError: an argument has the wrong shape, dtype, strides or value.
    """
    if out is None:
        shape = (*query.shape[:-1], value_cache.shape[-1])
        out = torch.empty(shape, dtype=query.dtype, device=query.device)
    _check_tensors(query, key_cache, value_cache, out)
    check_scales(key_cache, key_scale, value_scale)
    _check_batch(batch, query)
    options.check_heads(query.shape[1])
    num_tokens, num_heads, _ = query.shape
    if num_tokens == 0 or batch.num_seqs == 0:
        return out
    if plan is None:
        plan = plan_batch(query, key_cache, value_cache, batch, options)
    if num_tokens > plan.num_tokens or batch.num_seqs > plan.num_seqs:
        raise ValueError(
            f"{num_tokens} tokens of {batch.num_seqs} sequences do not fit a plan for "
            f"{plan.num_tokens} of {plan.num_seqs}"
        )
    if workspace is None:
        workspace = torch.empty(plan.workspace_size, dtype=torch.float32, device=query.device)
    elif workspace.dtype != torch.float32 or workspace.numel() < plan.workspace_size:
        raise ValueError(
            f"workspace must be float32 [{plan.workspace_size}], not {workspace.dtype} "
            f"[{workspace.numel()}]"
        )

    # Scores are exponents of two. A cap's tanh(x) is 1 - 2 / (1 + 2 ** (2 * log2(e) * x)).
    key_scales = key_scale if isinstance(key_scale, Tensor) else None
    value_scales = value_scale if isinstance(value_scale, Tensor) else None
    scale_strides = (0, 0) if key_scales is None else key_scales.stride()[:2]
    key_factor = 1.0 if isinstance(key_scale, Tensor) else key_scale
    value_factor = 1.0 if isinstance(value_scale, Tensor) else value_scale
    score_factor, cap = options.scale * key_factor * _LOG2_E, options.cap
    if cap is not None:
        score_factor *= 2 / cap
        cap *= _LOG2_E
    log_n_factor = None if options.log_n is None else 1 / math.log2(options.log_n)
    block_size, num_kv_heads = key_cache.shape[1:3]
    dims = _dims(key_cache, value_cache)
    value_dim = value_cache.shape[3]
    sparse = options.block_sparse or BlockSparse(1, 1, 1)
    for part in plan.passes:
        tiling = part.tiling
        num_parts = part.num_rows * num_heads * part.num_splits
        partial_out, partial_lse = workspace, workspace[num_parts * value_dim :]
        num_tiles = min(part.num_tiles, batch.num_seqs) if part.is_one_tile else part.num_tiles
        attention_kernel[_grid(part, num_tiles, num_heads // plan.heads_per_tile)](
            query,
            key_cache,
            value_cache,
            out,
            partial_out,
            partial_lse,
            batch.query_start,
            batch.seq_lens,
            batch.block_tables,
            None if batch.tree is None else batch.tree.masks.view(torch.int32),
            None if batch.tree is None else batch.tree.positions,
            options.alibi,
            options.sinks,
            batch.num_seqs,
            part.min_query_len,
            part.max_query_len,
            score_factor,
            cap,
            options.window,
            log_n_factor,
            value_factor,
            key_scales,
            value_scales,
            *scale_strides,
            *query.stride()[:2],
            *key_cache.stride()[:3],
            *value_cache.stride()[1:3],
            *out.stride()[:2],
            batch.block_tables.stride(0),
            GROUP=plan.heads_per_tile,
            TILES_PER_KV_HEAD=num_heads // num_kv_heads // plan.heads_per_tile,
            **dims,
            SPARSE_BLOCK=0 if options.block_sparse is None else sparse.block_size,
            SPARSE_LOCAL=sparse.num_local_blocks,
            SPARSE_STRIDE=sparse.stride,
            SPARSE_HEAD_STEP=sparse.head_step,
            SPARSE_HEAD_OFFSET=sparse.head_offset,
            BLOCK_SIZE=block_size,
            BLOCK_M=tiling.block_m,
            BLOCK_N=max(tiling.block_n, block_size),
            TOKENS_PER_TILE=part.tokens_per_tile,
            IS_ONE_TILE=part.is_one_tile,
            IS_SPLIT=part.num_splits > 1,
            MASKS_ALL=tiling.masks_all,
            num_warps=tiling.num_warps,
            num_stages=tiling.num_stages,
        )
        if part.num_splits > 1:
            reduce_splits_kernel[(num_tiles * part.tokens_per_tile, num_heads)](
                partial_out,
                partial_lse,
                out,
                options.sinks,
                batch.query_start,
                batch.num_seqs,
                part.min_query_len,
                part.max_query_len,
                part.num_splits,
                value_factor,
                *out.stride()[:2],
                VALUE_DIM=value_dim,
                PADDED_VALUE=dims["PADDED_VALUE"],
                PADDED_SPLITS=triton.next_power_of_2(part.num_splits),
                TOKENS_PER_TILE=part.tokens_per_tile,
                IS_ONE_TILE=part.is_one_tile,
                num_warps=4,
            )
    return out


def plan_batch(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: AttentionBatch,
    options: AttentionOptions,
) -> AttentionPlan:
    """The plan that `paged_attention` makes for this batch; layers of one shape can share it."""
    num_tokens, num_heads, key_dim = query.shape
    return plan_attention(
        num_tokens=num_tokens,
        num_seqs=batch.num_seqs,
        max_query_len=min(batch.max_query_len, num_tokens),
        max_seq_len=batch.max_seq_len,
        num_heads=num_heads,
        num_kv_heads=key_cache.shape[2],
        key_dim=key_dim,
        value_dim=value_cache.shape[3],
        latent=_is_latent(key_cache, value_cache),
        kv_bytes=key_cache.itemsize,
        query_bytes=query.itemsize,
        num_sms=_num_sms(query.device),
        window=options.window,
        cap=options.cap,
    )


def _is_latent(key_cache: Tensor, value_cache: Tensor) -> bool:
    """Whether values are the beginnings of the keys' memory."""
    return (
        key_cache.data_ptr() == value_cache.data_ptr()
        and key_cache.stride() == value_cache.stride()
        and value_cache.shape[3] <= key_cache.shape[3]
    )


def _dims(key_cache: Tensor, value_cache: Tensor) -> dict[str, int | bool]:
    """The kernel's sizes of keys and values."""
    key_dim, value_dim = key_cache.shape[3], value_cache.shape[3]
    is_latent = _is_latent(key_cache, value_cache)
    main_dim = value_dim if is_latent else key_dim
    return {
        "MAIN_DIM": main_dim,
        "PADDED_MAIN": triton.next_power_of_2(main_dim),
        "REST_DIM": key_dim - main_dim,
        "PADDED_REST": max(16, triton.next_power_of_2(key_dim - main_dim)),
        "VALUE_DIM": value_dim,
        "PADDED_VALUE": triton.next_power_of_2(value_dim),
        "IS_LATENT": is_latent,
        "HAS_ONE_LAYOUT": key_cache.stride() == value_cache.stride(),
    }


def _grid(part: AttentionPass, num_tiles: int, num_groups: int) -> tuple[int, int, int]:
    if part.is_one_tile:
        return num_groups, num_tiles, part.num_splits
    return num_tiles, num_groups, part.num_splits


def _num_sms(device: torch.device) -> int:
    if device.type != "cuda":
        return 1  # the interpreter runs programs one by one
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _check_tensors(query: Tensor, key_cache: Tensor, value_cache: Tensor, out: Tensor) -> None:
    if query.dim() != 3 or query.dtype not in _DTYPES:
        raise ValueError(
            "query must be [num_tokens, num_heads, key_dim] of float16, bfloat16 or float32, not "
            f"{query.dtype} {list(query.shape)}"
        )
    out_shape = (*query.shape[:2], value_cache.shape[-1])
    if out.shape != out_shape or out.dtype != query.dtype:
        raise ValueError(
            f"out must be {query.dtype} {list(out_shape)}, not {out.dtype} {list(out.shape)}"
        )
    if key_cache.dim() != 4 or key_cache.shape[3] != query.shape[2]:
        raise ValueError(
            f"key_cache must be [num_blocks, block_size, num_kv_heads, {query.shape[2]}], not "
            f"{list(key_cache.shape)}"
        )
    if (
        value_cache.shape[:3] != key_cache.shape[:3]
        or value_cache.stride(0) != key_cache.stride(0)
        or value_cache.dtype != key_cache.dtype
    ):
        raise ValueError(
            "key_cache and value_cache must have the same blocks and heads, dtype and distance of "
            "blocks"
        )
    if key_cache.dtype not in (query.dtype, *EIGHT_BIT_DTYPES):
        raise ValueError(f"the cache must be {query.dtype} or of 8 bits, not {key_cache.dtype}")
    if key_cache.shape[1] not in _BLOCK_SIZES:
        raise ValueError(f"block_size must be one of {_BLOCK_SIZES}, not {key_cache.shape[1]}")
    if query.shape[1] % key_cache.shape[2]:
        raise ValueError(f"{query.shape[1]} heads do not share {key_cache.shape[2]} KV heads")
    if any(x.stride(-1) != 1 for x in (query, key_cache, value_cache, out)):
        raise ValueError("the numbers of a head must be adjacent")


def _check_batch(batch: AttentionBatch, query: Tensor) -> None:
    expected = [
        ("query_start", batch.query_start, torch.int32, batch.num_seqs + 1),
        ("seq_lens", batch.seq_lens, torch.int32, batch.num_seqs),
    ]
    if batch.tree is not None:
        expected += [
            ("masks", batch.tree.masks, torch.int64, query.shape[0]),
            ("positions", batch.tree.positions, torch.int32, query.shape[0]),
        ]
    for name, column, dtype, length in expected:
        if column.dtype != dtype or column.shape != (length,) or not column.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous {dtype} [{length}], not {column.dtype} "
                f"{list(column.shape)}"
            )
    tables = batch.block_tables
    if (
        tables.dtype != torch.int32
        or tables.dim() != 2
        or tables.shape[0] != batch.num_seqs
        or tables.stride(1) != 1
    ):
        raise ValueError(
            f"block_tables must be torch.int32 [{batch.num_seqs}, max_blocks] with contiguous "
            f"rows, not {tables.dtype} {list(tables.shape)}"
        )
