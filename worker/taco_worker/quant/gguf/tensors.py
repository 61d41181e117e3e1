"""Reads the tensors of GGUF files under Hugging Face's names."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from taco_worker.quant.gguf.blocks.block_types import BlockType
from taco_worker.quant.gguf.checkpoint import open_checkpoint
from taco_worker.quant.gguf.header import TensorInfo

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def iterate_gguf(path: Path) -> Iterator[tuple[str, Tensor, tuple[Tensor, ...]]]:
    """Yield the name of each tensor, the tensor, and the parts of mapped files that it is from.

    Quantized matrices are the bytes of their rows, uint8 [n, bytes of a row].

    Raises:
        ValueError: a file of the model is not valid.
    """
    checkpoint = open_checkpoint(path)
    contents: dict[Path, Tensor] = {}
    for piece in checkpoint.pieces[path]:
        stored = []
        for info in piece.infos:
            file = checkpoint.file_of[info.name]
            if file not in contents:
                contents[file] = _mapped(file)
            stored.append(_tensor(contents[file], info))
        try:
            tensor = piece.read(*stored)
        except ValueError as error:
            raise ValueError(f"cannot read {path}: {error}") from None
        yield piece.name, tensor, tuple(stored)


def _mapped(path: Path) -> Tensor:
    """The bytes of a file."""
    with path.open("rb") as file, warnings.catch_warnings():
        # No one writes to these tensors: they are as read-only as the mapped file.
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return torch.frombuffer(content, dtype=torch.uint8)


def _tensor(content: Tensor, info: TensorInfo) -> Tensor:
    data = content[info.start : info.start + info.num_bytes]
    if isinstance(info.type, BlockType):
        return data.view(*info.shape[:-1], info.row_bytes)
    dtype = _DTYPES[info.type.dtype]
    # Files with a small alignment have numbers at odd places, which must be copied.
    is_aligned = not data.storage_offset() % dtype.itemsize
    return (data if is_aligned else data.clone()).view(dtype).view(info.shape)
