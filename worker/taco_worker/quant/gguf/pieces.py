"""Finds the tensors of a model, as Hugging Face stores them, inside those of GGUF files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taco_worker.quant.gguf.blocks.block_types import BlockType
from taco_worker.quant.gguf.config.metadata import Metadata
from taco_worker.quant.gguf.config.source import num_layers
from taco_worker.quant.gguf.delta_heads import DeltaHeads
from taco_worker.quant.gguf.header import TensorInfo
from taco_worker.quant.gguf.name_table import EXPERT, NameTable, split_suffix
from taco_worker.quant.gguf.recurrent_names import DENSE_GRANITE_4
from taco_worker.quant.gguf.rows import (
    HeadsByKind,
    NeighbouringPairs,
    PartsByKey,
    RowOrder,
    TiledHeads,
)
from taco_worker.quant.gguf.tensor_names import (
    FALCON_TWO_NORMS,
    MIXTRAL,
    MOE_STATICS,
    NAME_TABLES,
    ROPE_FACTORS,
    WITHOUT_SUFFIX,
)

if TYPE_CHECKING:
    from torch import Tensor

_FUSED_EXPERTS = "ffn_gate_up_exps"
_CONVOLUTIONS = ("ssm_conv1d", "shortconv.conv")
# Of Mamba, files have them with an axis of 1, or with one of groups.
_VECTORS = ("ssm_a", "ssm_d", "ssm_norm")
_IN_EVERY_LAYER = "attn_rot_embd"  # frequencies, in files of 2023


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor in Hugging Face's format.

    Attributes:
        name: Hugging Face's, or the file's name if the architecture has no such tensor.
        info: of the file's tensor.
        expert: its index on the first axis of the file's tensor; None: it has no such axis.
        rows: start and number of its rows in the file's; None: all.
        order: of the rows in the file; None: Hugging Face's.
        shift: subtracted from the file's numbers.
        transposed: Hugging Face has the transpose.
        is_rate: Hugging Face has the logarithm of the negated numbers (of recurrences' rates).
        columns: order of the columns in the file; None: Hugging Face's. `read` restores it in
            numbers, and `ReorderedColumns` in codes.
        shape: of the numbers.
        part: of a matrix that the file has in several tensors, the file's name of this one.
    """

    name: str
    info: TensorInfo
    shape: tuple[int, ...]
    expert: int | None = None
    rows: tuple[int, int] | None = None
    order: RowOrder | None = None
    shift: float = 0.0
    transposed: bool = False
    part: str | None = None
    is_rate: bool = False
    columns: TiledHeads | None = None

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        """The file's tensors that it is made of."""
        return (self.info,)

    @property
    def block_type(self) -> BlockType | None:
        """None: it has numbers."""
        return self.info.type if isinstance(self.info.type, BlockType) else None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Of the tensor that `read` returns; rows of quantized matrices have bytes."""
        kind = self.info.type
        if isinstance(kind, BlockType):
            return (*self.shape[:-1], self.shape[-1] // kind.columns * kind.size)
        return self.shape

    @property
    def dtype(self) -> str:
        """By its name in safetensors files."""
        kind = self.info.type
        if isinstance(kind, BlockType):
            return "U8"
        return "F32" if self.shift or self.is_rate else kind.dtype

    def read(self, *stored: Tensor) -> Tensor:
        """The piece of the file's tensor, as a view where that is possible."""
        (tensor,) = stored
        part = tensor if self.expert is None else tensor[self.expert]
        if self.rows is not None:
            start, count = self.rows
            part = part[start : start + count]
        if self.order is not None:
            part = self.order.restore(part)
        if self.columns is not None and self.block_type is None:
            part = self.columns.restore(part.T).T
        if self.shift:
            part = part.float() - self.shift
        if self.is_rate:
            part = part.float()
            if not bool((part <= 0).all()):
                raise ValueError(f"tensor {self.info.name!r} has numbers that are not negative")
            part = (-part).log()
        return (part.T if self.transposed else part).reshape(self.stored_shape)


