"""Iterates over the tensors of a weight file (safetensors, GGUF, tensorizer or .bin)."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from taco_worker.models.mapped_pages import MappedPages
from taco_worker.models.mistral_format import head_dim_of, hf_name, hf_rows, is_mistral_file
from taco_worker.models.tensorizer_file import iterate_tensorizer_file
from taco_worker.models.tensorizer_table import is_tensorizer
from taco_worker.quant.gguf.checkpoint import is_gguf
from taco_worker.quant.gguf.tensors import iterate_gguf
from taco_worker.quant.pickled_headers import PICKLED_ENDS

DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def iterate_tensors(
    path: Path, is_wanted: Callable[[str], bool] = lambda _: True
) -> Iterator[tuple[str, Tensor]]:
    """Yield names and tensors of one file, as views of the mapped file if its format allows it.

    Tensors in Mistral's format and of GGUF files get Hugging Face's names and order of rows.

    A tensor's pages are released when the next tensor is requested, so that copied weights are not
    in memory twice. Later access to the tensor reads them again.

    Args:
        is_wanted: whether to read a tensor, by its name in the file.

    Raises:
        ValueError: the file is damaged, or holds something other than tensors.
    """
    if is_gguf(path):
        yield from (item for item in _iterate_gguf(path) if is_wanted(item[0]))
        return
    if is_tensorizer(path):
        yield from iterate_tensorizer_file(path, is_wanted)
        return
    is_safetensors = path.suffix not in PICKLED_ENDS
    head_dim = head_dim_of(path.parent) if is_mistral_file(path) else None
    pages: MappedPages | None = None
    iterate = _iterate_safetensors if is_safetensors else _iterate_state_dict
    for name, tensor in iterate(path, is_wanted):
        pages = pages or MappedPages(path)
        if head_dim is None:
            yield name, tensor
        elif (new_name := hf_name(name)) is not None:
            yield new_name, hf_rows(name, tensor, head_dim)
        pages.release(tensor)


def dtype_name(tensor: Tensor) -> str:
    """The name of a tensor's type in safetensors files."""
    name = str(tensor.dtype).removeprefix("torch.")
    return DTYPE_NAMES.get(tensor.dtype, name)


def _iterate_safetensors(
    path: Path, is_wanted: Callable[[str], bool]
) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            for name in filter(is_wanted, file.keys()):
                yield name, file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None


def _iterate_gguf(path: Path) -> Iterator[tuple[str, Tensor]]:
    pages: MappedPages | None = None
    for name, tensor, stored in iterate_gguf(path):
        pages = pages or MappedPages(path)
        yield name, tensor
        for part in stored:
            pages.release(part)


def _iterate_state_dict(
    path: Path, is_wanted: Callable[[str], bool]
) -> Iterator[tuple[str, Tensor]]:
    try:
        # Files written before torch 1.6 are not zip archives and cannot be mapped.
        content = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except pickle.UnpicklingError:  # its text advises to run the code of the file
        raise ValueError(
            f"cannot read {path}: it is no file of torch.save that holds only tensors"
        ) from None
    except (RuntimeError, OSError, EOFError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__} instead of tensors by name")
    for name, tensor in content.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{path} holds a {type(tensor).__name__} under {name!r}")
        if is_wanted(name):
            yield name, tensor
