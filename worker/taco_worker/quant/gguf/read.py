"""The quantization of a model directory that was made of GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taco_worker.quant.gguf.blocks.block_types import BlockType
from taco_worker.quant.gguf.blocks.matrix import SUFFIX, GgufMatrix
from taco_worker.quant.gguf.checkpoint import open_checkpoint


@dataclass(frozen=True, slots=True)
class GgufQuantization:
    """The types of a model's matrices, by their tensors in Hugging Face's format."""

    types: Mapping[str, BlockType]
    method = "gguf"

    def format_of(self, module: str, n: int, k: int) -> GgufMatrix | None:
        kind = self.types.get(module + SUFFIX)
        return None if kind is None else GgufMatrix(kind, n, k)

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
    types = {one.name: one.block_type for one in checkpoint}
    return GgufQuantization({name: kind for name, kind in types.items() if kind is not None})
