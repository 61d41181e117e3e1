"""Draft length limits: how many draft tokens a sequence may verify in its next step."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from taco_proto.steps import IntArray
from taco_scheduler.state.batch import Batch


@dataclass(frozen=True, slots=True)
class DraftLengthLimits:
    """The limits of the operator and of the worker.

    Attributes:
        max_draft_tokens: of a sequence in a step; 0 if the worker does not speculate.
        max_model_len: longer sequences verify no drafts; None: no limit.
        max_requests: with more requests, no sequence verifies drafts; None: no limit.
        num_requests: returns the number of requests.
        may_draft: returns whether the next step may have any drafts.
    """

    max_draft_tokens: int
    max_model_len: int | None
    max_requests: int | None
    num_requests: Callable[[], int]
    may_draft: Callable[[], bool]

    def allowed(self, batch: Batch) -> IntArray | None:
        """The same as `wanted`; None if no slot may have drafts in the next step."""
        if not self.max_draft_tokens or not self.may_draft():
            return None
        wanted = self.wanted(batch)
        return wanted if wanted.any() else None

    def wanted(self, batch: Batch) -> IntArray:
        """Draft tokens of every slot by its sequence's length, before blocks and budgets count."""
        if not self.max_draft_tokens or self._has_too_many_requests():
            return np.zeros_like(batch.limit)
        num_tokens = batch.max_num_tokens
        # The token behind the last draft must fit as well.
        wanted = np.clip(batch.limit - num_tokens - 1, 0, self.max_draft_tokens)
        if self.max_model_len is not None:
            wanted[num_tokens + wanted > self.max_model_len] = 0
        return wanted

    def _has_too_many_requests(self) -> bool:
        return self.max_requests is not None and self.num_requests() > self.max_requests
