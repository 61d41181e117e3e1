"""Log probabilities of sampled tokens and of others, as columns of the step's output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from taco_proto.logprobs import LogprobColumns
from taco_worker.devices.transfers import Transfers
from taco_worker.sampling.ops import SamplingOps
from taco_worker.sampling.slot_params import NO_LOGPROBS, Array


@dataclass(frozen=True, slots=True)
class LogprobTable:
    """One row per position: the token itself, then the top tokens or the listed ones.

    Attributes:
        token_ids: integers [num_rows, width]; negative in rows whose step failed.
        logprobs: float32 [num_rows, width].
        ranks: int64 [num_rows], of the token itself; [num_rows, width] if tokens are listed. None:
            each row has its most likely token alone.
        num_top: int [num_rows], the number of other tokens requested; NO_LOGPROBS: the position
            has no row in this table.
    """

    token_ids: Tensor
    logprobs: Tensor
    ranks: Tensor | None
    num_top: Array

    def tensors(self) -> list[Tensor]:
        ranks = [] if self.ranks is None else [self.ranks]
        return [self.token_ids, self.logprobs, *ranks]

    def columns(self, arrived: Iterator[Tensor]) -> LogprobColumns:
        """Build the columns; `arrived` yields the tensors on the host, in their order."""
        token_ids, logprobs = (next(arrived).numpy() for _ in range(2))
        num_entries = np.where(self.num_top == NO_LOGPROBS, 0, self.num_top + 1)
        if self.ranks is None:
            token_ranks = np.ones(len(token_ids), np.int64)
        else:
            token_ranks = next(arrived).numpy()
        if token_ids.shape[1] == 1:
            own_ids = np.maximum(token_ids[:, 0], 0)
            return LogprobColumns(num_entries, own_ids, logprobs[:, 0], token_ranks)
        num_top = self.num_top[self.num_top != NO_LOGPROBS]
        entries = np.arange(token_ids.shape[1])
        wanted = entries <= num_top[:, np.newaxis]
        ranks = token_ranks
        if ranks.ndim == 1:
            ranks = np.broadcast_to(entries, wanted.shape).copy()
            ranks[:, 0] = token_ranks
        return LogprobColumns(
            num_entries=num_entries,
            token_ids=token_ids[wanted],
            logprobs=logprobs[wanted],
            ranks=ranks[wanted],
        )


class OwnLogprobs:
    """Makes the table of most likely tokens whose rows want their own log probabilities alone.

    What needs no tokens is done before the model runs: after it, the CPU's caches hold none of the
    host's code and data.
    """

    def __init__(self, num_top: Array, transfers: Transfers) -> None:
        """`num_top`: as in `LogprobTable`, at most 0, and not NO_LOGPROBS in every row."""
        self._num_top = num_top
        self._index: Tensor | None = None
        if num_top.min() == NO_LOGPROBS:
            (self._index,) = transfers.upload(np.flatnonzero(num_top != NO_LOGPROBS))

    def table(self, token_ids: Tensor, values: Tensor) -> LogprobTable:
        """`token_ids`, `values`: [num_top.size], of all rows."""
        if self._index is not None:
            token_ids, values = token_ids[self._index], values[self._index]
        return LogprobTable(token_ids[:, None], values[:, None], None, self._num_top)


def gather_logprobs(
    ops: SamplingOps,
    logits: Tensor,
    token_ids: Tensor,
    num_top: Array,
    listed: Sequence[Array] | None = None,
) -> LogprobTable:
    """Compute the table of the positions whose log probabilities were requested.

    Args:
        logits: float32 [number of such positions, vocab_size], the model's raw logits.
        token_ids: int64, the token at each of these positions.
        num_top: int32 [num_rows] of all positions: NO_LOGPROBS, or at most vocab_size.
        listed: for each of these positions the tokens that replace the most likely ones, as many
            as `num_top` says; empty: the position has the most likely ones. None: all have.
    """
    asked = num_top[num_top != NO_LOGPROBS]
    if listed is None:
        return LogprobTable(*ops.gather_logprobs(logits, token_ids, asked), num_top)
    is_listed = np.array([ids.size > 0 for ids in listed])
    top = np.where(is_listed, 0, asked).astype(asked.dtype)
    ids, logprobs, own_ranks = ops.gather_logprobs(logits, token_ids, top)
    missing = 1 + int(asked.max()) - ids.shape[1]
    ids, logprobs = functional.pad(ids, (0, missing)), functional.pad(logprobs, (0, missing))
    ranks = torch.arange(ids.shape[1], device=ids.device).repeat(ids.shape[0], 1)
    ranks[:, 0] = own_ranks
    for row in np.flatnonzero(is_listed).tolist():
        index = torch.from_numpy(listed[row]).to(logits.device)
        places = slice(1, 1 + index.numel())
        found, own = logits[row, index], logits[row, ids[row, 0]]
        ids[row, places] = index
        # The difference of two log probabilities is that of the logits.
        logprobs[row, places] = logprobs[row, 0] + (found - own)
        ranks[row, places] = (logits[row] > found.unsqueeze(1)).sum(1) + 1
    return LogprobTable(ids, logprobs, ranks, num_top)
