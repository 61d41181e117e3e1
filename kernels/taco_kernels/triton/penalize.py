"""Repetition, presence and frequency penalties and n-gram bans on logits.

Reference: `taco_worker.sampling.torch_penalties`. One program per sequence reads its tokens twice.
First it counts them in a scratch row. Then it takes each count out again, and the thread that takes
a count changes that token's logit. So each distinct token is changed once, in any order, and the
scratch is zero again at the end. It is cleared only when allocated, and work and memory traffic
depend on the length of the sequences, not on the vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from taco_kernels.triton.row_statistics import check_column, check_logits

# Programs and rows of scratch: about half the number of multiprocessors of a large GPU.
_MAX_PROGRAMS = 64
_BLOCK = tl.constexpr(4096)
# Flag beside the count of a token in the output: the token occurs in the prompt.
_IN_PROMPT = tl.constexpr(1 << 30)


class PenaltyColumns(NamedTuple):
    """The columns of `taco_kernels.sampling_metadata.Penalties` on the device."""

    rows: Tensor
    sequences: Tensor
    starts: Tensor
    lengths: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor
    ngram_size: Tensor


def penalty_scratch(vocab_size: int, max_num_seqs: int, device: torch.device) -> Tensor:
    """Allocate the counters of `penalize`; all calls of a stream can share them."""
    shape = (min(max_num_seqs, _MAX_PROGRAMS), vocab_size)
    return torch.zeros(shape, dtype=torch.int32, device=device)


def penalize(logits: Tensor, tokens: Tensor, penalties: PenaltyColumns, scratch: Tensor) -> None:
    """Apply penalties in place: repetition, then presence and frequency, then n-gram bans.

    Args:
        logits: float32 [num_rows, vocab_size].
        tokens: int32 [num_sequences, max_len], token ids within the vocabulary; tokens outside a
            sequence's range are ignored.
        scratch: from `penalty_scratch`.

    Raises:
        ValueError: a tensor has the wrong type or shape.
    """
    check_logits(logits)
    if tokens.dtype != torch.int32 or tokens.dim() != 2 or tokens.stride(1) != 1:
        raise ValueError(f"tokens must be int32 rows, not {tokens.dtype} {tuple(tokens.shape)}")
    if (
        scratch.dtype != torch.int32
        or scratch.shape[1:] != logits.shape[1:]
        or not scratch.is_contiguous()
    ):
        raise ValueError(
            f"scratch must be int32 [any, {logits.shape[1]}], not "
            f"{scratch.dtype} {tuple(scratch.shape)}"
        )
    count = penalties.rows.numel()
    dtypes = dict.fromkeys(("repetition", "presence", "frequency"), torch.float32)
    for name, column in penalties._asdict().items():
        dtype = torch.int64 if name == "rows" else dtypes.get(name, torch.int32)
        check_column(name, column, dtype, logits, count)
    if count == 0:
        return
    _penalize_kernel[(min(count, scratch.shape[0]),)](
        logits,
        logits.stride(0),
        logits.shape[1],
        tokens,
        tokens.stride(0),
        *penalties,
        count,
        scratch,
        num_warps=8,
    )


@triton.jit
def _penalize_kernel(
    logits,
    logits_stride,
    vocab_size,
    tokens,
    tokens_stride,
    rows,
    sequences,
    starts,
    lengths,
    repetition,
    presence,
    frequency,
    ngram_size,
    count,
    scratch,
):
    counts = scratch + tl.program_id(0).to(tl.int64) * vocab_size
    for index in range(tl.program_id(0), count, tl.num_programs(0)):
        row_logits = logits + tl.load(rows + index) * logits_stride
        sequence = tokens + tl.load(sequences + index).to(tl.int64) * tokens_stride
        start, length = tl.load(starts + index), tl.load(lengths + index)
        factor = tl.load(repetition + index)
        once, each = tl.load(presence + index), tl.load(frequency + index)
        if (factor != 1) | (once != 0) | (each != 0):
            first = tl.where(factor == 1, start, 0)
            _count_tokens(sequence, first, start, length, counts)
            _take_counts(sequence, first, length, counts, row_logits, factor, once, each)
        size = tl.load(ngram_size + index)
        if size > 0:
            _ban_repeated_ngrams(sequence, length, size, row_logits)


@triton.jit
def _count_tokens(sequence, first, start, length, counts):
    for begin in range(first, length, _BLOCK):
        places = begin + tl.arange(0, _BLOCK)
        ids = tl.load(sequence + places, mask=places < length, other=0)
        is_output = (places >= start) & (places < length)
        is_prompt = (places < start) & (places < length)
        tl.atomic_add(counts + ids, 1, mask=is_output, sem="relaxed")
        tl.atomic_or(counts + ids, _IN_PROMPT, mask=is_prompt, sem="relaxed")
    tl.debug_barrier()


@triton.jit
def _take_counts(sequence, first, length, counts, row_logits, factor, once, each):
    for begin in range(first, length, _BLOCK):
        places = begin + tl.arange(0, _BLOCK)
        ids = tl.load(sequence + places, mask=places < length, other=0)
        found = tl.atomic_xchg(counts + ids, 0, mask=places < length, sem="relaxed")
        is_taken = (places < length) & (found != 0)
        numbers = tl.load(row_logits + ids, mask=is_taken, other=0.0)
        numbers = tl.where(numbers > 0, tl.div_rn(numbers, factor), numbers * factor)
        in_output = found & (_IN_PROMPT - 1)
        penalized = numbers - (each * in_output.to(tl.float32) + once)
        numbers = tl.where(in_output > 0, penalized, numbers)
        tl.store(row_logits + ids, numbers, mask=is_taken)
    tl.debug_barrier()


@triton.jit
def _ban_repeated_ngrams(sequence, length, size, row_logits):
    """Ban tokens that followed an earlier occurrence of the sequence's last `size` - 1 tokens."""
    for begin in range(size - 1, length, _BLOCK):
        places = begin + tl.arange(0, _BLOCK)
        is_same = places < length
        ids = tl.load(sequence + places, mask=is_same, other=0)
        back = tl.full([], 1, tl.int32)
        while (back < size) & (tl.max(is_same.to(tl.int32)) > 0):
            earlier = tl.load(sequence + (places - back), mask=is_same, other=-1)
            is_same = is_same & (earlier == tl.load(sequence + (length - back)))
            back += 1
        tl.store(row_logits + ids, -float("inf"), mask=is_same)
