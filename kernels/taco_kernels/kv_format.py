"""How a KV cache stores numbers: their dtype, and the scales of 8-bit numbers."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from taco_kernels.kv_entry import EntryScales, KVEntry

FLOAT8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
EIGHT_BIT_DTYPES = (torch.int8, *FLOAT8_DTYPES)


@dataclass(frozen=True, slots=True)
class KVFormat:
    """The format of a KV cache.

    Attributes:
        dtype: of the stored numbers.
        scales: of each entry, for a dtype of 8 bits; None: such a cache has a float32 scale for
            each token and head, with which the greatest number of the head is the dtype's greatest.
    """

    dtype: torch.dtype
    scales: tuple[EntryScales, ...] | None = None

    def __post_init__(self) -> None:
        if self.scales is not None and self.dtype not in FLOAT8_DTYPES:
            raise ValueError(f"a KV cache of {self.dtype} has no scales of entries")

    @property
    def has_token_scales(self) -> bool:
        """Whether each token and head has scales."""
        return self.dtype in EIGHT_BIT_DTYPES and self.scales is None

    @property
    def description(self) -> str:
        """Names the format: caches with equal descriptions hold the same bytes."""
        name = str(self.dtype).removeprefix("torch.")
        if self.scales is not None:
            numbers = [number for one in self.scales for number in (one.key, one.value)]
            digest = hashlib.blake2b(array("d", numbers).tobytes(), digest_size=8).hexdigest()
            return f"{name}, scales {digest}"
        return f"{name}, scales of tokens" if self.has_token_scales else name

    def of_entry(self, index: int) -> EntryScales | None:
        """The scales of one entry; None: it has no scales, or those of tokens."""
        return None if self.scales is None else self.scales[index]

    def bytes_per_token(self, entries: Iterable[KVEntry]) -> int:
        """Bytes of one token of all entries, without padding."""
        size = 0
        for entry in entries:
            size += entry.elements_per_token * self.dtype.itemsize
            if self.has_token_scales:
                scales = entry.num_heads * (1 if entry.latent else 2)
                size += scales * torch.float32.itemsize
        return size


def greatest(dtype: torch.dtype) -> float:
    """The greatest number that an 8-bit dtype is scaled to."""
    return 127.0 if dtype == torch.int8 else torch.finfo(dtype).max


def quantize(numbers: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """`numbers / scale` in float8, rounded to nearest even and limited to the dtype's range."""
    limit = greatest(dtype)
    return (numbers.float() * (1 / scale)).clamp(-limit, limit).to(dtype)


def quantize_rows(numbers: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Numbers in an 8-bit dtype, and the scales of their rows (the last axis), float32.

    A row whose numbers are all smaller than 2^-100 is stored as zeros with scale 0.
    """
    limit = greatest(dtype)
    rows = numbers.float()
    largest = rows.abs().amax(-1, keepdim=True)
    is_zero = largest < 2.0**-100
    factors = torch.where(is_zero, 0.0, limit / largest)
    scaled = (rows * factors).clamp(-limit, limit)
    if dtype == torch.int8:
        scaled = scaled.round()
    scales = torch.where(is_zero, 0.0, largest / limit)
    return scaled.to(dtype), scales.squeeze(-1)
