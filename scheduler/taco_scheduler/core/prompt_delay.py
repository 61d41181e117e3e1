"""Lets prompts gather while others are answered, so that a step computes several of them.

What vLLM knows as its scheduler's delay factor. A step that computes prompts holds up every
sequence that decodes: fewer and larger ones trade the time to the first token for steadier streams.
"""

import math

from taco_scheduler.state.batch import Batch
from taco_scheduler.state.sequence import Sequence


class PromptDelay:
    """Says for one worker whether those who wait should go on waiting."""

    def __init__(self, factor: float, batch: Batch) -> None:
        """`factor`: how long a prompt waits, in steps that compute prompts; 0: not at all."""
        self._factor = factor
        self._batch = batch
        self._last_seconds = 0.0
        self._opens_at = math.inf
        self._now = 0.0
        self._is_open = False

    def begin(self, now: float) -> None:
        """A plan is being made."""
        self._now = now
        self._is_open = False

    def note_prompts(self, seconds: float) -> None:
        """A step that computed prompts took so long."""
        self._last_seconds = seconds

    def holds(self, head: Sequence) -> bool:
        """Whether all who wait should go on waiting; `head` is next. Nobody does while none runs.

        When one has waited for long enough, all may run in that plan: also one that came later and
        stands before it.
        """
        if not self._batch.num_running:
            self._opens_at = math.inf
        if not self._factor or not self._batch.num_running or self._is_open:
            return False
        opens_at = head.request.arrival_time + self._factor * self._last_seconds
        self._opens_at = min(self._opens_at, opens_at)
        if self._now < self._opens_at:
            return True
        self._opens_at = math.inf
        self._is_open = True
        return False
