"""Inputs and buffers of one step's ops in torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from taco_worker.attention.kv_cache import KVCache
from taco_worker.attention.metadata import AttentionMetadata
from taco_worker.layers.sequence_states import SequenceStates, StateMemory
from taco_worker.models.plan.slices import Slice


class RopeAngles(NamedTuple):
    """Inputs of a rotation besides the heads: see `LayerOps.rotate`."""

    positions: Tensor
    cos_sin: Tensor
    sections: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepTokens:
    """The tokens of a step, and the places of their KV.

    Attributes:
        token_ids, positions: integers [num_tokens].
        columns: values of the op Input, [num_tokens, columns]; None: the plan has no such op.
        cos_sin: rope tables by name, float32 [max_positions, rotary_dim].
        sections: of each rope table, see `RotaryConfig`.
        rope_positions: integers [axes, num_tokens], for tables with sections; None: all axes have a
            token's position.
        embeddings: int64 [num_rows], tokens whose embeddings are given, and these embeddings
            [num_rows, embedding_size].
        adapter_ids: integers [num_tokens], negative: none; None: no token has an adapter.
        state_memory, states: recurrent states, and those of the step; None: the plan has none.
    """

    token_ids: Tensor
    positions: Tensor
    cos_sin: Mapping[str, Tensor]
    sections: Mapping[str, tuple[int, ...]]
    kv_cache: KVCache
    metadata: AttentionMetadata
    rope_positions: Tensor | None = None
    embeddings: tuple[Tensor, Tensor] | None = None
    columns: Tensor | None = None
    adapter_ids: Tensor | None = None
    state_memory: StateMemory | None = None
    states: SequenceStates | None = None

    def entry_states(self, entry: int) -> tuple[Tensor, SequenceStates]:
        """The memory of one op's states, and which of them the step reads and writes."""
        assert self.state_memory is not None
        assert self.states is not None
        return self.state_memory.entries[entry], self.states

    def angles(self, table: str) -> RopeAngles:
        sections = self.sections[table]
        if not sections or self.rope_positions is None:
            return RopeAngles(self.positions, self.cos_sin[table], ())
        return RopeAngles(self.rope_positions, self.cos_sin[table], sections)


class StepBuffers:
    """The buffers of a step by name, [num_tokens, columns], as ops have written them."""

    def __init__(self, widths: Mapping[str, int], buffers: dict[str, Tensor] | None = None) -> None:
        """`widths`: columns of the buffers that are written part by part."""
        self._widths = widths
        self._buffers = buffers or {}

    def read(self, part: Slice) -> Tensor:
        """[num_tokens, part.size], a view."""
        buffer = self._buffers[part.buffer]
        if part.start == 0 and part.size == buffer.shape[1]:
            return buffer
        return buffer[:, part.start : part.start + part.size]

    def heads(self, part: Slice, head_dim: int) -> Tensor:
        """[num_tokens, num_heads, head_dim], a view."""
        return self.read(part).unflatten(-1, (-1, head_dim))

    def read_heads(self, part: Slice, num_heads: int, stride: int, size: int) -> Tensor:
        """[num_tokens, num_heads, size], a view of columns that begin `stride` after another."""
        return _head_view(self.read(part), num_heads, stride, size)

    def write_heads(self, part: Slice, num_heads: int, stride: int, value: Tensor) -> None:
        """Store [num_tokens, num_heads, size] in columns that begin `stride` after another."""
        buffer = self._allocated(part.buffer, self._widths[part.buffer], value)
        columns = buffer[:, part.start : part.start + part.size]
        _head_view(columns, num_heads, stride, value.shape[2]).copy_(value)

    def write(self, part: Slice, value: Tensor) -> None:
        """Store [num_tokens, part.size]. `value` is kept unless the buffer has other parts."""
        width = self._widths.get(part.buffer)
        if width is None:
            self._buffers[part.buffer] = value
            return
        buffer = self._allocated(part.buffer, width, value)
        buffer[:, part.start : part.start + part.size] = value

    def _allocated(self, name: str, width: int, like: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape[1] != width:
            buffer = torch.empty((like.shape[0], width), dtype=like.dtype, device=like.device)
            self._buffers[name] = buffer
        return buffer


def _head_view(columns: Tensor, num_heads: int, stride: int, size: int) -> Tensor:
    shape = (columns.shape[0], num_heads, size)
    return columns.as_strided(shape, (columns.stride(0), stride, 1), columns.storage_offset())
