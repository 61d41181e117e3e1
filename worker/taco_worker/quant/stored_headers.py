"""What the headers of a checkpoint's safetensors files say of its tensors.

Configurations often do not list every module that stays unquantized; the stored types tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from taco_worker.quant.modules import plain_name
from taco_worker.quant.safetensors_index import SafetensorsIndex

_PLAIN_TYPES = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class StoredHeaders:
    """Shapes and types (by safetensors names), by the tensors' plain names."""

    tensors: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)

    def dtype(self, name: str) -> str | None:
        """None: no such tensor was found."""
        found = self.tensors.get(plain_name(name))
        return None if found is None else found[1]

    def shape(self, name: str) -> tuple[int, ...] | None:
        found = self.tensors.get(plain_name(name))
        return None if found is None else found[0]

    def is_quantized(self, weight: str, *, otherwise: bool) -> bool:
        """Whether a tensor is a quantized matrix: its type decides, if it is known.

        Args:
            weight: name of the tensor that would hold the matrix without quantization.
            otherwise: the answer where no file has such a tensor.
        """
        dtype = self.dtype(weight)
        return otherwise if dtype is None else dtype not in _PLAIN_TYPES


def read_headers(model_dir: Path) -> StoredHeaders:
    """The headers of all safetensors files in a model directory.

    Raises:
        ValueError: a header is damaged.
    """
    index = SafetensorsIndex.of(model_dir)
    return StoredHeaders(
        {plain_name(name): (one.shape, one.dtype) for name, one in index.tensors.items()}
    )
