"""How many draft tokens each sequence may have verified in its next step."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from taco_proto.steps import IntArray
from taco_scheduler.state.batch import Batch


@dataclass(frozen=True, slots=True)
class DraftLengthLimits:
    """What the operator and the worker allow.

    Attributes:
        max_draft_tokens: of a sequence in a step; 0 if the worker does not speculate.
        max_model_len: longer sequences have none; None: no limit.
        max_requests: with more requests than that nobody has any; None: no limit.
        num_requests: how many there are.
        may_come: whether there may be any drafts in the next step at all.
    """

    max_draft_tokens: int
    max_model_len: int | None
    max_requests: int | None
    num_requests: Callable[[], int]
    may_come: Callable[[], bool]

    def allowed(self, batch: Batch) -> IntArray:
        """`wanted`, and nothing while nobody drafts."""
        return self.wanted(batch) if self.may_come() else np.zeros(batch.limit.size, np.int32)

    def wanted(self, batch: Batch) -> IntArray:
        """Of every slot: what its length leaves room for, before blocks and budgets."""
        if not self.max_draft_tokens or self._is_crowded():
            return np.zeros_like(batch.limit)
        num_tokens = batch.max_num_tokens
        # The token behind the last draft must fit as well.
        wanted = np.clip(batch.limit - num_tokens - 1, 0, self.max_draft_tokens)
        if self.max_model_len is not None:
            wanted[num_tokens + wanted > self.max_model_len] = 0
        return wanted

    def _is_crowded(self) -> bool:
        return self.max_requests is not None and self.num_requests() > self.max_requests
