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
        max_forced_tokens: drafts of a sequence in a step that its grammar forces; 0 if the worker
            drafts none.
        max_model_len: longer sequences verify no drafts; None: no limit.
        max_requests: with more requests, no sequence verifies drafts; None: no limit.
        num_requests: returns the number of requests.
        may_draft: returns whether the next step may have drafts that no grammar forces.
    """

    max_draft_tokens: int
    max_forced_tokens: int
    max_model_len: int | None
    max_requests: int | None
    num_requests: Callable[[], int]
    may_draft: Callable[[], bool]

    def allowed(self, batch: Batch) -> IntArray | None:
        """Draft tokens of every slot, before blocks and budgets count: drafts of a drafter, and
        those that grammars force.

        None if no slot may have drafts in the next step.
        """
        max_drafts = self.max_draft_tokens if self.may_draft() else 0
        has_grammars = self.max_forced_tokens > 0 and bool(batch.has_grammar.any())
        if not has_grammars:
            if not max_drafts:
                return None
            wanted = self._by_length(batch, max_drafts)
        else:
            most = max(max_drafts, self.max_forced_tokens)
            wanted = self._by_length(batch, np.where(batch.has_grammar, most, max_drafts))
        return wanted if wanted.any() else None

    def wanted(self, batch: Batch) -> IntArray:
        """Draft tokens that every slot may get from a draft worker, by its sequence's length."""
        if not self.max_draft_tokens:
            return np.zeros_like(batch.limit)
        return self._by_length(batch, self.max_draft_tokens)

    def _by_length(self, batch: Batch, max_drafts: IntArray | int) -> IntArray:
        if self._has_too_many_requests():
            return np.zeros_like(batch.limit)
        num_tokens = batch.max_num_tokens
        # The token behind the last draft must fit as well.
        wanted: IntArray = np.clip(batch.limit - num_tokens - 1, 0, max_drafts)
        if self.max_model_len is not None:
            wanted[num_tokens + wanted > self.max_model_len] = 0
        wanted[batch.is_beam] = 0  # the token behind a beam's is not known
        return wanted

    def _has_too_many_requests(self) -> bool:
        return self.max_requests is not None and self.num_requests() > self.max_requests
