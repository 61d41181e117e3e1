"""Log probabilities of beams whose parameters change the logits.

As in transformers' beam search, penalties, bias and bans change a beam's log probabilities, which
are not normalized again: a ban makes no other token more likely.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from taco_worker.sampling.logprobs import LogprobTable


def normalize(logits: Tensor, rows: Tensor, temperature: Tensor) -> None:
    """Replace the logits of some rows by log probabilities.

    Args:
        logits: float32 [num_rows, vocab_size].
        rows: int64 [num_beams].
        temperature: float32 [num_beams], above 0; it divides the logits.
    """
    logits[rows] = torch.log_softmax(logits[rows] / temperature[:, None], dim=-1)


def without_normalization(table: LogprobTable, rows: Tensor, scores: Tensor) -> LogprobTable:
    """Take the normalization out of some rows of a table.

    Args:
        rows: int64 [num_beams], rows of the table.
        scores: float32 [num_beams, vocab_size], which the rows were made from.
    """
    logprobs = table.logprobs.clone()
    logprobs[rows] += torch.logsumexp(scores, dim=-1, keepdim=True)
    return replace(table, logprobs=logprobs)
