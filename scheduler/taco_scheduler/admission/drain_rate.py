"""Measures how fast the admission queue drains, to tell rejected clients when to retry."""

from collections import deque

# The rate covers the latest seconds in which the queue was not empty.
RATE_SECONDS = 5.0
SAMPLE_SECONDS = 0.25


class DrainRate:
    """Prompt tokens a second that left the queue over the latest seconds with waiting requests."""

    def __init__(self) -> None:
        self._busy_seconds = 0.0
        self._num_tokens = 0
        self._now: float | None = None
        self._samples: deque[tuple[float, int]] = deque([(0.0, 0)])

    def tick(self, now: float, *, is_queue_empty: bool) -> None:
        """Advance the clock; time with an empty queue does not count."""
        if self._now is not None and not is_queue_empty:
            self._busy_seconds += max(0.0, now - self._now)
        self._now = now
        if self._busy_seconds - self._samples[-1][0] >= SAMPLE_SECONDS:
            self._samples.append((self._busy_seconds, self._num_tokens))
            while self._busy_seconds - self._samples[1][0] >= RATE_SECONDS:
                self._samples.popleft()

    def count(self, num_tokens: int) -> None:
        """Count tokens that left the queue."""
        self._num_tokens += num_tokens

    def tokens_per_second(self) -> float | None:
        """The rate; None before requests have waited for `SAMPLE_SECONDS`."""
        seconds, num_tokens = self._samples[0]
        elapsed = self._busy_seconds - seconds
        if elapsed < SAMPLE_SECONDS:
            return None
        return (self._num_tokens - num_tokens) / elapsed
