"""Typical acceptance: accepts likely drafts even if the target did not sample them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from taco_kernels.native.draft_trees import DraftTrees
from taco_kernels.sampling_metadata import SamplingMetadata
from taco_worker.devices.transfers import Transfers
from taco_worker.sampling.slot_params import Array


@dataclass(frozen=True, slots=True)
class Candidates:
    """Drafts that may be accepted; each follows a row of the step's logits.

    Attributes:
        rows: int64 [num_candidates].
        token_ids: int64 [num_candidates].
    """

    rows: Array
    token_ids: Array


@dataclass(frozen=True, slots=True)
class TypicalAcceptance:
    """Accepts a draft whose probability exceeds min(threshold, alpha * exp(-entropy)).

    Cai et al., "Medusa" (2024), section 3.3.1. It accepts more drafts than exact verification, but
    the text is no longer a sample of the target's distribution.
    """

    threshold: float
    alpha: float

    def prefer(
        self,
        logits: Tensor,
        metadata: SamplingMetadata,
        chosen: Tensor,
        candidates: Candidates,
        transfers: Transfers,
    ) -> Tensor:
        """Replace `chosen` by the most likely acceptable draft, in rows that sample at random.

        Rows with a filter (min_p, top_k, top_p) keep their sample: a draft may be outside of it.

        Args:
            logits: float32 [num_rows, vocab_size].
            metadata: of the rows of the logits.
            chosen: int64 [num_rows].
        """
        is_filtered = (metadata.min_p > 0) | (metadata.top_k > 0) | (metadata.top_p < 1)
        may_replace = ((metadata.temperature > 0) & ~is_filtered)[candidates.rows]
        if not may_replace.any():
            return chosen
        rows, places = np.unique(candidates.rows[may_replace], return_inverse=True)
        token_ids, index, warmth, place = transfers.upload(
            candidates.token_ids[may_replace], rows, metadata.temperature[rows], places
        )
        log_probs = torch.log_softmax(logits[index] / warmth.unsqueeze(1), dim=-1)
        probs = log_probs.exp()
        # A banned token has probability 0 and adds nothing.
        entropy = -(probs * log_probs.masked_fill(probs == 0, 0.0)).sum(-1)
        limits = torch.clamp(self.alpha * torch.exp(-entropy), max=self.threshold)
        chances = probs[place, token_ids]
        chances = torch.where(chances > limits[place], chances, 0.0)
        best = torch.zeros(rows.size, dtype=chances.dtype, device=logits.device)
        best.scatter_reduce_(0, place, chances, reduce="amax")
        # Of equally likely drafts take the first: write last to first, the last write stays.
        wins = (chances > 0) & (chances == best[place])
        preferred = chosen.clone()
        for candidate in reversed(wins.nonzero().squeeze(1).tolist()):
            preferred[index[place[candidate]]] = token_ids[candidate]
        return preferred


def draft_candidates(trees: DraftTrees, is_sampled: Array) -> Candidates:
    """The drafts of a step; its sampled rows have logits after their own token and each draft."""
    num_nodes = trees.num_nodes[is_sampled]
    roots = np.cumsum(num_nodes + 1) - num_nodes - 1
    rows = np.repeat(roots, num_nodes) + 1 + trees.parents
    return Candidates(rows.astype(np.int64), trees.token_ids.astype(np.int64))
