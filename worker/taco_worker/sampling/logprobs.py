"""Log probabilities of chosen and of most likely tokens, as the columns that travel."""

import numpy as np
from torch import Tensor

from taco_proto.logprobs import LogprobColumns
from taco_worker.sampling.columns import NO_LOGPROBS, Array
from taco_worker.sampling.ops import SamplingOps


def gather_logprobs(
    ops: SamplingOps, logits: Tensor, token_ids: Tensor, num_top: Array
) -> LogprobColumns:
    """One row of entries a position: the token itself, then the most likely ones.

    Args:
        logits: float32 [num_rows, vocab_size], as the model gave them.
        token_ids: int64 [num_rows], the token at each position.
        num_top: int32 [num_rows], how many most likely tokens each row wants; at most vocab_size.
    """
    ids, values, token_ranks = ops.gather_logprobs(logits, token_ids, num_top)
    entries = np.arange(ids.shape[1])
    wanted = entries <= num_top[:, np.newaxis]
    ranks = np.broadcast_to(entries, wanted.shape).copy()
    ranks[:, 0] = token_ranks
    return LogprobColumns(
        num_entries=(num_top + 1).tolist(),
        token_ids=ids[wanted].tolist(),
        logprobs=values[wanted].tolist(),
        ranks=ranks[wanted].tolist(),
    )


def spread_rows(columns: LogprobColumns, num_top: Array) -> LogprobColumns:
    """The same entries among the rows of a whole step, of which some asked for none.

    Args:
        columns: rows of those that asked.
        num_top: int [num_rows], NO_LOGPROBS where nothing was asked for.
    """
    columns.num_entries = np.where(num_top == NO_LOGPROBS, 0, num_top + 1).tolist()
    return columns
