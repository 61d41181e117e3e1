"""Masks of the tokens that grammars allow, one bit a token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]

WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Masks of some rows of the logits.

    Attributes:
        rows: int64 [num_masks], rows of the logits, ascending.
        bits: int32 [num_masks, num_words(vocab_size)]; bit i % 32 of word i // 32 is token i.
        is_complete: bool [num_masks], only end tokens are allowed: the text is complete.
    """

    rows: Array
    bits: Array
    is_complete: Array

    def take(self, rows: Array) -> TokenMasks:
        """The masks of some rows, ascending, which are the rows of the logits then."""
        is_taken = np.isin(self.rows, rows)
        places = np.searchsorted(rows, self.rows[is_taken]).astype(np.int64)
        return TokenMasks(places, self.bits[is_taken], self.is_complete[is_taken])


def num_words(vocab_size: int) -> int:
    return -(-vocab_size // WORD_BITS)


def mask_of(token_ids: list[int], vocab_size: int) -> Array:
    """The mask that allows these tokens: int32 [num_words]."""
    allowed = np.zeros(num_words(vocab_size) * WORD_BITS, dtype=np.bool_)
    allowed[token_ids] = True
    return np.packbits(allowed, bitorder="little").view(np.int32)


def mask_logits(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    """Set the logits of tokens that a mask does not allow to -inf: the reference of the kernels.

    Args:
        logits: float32 [num_rows, vocab_size], changed in place.
        rows: int64 [num_masks], each row at most once.
        bits: int32 [num_masks, num_words], as in `TokenMasks`.
    """
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    is_allowed = bits.view(torch.uint8).unsqueeze(2) >> shifts & 1
    is_banned = (is_allowed == 0).flatten(1)[:, : logits.shape[1]]
    if rows.shape[0] == logits.shape[0]:
        logits.masked_fill_(is_banned, -math.inf)
    else:
        logits[rows] = logits[rows].masked_fill_(is_banned, -math.inf)
