"""Iterates over the tensors of a weight file (safetensors or .bin)."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from taco_worker.models.mapped_pages import MappedPages
from taco_worker.models.mistral_format import head_dim_of, hf_name, hf_rows, is_mistral_file


def iterate_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield names and tensors of one file, as views of the mapped file if its format allows it.

    Tensors in Mistral's format get Hugging Face's names and order of rows.

    A tensor's pages are released when the next tensor is requested, so that copied weights are not
    in memory twice. Later access to the tensor reads them again.

    Raises:
        ValueError: the file is damaged, or holds something other than tensors.
    """
    is_safetensors = path.suffix == ".safetensors"
    head_dim = head_dim_of(path.parent) if is_mistral_file(path) else None
    pages: MappedPages | None = None
    for name, tensor in _iterate_safetensors(path) if is_safetensors else _iterate_state_dict(path):
        pages = pages or MappedPages(path)
        if head_dim is None:
            yield name, tensor
        elif (new_name := hf_name(name)) is not None:
            yield new_name, hf_rows(name, tensor, head_dim)
        pages.release(tensor)


def _iterate_safetensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                yield name, file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None


def _iterate_state_dict(path: Path) -> Iterator[tuple[str, Tensor]]:
    try:
        # Files written before torch 1.6 are not zip archives and cannot be mapped.
        content = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__} instead of tensors by name")
    for name, tensor in content.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{path} holds a {type(tensor).__name__} under {name!r}")
        yield name, tensor