class PieceFinder:
    """Finds the pieces of the tensors of one model.

    Attributes:
        table: the architecture's names.
    """

    def __init__(self, metadata: Metadata, names: Mapping[str, TensorInfo]) -> None:
        """Raises ValueError for an architecture that is not supported."""
        self.table = _find_table(metadata, names)
        self._metadata = metadata
        metadata.largest("attention.head_count")
        self._head_dim = metadata.optional_size("attention.key_length")
        self._num_layers = num_layers(metadata)
        self._delta = DeltaHeads.read(metadata) if self.table.value_heads else None

    def pieces(self, info: TensorInfo) -> Iterator[Piece]:
        """The pieces of a tensor, none if it is part of the configuration.

        Raises:
            ValueError: the shape is not one that the architecture can have.
        """
        layer = self.table.layer_of(info.name)
        if info.name in ROPE_FACTORS or (layer is not None and layer >= self._num_layers):
            return
        base, suffix = split_suffix(info.name)
        base = base.split(".", 2)[-1] if layer is not None else base
        if base == _IN_EVERY_LAYER:
            return
        if base == "attn_qkv" and base not in self.table.modules:
            yield from self._split_qkv(info)
            return
        if base == _FUSED_EXPERTS:
            yield from self._split_experts(info)
            return
        is_by_key = self.table.value_heads == "by_key"
        if self._delta is not None and is_by_key and (parts := self._delta.parts(base)):
            yield from self._split_by_key(info, base, parts)
            return
        found = self.table.find(info.name)
        if found is None:
            yield Piece(info.name, info, info.shape)
            return
        _, module, suffix = found
        if EXPERT in module:
            _check_axes(info, 2 if suffix == ".bias" else 3)
            for expert in range(info.shape[0]):
                name = module.replace(EXPERT, str(expert)) + suffix
                yield Piece(name, info, info.shape[1:], expert=expert)
        elif self.table.norms_by_head and base in ("attn_q_norm", "attn_k_norm"):
            yield from _by_head(info, module)
        elif base in WITHOUT_SUFFIX:
            yield self._whole(info, base, module)
        else:
            yield self._whole(info, base, module + (suffix or ".weight"))

    def _whole(self, info: TensorInfo, base: str, name: str) -> Piece:
        shape = _shape_of(info, base, name)
        order: RowOrder | None = None
        columns = None
        if self.table.permuted and base in ("attn_q", "attn_k"):
            heads, kv_heads = self._heads_of(info)
            order = NeighbouringPairs(heads if base == "attn_q" else kv_heads)
        elif self.table.heads_by_kind and base == "attn_qkv":
            order = HeadsByKind(*self._heads_of(info))
        elif self._delta is not None and self.table.value_heads == "tiled":
            order, columns = self._delta.tiled_rows(base), self._delta.tiled_columns(base)
        if columns is not None:
            _check_axes(info, 2)
            _check_rows(info, columns, shape[1])
        if order is not None:
            _check_rows(info, order, shape[0])
        is_plain = not isinstance(info.type, BlockType)
        is_shifted = name.endswith("norm.weight") and base != "ssm_norm"
        shift = 1.0 if self.table.shifted_norms and is_shifted else 0.0
        if not is_plain and (len(shape) == 1 or shape != info.shape):
            raise ValueError(f"tensor {info.name!r} is a vector of type {info.type.name}")
        transposed = is_plain and len(shape) == 2 and base in self.table.transposed
        shape = shape[::-1] if transposed else shape
        is_part = base in (*self.table.joined_rows, *self.table.joined_heads)
        part = base if is_part and name.endswith(".weight") else None
        return Piece(
            name,
            info,
            shape,
            order=order,
            shift=shift,
            transposed=transposed,
            part=part,
            is_rate=base == "ssm_a",
            columns=columns,
        )

    def _split_by_key(
        self, info: TensorInfo, base: str, parts: Mapping[str, PartsByKey]
    ) -> Iterator[Piece]:
        """Parts of a matrix that has them by key head, which are modules of Qwen3.5."""
        _check_axes(info, 2)
        for other, order in parts.items():
            _check_rows(info, order, info.shape[0])
            found = self.table.find(info.name.replace(base, other))
            name = info.name if found is None else found[1] + found[2]
            yield Piece(name, info, (order.count, info.shape[1]), order=order)

    def _split_qkv(self, info: TensorInfo) -> Iterator[Piece]:
        """Queries, keys and values, which Hugging Face stores in three tensors."""
        query_heads, kv_heads = self._heads_of(info)
        num_heads = query_heads + 2 * kv_heads
        size = self._head_dim or info.shape[0] // num_heads
        if size * num_heads != info.shape[0]:
            raise ValueError(f"tensor {info.name!r} has {info.shape[0]} rows for {num_heads} heads")
        start = 0
        for base, heads in (
            ("attn_q", query_heads),
            ("attn_k", kv_heads),
            ("attn_v", kv_heads),
        ):
            count = heads * size
            found = self.table.find(info.name.replace("attn_qkv", base))
            name = info.name if found is None else found[1] + found[2]
            order = None
            if self.table.permuted and base != "attn_v":
                order = NeighbouringPairs(heads)
                _check_rows(info, order, count)
            shape = (count, *info.shape[1:])
            yield Piece(name, info, shape, rows=(start, count), order=order)
            start += count

    def _heads_of(self, info: TensorInfo) -> tuple[int, int]:
        """The heads of queries, and of keys and values, in the layer of a tensor."""
        layer = self.table.layer_of(info.name) or 0
        heads = self._metadata.count("attention.head_count", layer)
        kv_heads = self._metadata.count("attention.head_count_kv", layer, heads)
        if not heads or not kv_heads:
            raise ValueError(f"tensor {info.name!r} is in a layer without attention")
        return heads, kv_heads

    def _split_experts(self, info: TensorInfo) -> Iterator[Piece]:
        """Gates and ups of experts in one tensor."""
        _check_axes(info, 3)
        num_experts, num_rows, columns = info.shape
        if num_rows % 2:
            raise ValueError(f"tensor {info.name!r} has an odd number of rows for gate and up")
        half = num_rows // 2
        for expert in range(num_experts):
            for start, base in ((0, "ffn_gate_exps"), (half, "ffn_up_exps")):
                found = self.table.find(info.name.replace(_FUSED_EXPERTS, base))
                name = info.name if found is None else found[1] + found[2]
                name = name.replace(EXPERT, str(expert))
                yield Piece(name, info, (half, columns), expert=expert, rows=(start, half))


