"""The quantization of a model directory that was made of GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taco_worker.quant.gguf.blocks.block_types import BlockType
from taco_worker.quant.gguf.blocks.matrix import SUFFIX, GgufMatrix
from taco_worker.quant.gguf.blocks.reordered_columns import ReorderedColumns
from taco_worker.quant.gguf.checkpoint import open_checkpoint
from taco_worker.quant.gguf.rows import TiledHeads


@dataclass(frozen=True, slots=True)
class GgufQuantization:
    """The types of a model's matrices, by their tensors in Hugging Face's format.

    Attributes:
        columns: of matrices whose columns the files have in another order, this order.
    """

    types: Mapping[str, BlockType]
    columns: Mapping[str, TiledHeads]
    method = "gguf"

    def format_of(self, module: str, n: int, k: int) -> GgufMatrix | ReorderedColumns | None:
        name = module + SUFFIX
        if name not in self.types:
            return None
        matrix = GgufMatrix(self.types[name], n, k)
        order = self.columns.get(name)
        return matrix if order is None else ReorderedColumns(matrix, order)

    def is_extra(self, name: str) -> bool:
        return False


def read(config: Mapping[str, Any], model_dir: Path) -> GgufQuantization:
    """Raises ValueError if the files are not valid."""
    files = sorted(model_dir.glob("*.gguf"))
    if not files:
        raise ValueError(f"{model_dir} has no .gguf file")
    checkpoint = open_checkpoint(files[0])
    if config.get("header", checkpoint.digest) != checkpoint.digest:
        raise ValueError(
            f"{files[0].resolve()} has changed since {model_dir} was made: start again"
        )
    types = {one.name: kind for one in checkpoint if (kind := one.block_type) is not None}
    columns = {one.name: order for one in checkpoint if (order := one.columns) is not None}
    return GgufQuantization(types, columns)
