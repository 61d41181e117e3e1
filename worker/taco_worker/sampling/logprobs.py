"""Log probabilities of chosen and of most likely tokens, as the columns that travel."""

import numpy as np
import torch
from torch import Tensor

from taco_proto.logprobs import LogprobColumns
from taco_worker.sampling.columns import NO_LOGPROBS, Array


def gather_logprobs(logprobs: Tensor, token_ids: Tensor, num_top: Array) -> LogprobColumns:
    """One row of entries a position: the token itself, then the most likely ones.

    Args:
        logprobs: float32 [num_rows, vocab_size], log_softmax of raw logits.
        token_ids: int64 [num_rows], the token at each position.
        num_top: int [num_rows], how many most likely tokens each row wants; at most vocab_size.
    """
    chosen = logprobs.gather(1, token_ids.unsqueeze(1))
    rank = (logprobs > chosen).sum(-1, keepdim=True) + 1
    width = int(num_top.max(initial=0))
    top = logprobs.topk(width)

    entries = np.arange(width + 1)
    wanted = entries <= num_top[:, np.newaxis]
    ids = torch.cat((token_ids.unsqueeze(1), top.indices), dim=1).cpu().numpy()
    values = torch.cat((chosen, top.values), dim=1).cpu().numpy()
    ranks = np.broadcast_to(entries, wanted.shape).copy()
    ranks[:, :1] = rank.cpu().numpy()
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
