"""Log probabilities of sampled tokens and of the top tokens, as columns of the step's output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from taco_proto.logprobs import LogprobColumns
from taco_worker.sampling.ops import SamplingOps
from taco_worker.sampling.slot_params import NO_LOGPROBS, Array


@dataclass(frozen=True, slots=True)
class LogprobTable:
    """One row per position: the token itself, then the top tokens.

    Attributes:
        token_ids: int64 [num_rows, width].
        logprobs: float32 [num_rows, width].
        ranks: int64 [num_rows], of the token itself.
        num_top: int [num_rows], the number of top tokens requested; NO_LOGPROBS: the position has
            no row in this table.
    """

    token_ids: Tensor
    logprobs: Tensor
    ranks: Tensor
    num_top: Array

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.token_ids, self.logprobs, self.ranks

    def columns(self, arrived: Iterator[Tensor]) -> LogprobColumns:
        """Build the columns; `arrived` yields the three tensors on the host, in their order."""
        token_ids, logprobs, token_ranks = (next(arrived).numpy() for _ in range(3))
        num_entries = np.where(self.num_top == NO_LOGPROBS, 0, self.num_top + 1)
        if token_ids.shape[1] == 1:
            return LogprobColumns(num_entries, token_ids[:, 0], logprobs[:, 0], token_ranks)
        num_top = self.num_top[self.num_top != NO_LOGPROBS]
        entries = np.arange(token_ids.shape[1])
        wanted = entries <= num_top[:, np.newaxis]
        ranks = np.broadcast_to(entries, wanted.shape).copy()
        ranks[:, 0] = token_ranks
        return LogprobColumns(
            num_entries=num_entries,
            token_ids=token_ids[wanted],
            logprobs=logprobs[wanted],
            ranks=ranks[wanted],
        )


def gather_logprobs(
    ops: SamplingOps, logits: Tensor, token_ids: Tensor, num_top: Array
) -> LogprobTable:
    """Compute the table of the positions whose log probabilities were requested.

    Args:
        logits: float32 [number of such positions, vocab_size], the model's raw logits.
        token_ids: int64, the token at each of these positions.
        num_top: int32 [num_rows] of all positions: NO_LOGPROBS, or at most vocab_size.
    """
    asked = num_top[num_top != NO_LOGPROBS]
    return LogprobTable(*ops.gather_logprobs(logits, token_ids, asked), num_top)
