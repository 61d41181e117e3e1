"""The paged KV cache on the CPU: its memory, writes to it, reading it back, a step's sequences."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from ctypes import Array
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from taco_kernels.cpu import structs
from taco_kernels.kv_entry import KVEntry
from taco_kernels.kv_format import KVFormat
from taco_kernels.library import CpuKernels
from taco_kernels.native.memory import ALIGNMENT, allocate

PANEL = 16  # tokens of a key panel, dims of a value panel
_DTYPES = {
    torch.float32: 0,
    torch.bfloat16: 1,
    torch.int8: 2,
    torch.float8_e4m3fn: 3,
    torch.float8_e5m2: 4,
}


@dataclass(frozen=True, slots=True)
class PagedKV:
    """Keys and values of all entries in blocks, laid out as csrc/attention/kv_cache.h says.

    Attributes:
        memory: uint8 [num_blocks, bytes of a block], aligned to 64 bytes.
        format: float32, bfloat16, int8 or float8; 8-bit numbers with their scales.
        block_size: tokens per block, a multiple of 16.
        entries: the shape of each entry.
    """

    memory: Tensor
    format: KVFormat
    block_size: int
    entries: tuple[KVEntry, ...]
    _structs: Array[structs.KVEntry] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.format.dtype not in _DTYPES:
            raise ValueError(
                "a KV cache is float32, bfloat16, int8, float8_e4m3fn or float8_e5m2, not "
                f"{self.format.dtype}"
            )
        if self.block_size <= 0 or self.block_size % PANEL:
            raise ValueError(f"block_size must be a multiple of {PANEL}, not {self.block_size}")
        check_tensor(self.memory, "memory", torch.uint8, 2)
        size = block_bytes(self.format, self.block_size, self.entries)
        if self.memory.shape[1] != size:
            raise ValueError(f"memory must have {size} bytes per block, not {self.memory.shape[1]}")
        if self.memory.data_ptr() % ALIGNMENT:
            raise ValueError(f"memory must be aligned to {ALIGNMENT} bytes")
        structures = map(self._entry_struct, range(len(self.entries)), self._offsets())
        array = (structs.KVEntry * len(self.entries))(*structures)
        object.__setattr__(self, "_structs", array)

    @classmethod
    def allocate(
        cls, num_blocks: int, kv_format: KVFormat, block_size: int, entries: Sequence[KVEntry]
    ) -> PagedKV:
        """Allocates a cache without writing to it: untouched pages take no memory."""
        size = block_bytes(kv_format, block_size, entries)
        memory = allocate(num_blocks * size).view(num_blocks, size)
        return cls(memory, kv_format, block_size, tuple(entries))

    def struct(self) -> structs.KVCache:
        """Valid while this object lives."""
        return structs.KVCache(
            _DTYPES[self.format.dtype],
            self.memory.data_ptr(),
            self.memory.shape[0],
            self.block_size,
            self.memory.shape[1],
            len(self.entries),
            ctypes.addressof(self._structs),
        )

    def read(self, entry: int, block_table: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a sequence's first tokens.

        Args:
            block_table: integers, at least as many as the blocks of num_tokens.

        Returns:
            Float32 tensors [num_tokens, num_heads, key_dim] and [num_tokens, num_heads, value_dim];
            8-bit numbers are multiplied by their scales.
        """
        shape, size, dtype = self.entries[entry], self.block_size, self.format.dtype
        heads, key_dim, value_dim = (
            shape.num_heads,
            _padded(shape.key_dim),
            _padded(shape.value_dim),
        )
        blocks = self.memory[block_table[: -(-num_tokens // size)].long()]
        data = blocks[:, self._offsets()[entry] :]
        group = 1 if dtype == torch.float32 else 2
        end = 0

        def take(count: int, dtype: torch.dtype) -> Tensor:
            nonlocal end
            begin, end = end, end + count * dtype.itemsize
            return data[:, begin:end].contiguous().view(dtype).float()

        # [block, head, panel, dim / group, token, group] -> [block, panel, token, head, dim]
        keys = take(heads * size * key_dim, dtype)
        keys = keys.view(-1, heads, size // PANEL, key_dim // group, PANEL, group)
        keys = keys.permute(0, 2, 4, 1, 3, 5).reshape(-1, heads, key_dim)
        if shape.latent:
            values = keys
        else:
            # [block, head, panel, token / group, dim, group] -> [block, token, head, panel, dim]
            values = take(heads * size * value_dim, dtype)
            values = values.view(-1, heads, value_dim // PANEL, size // group, PANEL, group)
            values = values.permute(0, 3, 5, 1, 2, 4).reshape(-1, heads, value_dim)
        if (fixed := self.format.of_entry(entry)) is not None:
            keys, values = keys * fixed.key, values * fixed.value
        elif self.format.has_token_scales:
            count = 1 if shape.latent else 2
            scales = take(count * heads * size, torch.float32).view(-1, count, heads, size)
            scales = scales.permute(1, 0, 3, 2).reshape(count, -1, heads, 1)
            keys, values = keys * scales[0], values * scales[-1]
        return keys[:num_tokens, :, : shape.key_dim], values[:num_tokens, :, : shape.value_dim]

    def _entry_struct(self, index: int, offset: int) -> structs.KVEntry:
        shape, scales = self.entries[index], self.format.of_entry(index)
        return structs.KVEntry(
            shape.num_heads,
            shape.key_dim,
            shape.value_dim,
            offset,
            shape.latent,
            0.0 if scales is None else scales.key,
            0.0 if scales is None else scales.value,
        )

    def _offsets(self) -> list[int]:
        """Bytes from a block's beginning to each entry, and to its end."""
        sizes = _entry_bytes(self.format, self.block_size, self.entries)
        return list(accumulate(sizes, initial=0))


def block_bytes(kv_format: KVFormat, block_size: int, entries: Iterable[KVEntry]) -> int:
    """Bytes of one block: `block_size` tokens of all entries."""
    return sum(_entry_bytes(kv_format, block_size, entries))


def _entry_bytes(kv_format: KVFormat, block_size: int, entries: Iterable[KVEntry]) -> Iterator[int]:
    item_bytes = kv_format.dtype.itemsize
    scale_bytes = torch.float32.itemsize if kv_format.has_token_scales else 0
    for entry in entries:
        dims = (entry.key_dim,) if entry.latent else (entry.key_dim, entry.value_dim)
        token_bytes = sum(_padded(dim) * item_bytes + scale_bytes for dim in dims)
        yield entry.num_heads * block_size * token_bytes


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
        check_tensor(self.query_start_loc, "query_start_loc", torch.int32, 1)
        check_tensor(self.seq_lens, "seq_lens", torch.int32, 1)
        check_tensor(self.block_tables, "block_tables", torch.int32, 2)
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
    kernels: CpuKernels,
    cache: PagedKV,
    batch: PagedBatch,
    entry: int,
    key: Tensor,
    value: Tensor | None,
) -> None:
    """Stores the step's keys and values in one entry.

    Args:
        key: float32 [num_tokens, num_heads, key_dim].
        value: float32 [num_tokens, num_heads, value_dim]; None for a latent entry.
    """
    check_entry(cache, entry)
    shape = cache.entries[entry]
    check_shape(key, "key", (batch.num_tokens, shape.num_heads, shape.key_dim))
    if (value is None) != shape.latent:
        raise ValueError("a latent entry, and no other, is written without values")
    if value is not None:
        check_shape(value, "value", (batch.num_tokens, shape.num_heads, shape.value_dim))
    rows = structs.KeyValueRows(
        key.data_ptr(),
        shape.num_heads * shape.key_dim,
        None if value is None else value.data_ptr(),
        shape.num_heads * shape.value_dim,
    )
    kernels.lib.taco_write_kv(
        kernels.pool,
        ctypes.byref(cache.struct()),
        ctypes.byref(batch.struct()),
        entry,
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
    """Copies tokens to the ends of their sequences, in all entries.

    The targets of each sequence are in order. As in write_kv, the first token of a group of sixteen
    zeroes the values of the others.
    """
    kernels.lib.taco_append_kv(
        kernels.pool, ctypes.byref(cache.struct()), ctypes.byref(copies.struct())
    )


def _padded(dim: int) -> int:
    return -(-dim // PANEL) * PANEL


def check_entry(cache: PagedKV, entry: int) -> None:
    if not 0 <= entry < len(cache.entries):
        raise ValueError(f"entry must be 0 to {len(cache.entries) - 1}, not {entry}")


def check_shape(tensor: Tensor, name: str, shape: tuple[int, ...]) -> None:
    check_tensor(tensor, name, torch.float32, len(shape))
    if tensor.shape != shape:
        raise ValueError(f"{name} must be {list(shape)}, not {list(tensor.shape)}")


def check_tensor(tensor: Tensor, name: str, dtype: torch.dtype, num_dims: int) -> None:
    if tensor.dtype != dtype or tensor.dim() != num_dims:
        raise ValueError(
            f"{name} must be {dtype} with {num_dims} dimensions, "
            f"not {tensor.dtype} with {tensor.dim()}"
        )
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError(f"{name} must be contiguous on the CPU")
