"""Lets prompts gather while others are answered, so that a step computes several of them.

What vLLM knows as its scheduler's delay factor. A step that computes prompts holds up every
sequence that decodes: fewer and larger ones trade the time to the first token for steadier streams.
"""

import math

from taco_scheduler.batch import Batch
from taco_scheduler.sequence import Sequence


class PromptDelay:
    """Says for one worker whether those who wait should go on waiting.

    Attributes:
        now: the time of the plan that is being made.
    """

    def __init__(self, factor: float, batch: Batch) -> None:
        """`factor`: how long a prompt waits, in steps that compute prompts; 0: not at all."""
        self.now = 0.0
        self._factor = factor
        self._batch = batch
        self._last_seconds = 0.0
        self._opens_at = math.inf

    def note_prompts(self, seconds: float) -> None:
        """A step that computed prompts took so long."""
        self._last_seconds = seconds

    def holds(self, head: Sequence) -> bool:
        """Whether all who wait should go on waiting; `head` is next. Nobody does while none runs.

        When one has waited for long enough, all may run: also one that came later and stands
        before it.
        """
        if not self._factor or not self._batch.num_running:
            return False
        opens_at = head.request.arrival_time + self._factor * self._last_seconds
        self._opens_at = min(self._opens_at, opens_at)
        if self.now < self._opens_at:
            return True
        self._opens_at = math.inf
        return False
