"""Paged attention on the CPU."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from taco_kernels.attention_options import AttentionOptions
from taco_kernels.cpu import structs
from taco_kernels.cpu.kv_cache import PANEL, PagedBatch, PagedKV, check_entry, check_shape
from taco_kernels.library import CpuKernels
from taco_kernels.native.memory import allocate


class AttentionCall:
    """Causal attention of a step's queries over one entry of a cache that already holds their KV.

    Each call fills `out` from the current contents of the tensors passed to the constructor.

    Attributes:
        out: float32 [num_tokens, num_heads, value_dim].
    """

    def __init__(
        self,
        kernels: CpuKernels,
        query: Tensor,
        cache: PagedKV,
        batch: PagedBatch,
        entry: int,
        options: AttentionOptions,
    ) -> None:
        """Arguments as for `paged_attention`."""
        check_entry(cache, entry)
        shape = cache.entries[entry]
        num_heads = query.shape[1] if query.dim() == 3 else 0
        check_shape(query, "query", (batch.num_tokens, num_heads, shape.key_dim))
        if num_heads == 0 or num_heads % shape.num_heads:
            raise ValueError(f"{num_heads} heads are no multiple of {shape.num_heads} KV heads")
        options.check_heads(num_heads)
        self.out = torch.empty(batch.num_tokens, num_heads, shape.value_dim)
        self._kernels = kernels
        self._struct = attention_struct(entry, num_heads, options)
        self._struct.cache, self._struct.batch = cache.struct(), batch.struct()
        self._struct.queries = query.data_ptr()
        self._struct.query_stride = num_heads * shape.key_dim
        self._struct.out = self.out.data_ptr()
        self._struct.out_stride = num_heads * shape.value_dim
        num_bytes = kernels.lib.taco_attention_workspace(kernels.pool, ctypes.byref(self._struct))
        workspace = allocate(num_bytes)
        self._struct.workspace = workspace.data_ptr()
        self._kept = (query, cache, batch, options, workspace)  # the struct points into them

    def __call__(self) -> Tensor:
        self._kernels.lib.taco_attend(self._kernels.pool, ctypes.byref(self._struct))
        return self.out


def paged_attention(
    kernels: CpuKernels,
    query: Tensor,
    cache: PagedKV,
    batch: PagedBatch,
    entry: int,
    options: AttentionOptions,
) -> Tensor:
    """Causal attention of the step's queries over the cache, which already holds their own KV.

    Args:
        query: float32 [num_tokens, num_heads, key_dim].
        entry: index of the cache's entry.

    Returns:
        float32 [num_tokens, num_heads, value_dim].

    Raises:
        ValueError: a tensor has the wrong shape or type, or the kernels lack an option.
    """
    return AttentionCall(kernels, query, cache, batch, entry, options)()


def attention_struct(entry: int, num_heads: int, options: AttentionOptions) -> structs.Attention:
    """A layer's attention without a step; it points into `options`."""
    return structs.Attention(
        entry=entry,
        num_heads=num_heads,
        scale=options.scale,
        window=options.window or 0,
        cap=options.cap or 0,
        alibi=None if options.alibi is None else options.alibi.data_ptr(),
        sinks=None if options.sinks is None else options.sinks.data_ptr(),
        log_n=options.log_n or 0,
        block_sparse=_block_sparse_struct(options),
    )


def _block_sparse_struct(options: AttentionOptions) -> structs.BlockSparse:
    """Raises ValueError if the kernels do not support the pattern."""
    sparse = options.block_sparse
    if sparse is None:
        return structs.BlockSparse()
    if sparse.block_size % PANEL:
        raise ValueError(
            f"the CPU kernels need blocks of a multiple of {PANEL} tokens in block-sparse "
            f"attention, not {sparse.block_size}"
        )
    return structs.BlockSparse(
        sparse.block_size,
        sparse.num_local_blocks,
        sparse.stride,
        sparse.head_step,
        sparse.head_offset,
    )
