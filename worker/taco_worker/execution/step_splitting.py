"""A step that the device's memory does not hold, in halves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch

from taco_worker.batch.input_batch import StepRows

logger = logging.getLogger("taco.worker")

T = TypeVar("T")


def split_on_out_of_memory(run: Callable[[StepRows], T], rows: StepRows) -> list[T]:
    """What `run` gives for all rows, or for halves of them one after the other.

    What a step needs beside weights and KV grows with its tokens, and rows do not depend on each
    other but through KV that was written before: halves give what the whole would have given.

    Raises:
        RuntimeError, MemoryError: not even one token's step fits, or something else failed.
    """
    try:
        return [run(rows)]
    except (RuntimeError, MemoryError) as error:
        smaller = _split(rows) if _is_out_of_memory(error) else ()
        if not smaller:
            raise
        reason = str(error).partition("\n")[0]
    # Outside the handler, whose exception holds on to what the failed step had allocated.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    logger.warning(
        "out of memory in a step of %d tokens, which goes on in smaller ones: %s",
        rows.num_new_tokens.sum(),
        reason,
    )
    return [part for some in smaller for part in split_on_out_of_memory(run, some)]


def _is_out_of_memory(error: Exception) -> bool:
    """torch's allocator of a GPU and Python's own say so by a class; torch's allocator of a CPU,
    libraries and Triton by their words.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = ("out of memory", "ALLOC_FAILED", "can't allocate memory")
    return any(word in str(error) for word in words)


def _split(rows: StepRows) -> Sequence[StepRows]:
    """The step without drafts; else two of about as many tokens each, in order, where a row may be
    cut between its tokens; nothing if there is but one token."""
    if rows.trees is not None:
        return (rows.without_drafts(),)
    num_tokens = int(rows.num_new_tokens.sum())
    if num_tokens < 2:
        return ()
    ends = np.cumsum(rows.num_new_tokens, dtype=np.int32)
    half = num_tokens // 2
    first_len = np.clip(half - (ends - rows.num_new_tokens), 0, rows.num_new_tokens)
    rest_len = rows.num_new_tokens - first_len
    first = replace(rows, num_new_tokens=first_len, is_sampled=rows.is_sampled & (rest_len == 0))
    rest = replace(
        rows,
        num_computed_tokens=rows.num_computed_tokens + first_len,
        num_new_tokens=rest_len,
    )
    return _without_empty(first), _without_empty(rest)


def _without_empty(rows: StepRows) -> StepRows:
    runs = rows.num_new_tokens > 0
    return StepRows(
        rows.slots[runs],
        rows.num_computed_tokens[runs],
        rows.num_new_tokens[runs],
        rows.is_sampled[runs],
        rows.max_drafts[runs],
    )
