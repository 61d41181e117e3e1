"""Tensors of Hugging Face's format that GGUF files have in several parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taco_worker.quant.gguf.blocks.block_types import BlockType
from taco_worker.quant.gguf.blocks.matrix import SUFFIX, GgufMatrix
from taco_worker.quant.gguf.header import TensorInfo
from taco_worker.quant.gguf.name_table import NameTable
from taco_worker.quant.gguf.pieces import Piece
from taco_worker.quant.gguf.rows import TiledHeads

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """The rows of several matrices, one after another (Baichuan's queries, keys and values).

    Matrices of unlike types become numbers.
    """

    parts: tuple[Piece, ...]
    columns: TiledHeads | None = None

    @property
    def name(self) -> str:
        return self.parts[0].name

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        return tuple(part.info for part in self.parts)

    @property
    def block_type(self) -> BlockType | None:
        return self.parts[0].block_type if self._is_uniform else None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        first = self.parts[0]
        columns = (first.stored_shape if self._is_uniform else first.shape)[1:]
        return (sum(part.shape[0] for part in self.parts), *columns)

    @property
    def dtype(self) -> str:
        return self.parts[0].dtype if self._is_uniform else "F32"

    @property
    def _is_uniform(self) -> bool:
        return len({part.info.type for part in self.parts}) == 1

    def read(self, *stored: Tensor) -> Tensor:
        import torch

        rows = [part.read(tensor) for part, tensor in zip(self.parts, stored, strict=True)]
        if not self._is_uniform:
            rows = [_numbers(part.info, one) for part, one in zip(self.parts, rows, strict=True)]
        return torch.cat(rows)


@dataclass(frozen=True, slots=True)
class LatentHeads:
    """DeepSeek's kv_b_proj: each head has rows for its keys, then rows for its values.

    Files have the keys' matrices transposed, with blocks along the other axis: all become numbers.

    Attributes:
        keys: [heads, latent size, rows of a head's key].
        values: [heads, rows of a head's value, latent size].
    """

    name: str
    keys: TensorInfo
    values: TensorInfo
    block_type: BlockType | None = None
    dtype: str = "F32"
    columns: TiledHeads | None = None

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        return (self.keys, self.values)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        heads, latent_size, key_rows = self.keys.shape
        return (heads * (key_rows + self.values.shape[1]), latent_size)

    def read(self, *stored: Tensor) -> Tensor:
        import torch

        keys, values = (_numbers(info, one) for info, one in zip(self.infos, stored, strict=True))
        return torch.cat([keys.transpose(1, 2), values], 1).flatten(0, 1)


AnyPiece = Piece | JoinedRows | LatentHeads


def join(pieces: Iterable[Piece], table: NameTable) -> list[AnyPiece]:
    """The tensors of a model, each at the place of its first part.

    Raises:
        ValueError: a part is missing or misshapen, or two tensors of the file are the same one.
    """
    found: dict[str, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.name, []).append(piece)
    return [_joined(name, parts, table) for name, parts in found.items()]


def _joined(name: str, parts: list[Piece], table: NameTable) -> AnyPiece:
    by_part = {part.part: part for part in parts}
    names = [part.info.name for part in parts]
    if len(by_part) < len(parts) or (None in by_part and len(parts) > 1):
        raise ValueError(f"its tensors {names[0]!r} and {names[1]!r} are both {name}")
    if None in by_part:
        return parts[0]
    wanted = table.joined_rows or table.joined_heads
    if missing := [part for part in wanted if part not in by_part]:
        raise ValueError(f"it has the tensor {names[0]!r}, and not the one named {missing[0]!r}")
    ordered = tuple(by_part[part] for part in wanted)
    if table.joined_rows:
        if len({part.shape[1:] for part in ordered}) > 1:
            raise ValueError(f"its tensors {', '.join(names)} have unlike columns")
        return JoinedRows(ordered)
    keys, values = (part.info for part in ordered)
    shapes = (keys.shape, values.shape)
    if [len(one) for one in shapes] != [3, 3] or (
        (keys.shape[0], keys.shape[1]) != (values.shape[0], values.shape[2])
    ):
        raise ValueError(
            f"its tensors {names[0]!r} and {names[1]!r} have the shapes {list(keys.shape)} and "
            f"{list(values.shape)}, which are not parts of one matrix"
        )
    return LatentHeads(name, keys, values)


def _numbers(info: TensorInfo, stored: Tensor) -> Tensor:
    """float32, of numbers or of rows of blocks [..., bytes of a row].

    Raises:
        ValueError: a scale is not finite.
    """
    if not isinstance(info.type, BlockType):
        return stored.float()
    rows = stored.flatten(0, -2)
    try:
        values = GgufMatrix(info.type, len(rows), info.shape[-1]).dequantize({SUFFIX: rows})
    except ValueError as error:
        raise ValueError(f"tensor {info.name!r}: {error}") from None
    return values.view(*stored.shape[:-1], -1)
