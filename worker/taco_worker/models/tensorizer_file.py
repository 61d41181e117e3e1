"""Reads files of CoreWeave's tensorizer: `--load-format tensorizer`."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from taco_worker.models.tensorizer_table import TableEntry, read_table


def iterate_tensorizer_file(
    path: Path, is_wanted: Callable[[str], bool] = lambda _: True
) -> Iterator[tuple[str, Tensor]]:
    """Yield names and tensors, as views of the mapped file.

    Args:
        is_wanted: whether to read a tensor, by its name.

    Raises:
        ValueError: the file is damaged, encrypted, or of another version.
    """
    entries = read_table(path)
    try:
        with path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    for entry in entries:
        if is_wanted(entry.name):
            yield entry.name, _tensor(entry, mapping)


def _tensor(entry: TableEntry, mapping: mmap.mmap) -> Tensor:
    content = np.frombuffer(mapping, np.uint8, entry.length, entry.start)
    dtype: torch.dtype = getattr(torch, entry.torch_type)
    return torch.from_numpy(content).view(dtype).view(entry.shape)
