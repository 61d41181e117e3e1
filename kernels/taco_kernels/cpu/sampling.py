"""Token sampling on the CPU: sample tokens, apply penalties and masks, gather log probabilities.

C++ does the work (sample.h, penalize.h, mask_logits.h and logprobs.h in csrc/sampling/).
"""

import ctypes

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from taco_kernels.cpu import structs
from taco_kernels.cpu.token_masks import MaskColumns
from taco_kernels.library import CpuKernels
from taco_kernels.native.memory import allocate
from taco_kernels.sampling_metadata import Array, Penalties, SamplingMetadata


def sample_tokens(kernels: CpuKernels, logits: Tensor, metadata: SamplingMetadata) -> Tensor:
    """Sample one token per row, independently of the other rows and the number of threads.

    Args:
        logits: float32 [num_rows, vocab_size].

    Returns:
        int64 [num_rows]; NO_TOKEN where the greatest logit is not finite.

    Raises:
        ValueError: a tensor or a column of the wrong type or shape.
    """
    count = logits.shape[0]
    token_ids = torch.empty(count, dtype=torch.int64)
    rows = _rows(logits)
    scratch = _scratch(kernels, rows)
    call = structs.SamplingMetadata(
        rows,
        _column(metadata.temperature, np.float32, count),
        _column(metadata.min_p, np.float32, count),
        _column(metadata.top_k, np.int32, count),
        _column(metadata.top_p, np.float32, count),
        _column(metadata.uniforms, np.float64, count),
        token_ids.data_ptr(),
        scratch.data_ptr(),
    )
    kernels.lib.taco_sample_tokens(kernels.pool, ctypes.byref(call))
    return token_ids


def penalty_scratch(kernels: CpuKernels, vocab_size: int) -> Tensor:
    """Allocates the counters of `penalize`, for calls one after another.

    Returns:
        int32 [num_threads, vocab_size], zeros.

    Raises:
        MemoryError: the system cannot map them.
    """
    size = kernels.num_threads * vocab_size
    return allocate(size * 4).view(torch.int32).view(kernels.num_threads, vocab_size)


def penalize(
    kernels: CpuKernels, logits: Tensor, tokens: Tensor, penalties: Penalties, scratch: Tensor
) -> None:
    """Applies penalties in place: repetition, then presence and frequency, then n-gram bans.

    Args:
        logits: float32 [num_rows, vocab_size].
        tokens: int32 [num_sequences, max_len], token ids within the vocabulary.
        scratch: from `penalty_scratch`.

    Raises:
        ValueError: a tensor or a column of the wrong type or shape.
    """
    if (
        scratch.dtype != torch.int32
        or scratch.shape != (kernels.num_threads, logits.shape[-1])
        or not scratch.is_contiguous()
    ):
        raise ValueError(
            f"scratch must be int32 [{kernels.num_threads}, {logits.shape[-1]}], not "
            f"{scratch.dtype} {tuple(scratch.shape)}"
        )
    if tokens.dtype != torch.int32 or tokens.dim() != 2 or tokens.stride(1) != 1:
        raise ValueError(f"tokens must be int32 rows, not {tokens.dtype} {tuple(tokens.shape)}")
    count = penalties.rows.size
    call = structs.Penalties(
        _rows(logits),
        count,
        _column(penalties.rows, np.int64, count),
        tokens.data_ptr(),
        tokens.stride(0),
        _column(penalties.sequences, np.int32, count),
        _column(penalties.starts, np.int32, count),
        _column(penalties.lengths, np.int32, count),
        _column(penalties.repetition, np.float32, count),
        _column(penalties.presence, np.float32, count),
        _column(penalties.frequency, np.float32, count),
        _column(penalties.ngram_size, np.int32, count),
        scratch.data_ptr(),
    )
    kernels.lib.taco_penalize(kernels.pool, ctypes.byref(call))


def mask_logits(kernels: CpuKernels, logits: Tensor, masks: MaskColumns) -> None:
    """Set the logits of tokens that a row's mask does not allow to -inf, in place.

    Args:
        logits: float32 [num_rows, vocab_size].

    Raises:
        ValueError: a tensor or a column of the wrong type or shape.
    """
    rows, columns = _rows(logits), masks.struct(*logits.shape)
    kernels.lib.taco_mask_logits(kernels.pool, ctypes.byref(rows), ctypes.byref(columns))


def gather_logprobs(
    kernels: CpuKernels, logits: Tensor, token_ids: Array, num_top: Array
) -> tuple[Array, Array, Array]:
    """Log probabilities of one token per row, and of the most likely tokens.

    Args:
        logits: float32 [num_rows, vocab_size].
        token_ids: int64 [num_rows].
        num_top: int32 [num_rows], at most vocab_size.

    Returns:
        ids (int64) and log probabilities (float32), both [num_rows, 1 + the largest num_top]: the
        row's token, then its num_top most likely ones, best first and lowest id first among
        equals; the rest is undefined. ranks (int64 [num_rows]) of the tokens, from 1.

    Raises:
        ValueError: a tensor or a column of the wrong type or shape.
    """
    count = logits.shape[0]
    width = 1 + int(num_top.max(initial=0))
    ids = np.empty((count, width), np.int64)
    values = np.empty((count, width), np.float32)
    ranks = np.empty(count, np.int64)
    rows = _rows(logits)
    scratch = _scratch(kernels, rows)
    call = structs.Logprobs(
        rows,
        _column(token_ids, np.int64, count),
        _column(num_top, np.int32, count),
        width,
        ids.ctypes.data,
        values.ctypes.data,
        ranks.ctypes.data,
        scratch.data_ptr(),
    )
    kernels.lib.taco_gather_logprobs(kernels.pool, ctypes.byref(call))
    return ids, values, ranks


def _rows(logits: Tensor) -> structs.LogitRows:
    if logits.dtype != torch.float32 or logits.dim() != 2 or logits.stride(1) != 1:
        raise ValueError(f"logits must be float32 rows, not {logits.dtype} {tuple(logits.shape)}")
    count, vocab_size = logits.shape
    return structs.LogitRows(logits.data_ptr(), count, vocab_size, logits.stride(0))


def _scratch(kernels: CpuKernels, rows: structs.LogitRows) -> Tensor:
    size = kernels.lib.taco_sampling_scratch(ctypes.byref(rows), kernels.num_threads)
    return torch.empty(size, dtype=torch.uint8)


def _column(column: Array, dtype: npt.DTypeLike, count: int) -> int:
    if column.dtype != dtype or column.shape != (count,) or not column.flags.c_contiguous:
        raise ValueError(
            f"a column must be {np.dtype(dtype)} [{count}], not {column.dtype} {column.shape}"
        )
    return int(column.ctypes.data)
