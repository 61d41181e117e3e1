"""The tensors in weight files."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from taco_worker.models.mapped_pages import MappedPages


def iterate_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of one file, as views of the mapped file where its form allows it.

    A tensor's pages leave this process's memory when the next one is asked for, so that weights
    which are copied out are not there twice. They are read again if the tensor is.

    Raises:
        ValueError: the file is damaged, or holds something else than tensors.
    """
    is_safetensors = path.suffix == ".safetensors"
    pages: MappedPages | None = None
    for name, tensor in _iterate_safetensors(path) if is_safetensors else _iterate_state_dict(path):
        pages = pages or MappedPages(path)
        yield name, tensor
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
        # Files from before torch 1.6 are no archives and cannot be mapped.
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
