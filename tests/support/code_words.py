"""Group codes as words of eight codes, which checkpoints store."""

from __future__ import annotations

from dataclasses import replace

import torch

from taco_kernels.group_codes import GroupCodes


def in_words(codes: GroupCodes, *, by_row: bool) -> GroupCodes:
    """The same codes of 4 bits in words, with the words of a row or of a column adjacent."""
    eight = codes.codes.long().unflatten(1, (-1, 8))
    words = (eight << torch.arange(0, 32, 4)).sum(-1)
    words = torch.where(words < 2**31, words, words - 2**32).int()
    return replace(codes, codes=words if by_row else words.T.contiguous().T)
