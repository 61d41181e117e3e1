"""The demo model's training data as rows of bytes, for runs that learn something."""

import functools
from pathlib import Path

import torch
from torch import Tensor

NUM_TOKENS = 128  # ASCII; other bytes are the last one
_PATH = Path(__file__).parents[2] / "demo" / "recipe" / "data" / "objects.tsv"


@functools.cache
def token_ids() -> Tensor:
    """All bytes in the order of the file, int64: names and sentences of Python's documentation."""
    data = bytearray(_PATH.read_bytes())
    return torch.frombuffer(data, dtype=torch.uint8).long().clamp(max=NUM_TOKENS - 1)


def rows(seed: int, count: int, length: int) -> Tensor:
    """Random rows, shape (count, length + 1): inputs and, one further, labels. Equal seeds give
    equal rows.
    """
    data = token_ids()
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, len(data) - length, (count, 1), generator=generator)
    return data[starts + torch.arange(length + 1)]
