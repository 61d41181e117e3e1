"""Prompt delay: prompts wait and gather, so that one step computes several of them.

The same as vLLM's scheduler delay factor. A step that computes prompts delays every sequence that
decodes. Fewer, larger steps with prompts give a later first token and a steadier token stream.
"""

import math

from taco_scheduler.state.batch import Batch
from taco_scheduler.state.sequence import Sequence


class PromptDelay:
    """Tells for one worker whether the waiting prompts wait longer."""

    def __init__(self, factor: float, batch: Batch) -> None:
        """`factor`: how long a prompt waits, in steps that compute prompts; 0: no delay."""
        self._factor = factor
        self._batch = batch
        self._last_seconds = 0.0
        self._opens_at = math.inf
        self._now = 0.0
        self._is_open = False

    def begin(self, now: float) -> None:
        """Begin a plan."""
        self._now = now
        self._is_open = False

    def note_prompts(self, seconds: float) -> None:
        """Record how long a step that computed prompts took."""
        self._last_seconds = seconds

    def must_wait(self, head: Sequence) -> bool:
        """Whether all waiting sequences wait; `head` is the first of them.

        No sequence waits while none runs. Once one sequence has waited long enough, that plan may
        admit all of them, also later ones of higher rank.
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
