"""Bans bad words: token sequences that must not be generated.

The last token of a bad word is banned when the output ends with the tokens before it. The
comparison runs on the device, because the newest token may not have reached the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]

_NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class BadWords:
    """The bad words of one slot.

    Attributes:
        prefixes: int32 [num_words, longest prefix], the tokens before the last one, right-aligned;
            _NO_TOKEN pads shorter ones in front.
        lengths: int32 [num_words], tokens of each prefix.
        last: int64 [num_words], the token that completes each word.
    """

    prefixes: Array
    lengths: Array
    last: Array

    @classmethod
    def of(cls, words: Sequence[Sequence[int]], vocab_size: int) -> BadWords:
        """Build the table. Words with a token beyond the vocabulary are dropped."""
        known = [word for word in words if max(word) < vocab_size]
        if not known:
            return NO_BAD_WORDS
        width = max(map(len, known)) - 1
        prefixes = np.full((len(known), width), _NO_TOKEN, dtype=np.int32)
        for row, word in enumerate(known):
            prefixes[row, width - len(word) + 1 :] = word[:-1]
        return cls(
            prefixes=prefixes,
            lengths=np.array([len(word) - 1 for word in known], dtype=np.int32),
            last=np.array([word[-1] for word in known], dtype=np.int64),
        )


NO_BAD_WORDS = BadWords(
    np.zeros((0, 0), dtype=np.int32), np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
)


def bad_word_rows(
    words: Sequence[BadWords],
    rows: Array,
    sequences: Array,
    num_tokens: Array,
    num_generated: Array,
) -> tuple[Array, Array, Array, Array, Array] | None:
    """The arguments of `ban_bad_words` after the token table; None if no word can be completed.

    Args:
        words: of each row.
        rows: int64, rows of the logits.
        sequences: int32, rows of the token table.
        num_tokens: tokens of each sequence; `num_generated` of them are its output.
    """
    width = max(of_row.prefixes.shape[1] for of_row in words)
    kept = [of_row.lengths <= count for of_row, count in zip(words, num_generated, strict=True)]
    counts = [int(chosen.sum()) for chosen in kept]
    if not any(counts):
        return None
    prefixes = np.full((sum(counts), width), _NO_TOKEN, dtype=np.int32)
    start = 0
    for of_row, chosen, count in zip(words, kept, counts, strict=True):
        own_width = of_row.prefixes.shape[1]
        prefixes[start : start + count, width - own_width :] = of_row.prefixes[chosen]
        start += count
    last = np.concatenate([of_row.last[chosen] for of_row, chosen in zip(words, kept, strict=True)])
    return (
        np.repeat(rows, counts),
        np.repeat(sequences.astype(np.int64), counts),
        np.repeat(num_tokens.astype(np.int64), counts),
        prefixes,
        last,
    )


def ban_bad_words(
    logits: Tensor,
    tokens: Tensor,
    rows: Tensor,
    sequences: Tensor,
    num_tokens: Tensor,
    prefixes: Tensor,
    last: Tensor,
) -> None:
    """Ban last[i] in row rows[i] if its sequence ends with prefixes[i].

    Args:
        logits: float32 [num_rows, vocab_size], changed in place.
        tokens: int32 [any, max_len], tokens of sequences.
        rows, sequences, num_tokens, last: int64 [num_words].
        prefixes: int32 [num_words, longest prefix], as in `BadWords`.
    """
    width = prefixes.shape[1]
    positions = num_tokens.unsqueeze(1) - width + torch.arange(width, device=logits.device)
    before = tokens[sequences.unsqueeze(1), positions.clamp_(min=0)]
    ends_with = ((before == prefixes) | (prefixes == _NO_TOKEN)).all(1)
    # Added, not assigned: several words may end in the same token.
    ban = torch.where(ends_with, -math.inf, 0.0).to(logits.dtype)
    logits.index_put_((rows, last), ban, accumulate=True)