def _find_table(metadata: Metadata, names: Mapping[str, TensorInfo]) -> NameTable:
    architecture = metadata.architecture
    if architecture not in NAME_TABLES:
        known = ", ".join(sorted(NAME_TABLES))
        raise ValueError(f"the architecture {architecture!r} is not supported; known: {known}")
    if architecture == "llama" and metadata.optional_size("expert_count"):
        return MIXTRAL
    if architecture == "falcon" and "blk.0.attn_norm_2.weight" in names:
        return FALCON_TWO_NORMS
    if architecture == "granitehybrid" and not metadata.optional_size("expert_count"):
        return DENSE_GRANITE_4
    return NAME_TABLES[architecture]


def _shape_of(info: TensorInfo, base: str, name: str) -> tuple[int, ...]:
    """The shape that Hugging Face gives a tensor: some have another number of axes."""
    shape = info.shape
    is_row = base == "ffn_gate_inp_shexp" or name.endswith(MOE_STATICS)
    if is_row and len(shape) == 1:
        return (1, *shape)
    if base in _CONVOLUTIONS and len(shape) == 2:
        return (shape[0], 1, shape[1])
    return (math.prod(shape),) if base in _VECTORS else shape


def _by_head(info: TensorInfo, module: str) -> Iterator[Piece]:
    """Norm weights of each head, [heads, size] in the file (StableLM)."""
    _check_axes(info, 2)
    for head in range(info.shape[0]):
        name = f"{module}.norms.{head}.weight"
        yield Piece(name, info, (info.shape[1],), rows=(head, 1))


def _check_axes(info: TensorInfo, wanted: int) -> None:
    if len(info.shape) != wanted:
        raise ValueError(
            f"tensor {info.name!r} has the shape {list(info.shape)}, not {wanted} axes"
        )


def _check_rows(info: TensorInfo, order: RowOrder, num_rows: int) -> None:
    try:
        order.check(num_rows)
    except ValueError as error:
        raise ValueError(f"tensor {info.name!r}: {error}") from None
