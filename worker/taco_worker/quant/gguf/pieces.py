"""Finds the tensors of a model, as Hugging Face stores them, inside those of GGUF files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taco_worker.quant.gguf.blocks.block_types import BlockType
from taco_worker.quant.gguf.config.metadata import Metadata
from taco_worker.quant.gguf.config.source import num_layers
from taco_worker.quant.gguf.header import TensorInfo
from taco_worker.quant.gguf.name_table import EXPERT, NameTable
from taco_worker.quant.gguf.rows import HeadsByKind, NeighbouringPairs, RowOrder
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
        return "U8" if isinstance(kind, BlockType) else "F32" if self.shift else kind.dtype

    def read(self, *stored: Tensor) -> Tensor:
        """The piece of the file's tensor, as a view where that is possible."""
        (tensor,) = stored
        part = tensor if self.expert is None else tensor[self.expert]
        if self.rows is not None:
            start, count = self.rows
            part = part[start : start + count]
        if self.order is not None:
            part = self.order.restore(part)
        if self.shift:
            part = part.float() - self.shift
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

    def pieces(self, info: TensorInfo) -> Iterator[Piece]:
        """The pieces of a tensor, none if it is part of the configuration.

        Raises:
            ValueError: the shape is not one that the architecture can have.
        """
        layer = self.table.layer_of(info.name)
        if info.name in ROPE_FACTORS or (layer is not None and layer >= self._num_layers):
            return
        own, _, suffix = info.name.removeprefix("blk.").rpartition(".")
        base = own.partition(".")[2] if info.name.startswith("blk.") else own
        if base == _IN_EVERY_LAYER:
            return
        if base == "attn_qkv" and base not in self.table.modules:
            yield from self._split_qkv(info)
            return
        if base == _FUSED_EXPERTS:
            yield from self._split_experts(info)
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
        elif module.endswith((".q_layernorm", ".k_layernorm")):
            yield from _by_head(info, module)
        elif base in WITHOUT_SUFFIX:
            is_row = module.endswith(MOE_STATICS) and len(info.shape) == 1
            yield Piece(module, info, (1, *info.shape) if is_row else info.shape)
        else:
            yield self._whole(info, base, module + suffix)

    def _whole(self, info: TensorInfo, base: str, name: str) -> Piece:
        shape = info.shape
        order: RowOrder | None = None
        if self.table.permuted and base in ("attn_q", "attn_k"):
            heads, kv_heads = self._heads_of(info)
            order = NeighbouringPairs(heads if base == "attn_q" else kv_heads)
        elif self.table.heads_by_kind and base == "attn_qkv":
            order = HeadsByKind(*self._heads_of(info))
        if order is not None:
            _check_rows(info, order, shape[0])
        is_plain = not isinstance(info.type, BlockType)
        shift = 1.0 if self.table.shifted_norms and name.endswith("norm.weight") else 0.0
        if not is_plain and len(shape) == 1:
            raise ValueError(f"tensor {info.name!r} is a vector of type {info.type.name}")
        transposed = is_plain and len(shape) == 2 and base in self.table.transposed
        if base == "ffn_gate_inp_shexp" and len(shape) == 1:
            shape = (1, *shape)
        shape = shape[::-1] if transposed else shape
        is_part = base in (*self.table.joined_rows, *self.table.joined_heads)
        part = base if is_part and name.endswith(".weight") else None
        return Piece(name, info, shape, None, None, order, shift, transposed, part)

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
    return NAME_TABLES[architecture]


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
