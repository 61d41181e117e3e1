"""Splits a step that runs out of memory into smaller steps."""

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
    """Run all rows at once; on out of memory, run them as two halves, recursively.

    A step's working memory grows with its tokens. Rows depend on each other only
    through KV that was written before, so the halves return what the whole step would return.

    Raises:
        RuntimeError, MemoryError: a step of one token does not fit, or the error is another one.
    """
    try:
        return [run(rows)]
    except (RuntimeError, MemoryError) as error:
        smaller = _split(rows) if _is_out_of_memory(error) else ()
        if not smaller:
            raise
        reason = str(error).partition("\n")[0]
    # Outside the handler: its exception references the memory of the failed step.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    logger.warning(
        "out of memory in a step of %d tokens; retrying it as smaller steps: %s",
        rows.num_new_tokens.sum(),
        reason,
    )
    return [part for some in smaller for part in split_on_out_of_memory(run, some)]


def _is_out_of_memory(error: Exception) -> bool:
    """Recognize out of memory: by class for torch's GPU allocator and for Python, by message for
    torch's CPU allocator, libraries and Triton.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = ("out of memory", "ALLOC_FAILED", "can't allocate memory")
    return any(word in str(error) for word in words)


def _split(rows: StepRows) -> Sequence[StepRows]:
    """Split a step: first drop the drafts, then halve the tokens, in order. A row may be cut
    between its tokens. A step of one token gives nothing."""
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
