"""Paged attention on the CPU: the KV cache, writes to it, attention over it, reading it back."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from taco_kernels.cpu import structs
from taco_kernels.library import CpuKernels
from taco_kernels.native.memory import ALIGNMENT, allocate

PANEL = 16  # tokens of a key panel, dims of a value panel
_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}


@dataclass(frozen=True, slots=True)
class PagedKV:
    """Keys and values of all layers in blocks, laid out as csrc/attention/kv_cache.h says.

    Attributes:
        memory: uint8 [num_blocks, bytes of a block], aligned to 64 bytes.
        dtype: float32, bfloat16, or int8 with a float32 scale per token and head.
        block_size: tokens per block, a multiple of 16.
    """

    memory: Tensor
    dtype: torch.dtype
    block_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise ValueError(f"a KV cache is float32, bfloat16 or int8, not {self.dtype}")
        if self.block_size <= 0 or self.block_size % PANEL:
            raise ValueError(f"block_size must be a multiple of {PANEL}, not {self.block_size}")
        _check(self.memory, "memory", torch.uint8, 2)
        if self.memory.shape[1] != self.bytes_per_block():
            raise ValueError(
                f"memory must have {self.bytes_per_block()} bytes per block, "
                f"not {self.memory.shape[1]}"
            )
        if self.memory.data_ptr() % ALIGNMENT:
            raise ValueError(f"memory must be aligned to {ALIGNMENT} bytes")

    @classmethod
    def allocate(
        cls,
        num_blocks: int,
        dtype: torch.dtype,
        block_size: int,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
    ) -> PagedKV:
        """Allocates a cache without writing to it: untouched pages take no memory."""
        shape = (block_size, num_layers, num_kv_heads, head_dim)
        size = block_bytes(dtype, *shape)
        return cls(allocate(num_blocks * size).view(num_blocks, size), dtype, *shape)

    def bytes_per_block(self) -> int:
        return block_bytes(
            self.dtype, self.block_size, self.num_layers, self.num_kv_heads, self.head_dim
        )

    def struct(self) -> structs.KVCache:
        return structs.KVCache(
            _DTYPES[self.dtype],
            self.memory.data_ptr(),
            self.memory.shape[0],
            self.block_size,
            self.num_layers,
            self.num_kv_heads,
            self.head_dim,
        )

    def read(self, layer: int, block_table: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a sequence's first tokens.

        Args:
            block_table: integers, at least as many as the blocks of num_tokens.

        Returns:
            Two float32 tensors [num_tokens, num_kv_heads, head_dim]; int8 is dequantized.
        """
        blocks = self.memory[block_table[: -(-num_tokens // self.block_size)].long()]
        layer_bytes = self.bytes_per_block() // self.num_layers
        data = blocks[:, layer * layer_bytes : (layer + 1) * layer_bytes]
        padded_dim, heads, size = _padded(self.head_dim), self.num_kv_heads, self.block_size
        group = 1 if self.dtype == torch.float32 else 2
        item_bytes = self.dtype.itemsize
        num_bytes = heads * size * padded_dim * item_bytes

        def items(start: int, stop: int, dtype: torch.dtype) -> Tensor:
            return data[:, start:stop].contiguous().view(dtype).float()

        # [block, head, panel, dim / group, token, group] -> [block, panel, token, head, dim]
        keys = items(0, num_bytes, self.dtype)
        keys = keys.view(-1, heads, size // PANEL, padded_dim // group, PANEL, group)
        keys = keys.permute(0, 2, 4, 1, 3, 5).reshape(-1, heads, padded_dim)
        # [block, head, panel, token / group, dim, group] -> [block, token, head, panel, dim]
        values = items(num_bytes, 2 * num_bytes, self.dtype)
        values = values.view(-1, heads, padded_dim // PANEL, size // group, PANEL, group)
        values = values.permute(0, 3, 5, 1, 2, 4).reshape(-1, heads, padded_dim)
        if self.dtype == torch.int8:
            scales = items(2 * num_bytes, layer_bytes, torch.float32)
            scales = scales.view(-1, 2, heads, size).permute(1, 0, 3, 2).reshape(2, -1, heads, 1)
            keys, values = keys * scales[0], values * scales[1]
        return keys[:num_tokens, :, : self.head_dim], values[:num_tokens, :, : self.head_dim]


def block_bytes(
    dtype: torch.dtype, block_size: int, num_layers: int, num_kv_heads: int, head_dim: int
) -> int:
    """Bytes of one block: `block_size` tokens of all layers."""
    items = 2 * num_kv_heads * block_size * _padded(head_dim)
    scales = 2 * num_kv_heads * block_size if dtype == torch.int8 else 0
    return num_layers * (items * dtype.itemsize + scales * torch.float32.itemsize)


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """The sequences of a step, all int32, as AttentionMetadata in the worker.

    Attributes:
        query_start_loc: [num_seqs + 1], first token of each sequence in the step.
        seq_lens: [num_seqs], tokens in the KV after the step.
        block_tables: [num_seqs, max_blocks]; entries past a sequence's end are not read.
    """

    query_start_loc: Tensor
    seq_lens: Tensor
    block_tables: Tensor

    def __post_init__(self) -> None:
        _check(self.query_start_loc, "query_start_loc", torch.int32, 1)
        _check(self.seq_lens, "seq_lens", torch.int32, 1)
        _check(self.block_tables, "block_tables", torch.int32, 2)
        num_seqs = len(self.seq_lens)
        if len(self.query_start_loc) != num_seqs + 1 or len(self.block_tables) != num_seqs:
            raise ValueError(
                f"{num_seqs} seq_lens go with {num_seqs + 1} query_start_loc and {num_seqs} "
                f"block tables, not {len(self.query_start_loc)} and {len(self.block_tables)}"
            )

    @property
    def num_tokens(self) -> int:
        return int(self.query_start_loc[-1])

    def struct(self) -> structs.Batch:
        return structs.Batch(
            self.num_tokens,
            len(self.seq_lens),
            self.query_start_loc.data_ptr(),
            self.seq_lens.data_ptr(),
            self.block_tables.data_ptr(),
            self.block_tables.shape[1],
        )


def write_kv(
    kernels: CpuKernels, cache: PagedKV, batch: PagedBatch, layer: int, key: Tensor, value: Tensor
) -> None:
    """Stores the step's keys and values, float32 [num_tokens, num_kv_heads, head_dim] each."""
    shape = (batch.num_tokens, cache.num_kv_heads, cache.head_dim)
    _check_layer(cache, layer)
    _check_shape(key, "key", shape)
    _check_shape(value, "value", shape)
    rows = structs.KeyValueRows(key.data_ptr(), value.data_ptr(), shape[1] * shape[2])
    kernels.lib.taco_write_kv(
        kernels.pool,
        ctypes.byref(cache.struct()),
        ctypes.byref(batch.struct()),
        layer,
        ctypes.byref(rows),
    )


@dataclass(frozen=True, slots=True)
class SlotCopies:
    """Copies of tokens' KV between slots (block * block_size + offset). No target is also a source.

    Attributes:
        sources, targets: contiguous int64 [count].
    """

    sources: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        for slots in (self.sources, self.targets):
            if slots.dtype != np.int64 or not slots.flags.c_contiguous:
                raise ValueError(f"slots must be contiguous int64, not {slots.dtype}")
        if self.sources.shape != self.targets.shape:
            raise ValueError(f"{self.sources.size} sources for {self.targets.size} targets")

    def struct(self) -> structs.KVCopies:
        """Valid while this object lives."""
        return structs.KVCopies(
            self.sources.size, self.sources.ctypes.data, self.targets.ctypes.data
        )


def append_kv(kernels: CpuKernels, cache: PagedKV, copies: SlotCopies) -> None:
    """Copies tokens to the ends of their sequences, in all layers.

    The targets of each sequence are in order. As in write_kv, the first token of a group of sixteen
    zeroes the values of the others.
    """
    kernels.lib.taco_append_kv(
        kernels.pool, ctypes.byref(cache.struct()), ctypes.byref(copies.struct())
    )


class AttentionCall:
    """Causal attention of a step's queries over one layer of a cache that already holds their KV.

    Each call fills `out` from the current contents of the tensors passed to the constructor.

    Attributes:
        out: float32 [num_tokens, num_heads, head_dim].
    """

    def __init__(
        self,
        kernels: CpuKernels,
        query: Tensor,
        cache: PagedKV,
        batch: PagedBatch,
        layer: int,
        scale: float,
        *,
        sliding_window: int | None = None,
        soft_cap: float | None = None,
        alibi_slopes: Tensor | None = None,
    ) -> None:
        """Arguments as for `paged_attention`."""
        _check_layer(cache, layer)
        num_heads = query.shape[1] if query.dim() == 3 else 0
        _check_shape(query, "query", (batch.num_tokens, num_heads, cache.head_dim))
        if num_heads == 0 or num_heads % cache.num_kv_heads:
            raise ValueError(f"{num_heads} heads are no multiple of {cache.num_kv_heads} KV heads")
        if alibi_slopes is not None:
            _check_shape(alibi_slopes, "alibi_slopes", (num_heads,))
        self.out = torch.empty_like(query)
        self._kernels = kernels
        self._struct = structs.Attention(
            cache=cache.struct(),
            batch=batch.struct(),
            layer=layer,
            num_heads=num_heads,
            scale=scale,
            sliding_window=sliding_window or 0,
            soft_cap=soft_cap or 0,
            alibi_slopes=None if alibi_slopes is None else alibi_slopes.data_ptr(),
            queries=query.data_ptr(),
            query_stride=num_heads * cache.head_dim,
            out=self.out.data_ptr(),
            out_stride=num_heads * cache.head_dim,
            out_is_operand=False,
        )
        num_bytes = kernels.lib.taco_attention_workspace(
            kernels.pool, ctypes.byref(self._struct), kernels.num_threads
        )
        workspace = allocate(num_bytes)
        self._struct.workspace = workspace.data_ptr()
        self._kept = (query, cache, batch, alibi_slopes, workspace)  # the struct points into them

    def __call__(self) -> Tensor:
        self._kernels.lib.taco_attend(self._kernels.pool, ctypes.byref(self._struct))
        return self.out


def paged_attention(
    kernels: CpuKernels,
    query: Tensor,
    cache: PagedKV,
    batch: PagedBatch,
    layer: int,
    scale: float,
    *,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    alibi_slopes: Tensor | None = None,
) -> Tensor:
    """Causal attention of the step's queries over the cache, which already holds their own KV.

    Args:
        query: float32 [num_tokens, num_heads, head_dim].
        scale: positive factor on query-key products.
        sliding_window: number of tokens that a token sees, including itself; None: all.
        soft_cap: scores become soft_cap * tanh(score / soft_cap).
        alibi_slopes: float32 [num_heads]; slope * (key position - query position) is added.

    Returns:
        float32 [num_tokens, num_heads, head_dim].

    Raises:
        ValueError: a tensor has the wrong shape or type.
    """
    call = AttentionCall(
        kernels,
        query,
        cache,
        batch,
        layer,
        scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        alibi_slopes=alibi_slopes,
    )
    return call()


def _padded(head_dim: int) -> int:
    return -(-head_dim // PANEL) * PANEL


def _check_layer(cache: PagedKV, layer: int) -> None:
    if not 0 <= layer < cache.num_layers:
        raise ValueError(f"layer must be 0 to {cache.num_layers - 1}, not {layer}")


def _check_shape(tensor: Tensor, name: str, shape: tuple[int, ...]) -> None:
    _check(tensor, name, torch.float32, len(shape))
    if tensor.shape != shape:
        raise ValueError(f"{name} must be {list(shape)}, not {list(tensor.shape)}")


def _check(tensor: Tensor, name: str, dtype: torch.dtype, num_dims: int) -> None:
    if tensor.dtype != dtype or tensor.dim() != num_dims:
        raise ValueError(
            f"{name} must be {dtype} with {num_dims} dimensions, "
            f"not {tensor.dtype} with {tensor.dim()}"
        )
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError(f"{name} must be contiguous on the CPU")
