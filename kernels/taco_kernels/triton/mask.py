"""Bit masks on logits: bans the tokens that a row's mask does not allow.

Reference: `taco_worker.sampling.token_masks`. A program reads the words of 4096 tokens of one mask
and stores -inf where a bit is 0; it reads no logits, and stores none that stay.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from taco_kernels.triton.row_statistics import check_column, check_logits

_WORD_BITS = tl.constexpr(32)
_WORDS = tl.constexpr(128)  # of a program


def mask_logits(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    """Set the logits of tokens that a mask does not allow to -inf, in place. Takes one launch.

    Args:
        logits: float32 [num_rows, vocab_size].
        rows: int64 [num_masks], the row of each mask, each at most once.
        bits: int32 [num_masks, num_words]; bit i % 32 of word i // 32 is token i.

    Raises:
        ValueError: a tensor has the wrong type or shape.
    """
    check_logits(logits)
    num_words = triton.cdiv(logits.shape[1], _WORD_BITS.value)
    count = rows.numel()
    check_column("rows", rows, torch.int64, logits, count)
    if bits.dtype != torch.int32 or bits.shape != (count, num_words) or not bits.is_contiguous():
        raise ValueError(
            f"bits must be int32 [{count}, {num_words}], not {bits.dtype} {tuple(bits.shape)}"
        )
    if count == 0:
        return
    _mask_kernel[(count, triton.cdiv(num_words, _WORDS.value))](
        logits, logits.stride(0), logits.shape[1], rows, bits, num_words, num_warps=4
    )


@triton.jit
def _mask_kernel(logits, stride, vocab_size, rows, bits, num_words):
    index = tl.program_id(0).to(tl.int64)
    words = tl.program_id(1) * _WORDS + tl.arange(0, _WORDS)
    found = tl.load(bits + index * num_words + words, mask=words < num_words, other=-1)
    places = tl.arange(0, _WORD_BITS)
    is_banned = (found[:, None] >> places[None, :]) & 1 == 0
    tokens = words[:, None] * _WORD_BITS + places[None, :]
    row_logits = logits + tl.load(rows + index) * stride
    tl.store(row_logits + tokens, -float("inf"), mask=is_banned & (tokens < vocab_size))
