"""Pauses a drafter whose drafts cost more time than they save."""

from __future__ import annotations

_WEIGHT = 0.15  # of the newest step in the moving averages
_FIRST_GAIN = 1.1  # assumed speed-up before the first draft
_MIN_GAIN = 0.995
# Maximum fraction of time for retrying a paused drafter.
_TRIAL_SHARE = 0.02


class DraftPause:
    """Tracks the speed-up of steps with drafts: tokens per second, the drafting time included,
    relative to plain steps. Below 1 it pauses the drafter. The pause is proportional to the
    drafting time: a cheap drafter pauses briefly, a slow one for long.
    """

    def __init__(self) -> None:
        self._gain = _FIRST_GAIN
        self._draft_seconds = 0.0
        self._num_steps_left = 0

    @property
    def is_paused(self) -> bool:
        """Whether the drafter is paused in this step."""
        return self._num_steps_left > 0

    @property
    def lasts(self) -> bool:
        """Whether the drafter is also paused in the next step."""
        return self._num_steps_left > 1

    @property
    def draft_seconds(self) -> float:
        """Average time to make a step's drafts."""
        return self._draft_seconds

    def record_draft_time(self, seconds: float) -> None:
        """Update the average drafting time."""
        if not self._draft_seconds:
            self._draft_seconds = seconds
        self._draft_seconds += _WEIGHT * (
            min(seconds, 3 * self._draft_seconds) - self._draft_seconds
        )

    def record_speedup(self, gain: float, plain_seconds: float) -> None:
        """Update the average speed-up.

        Args:
            gain: expected tokens per second of a step with drafts, relative to a plain step.
            plain_seconds: expected duration of the plain step.
        """
        self._gain += _WEIGHT * (gain - self._gain)
        if self._gain < _MIN_GAIN:
            self._num_steps_left = int(self._draft_seconds / (_TRIAL_SHARE * plain_seconds))
            self._gain = _MIN_GAIN

    def count_step(self) -> None:
        """Count a step of the pause."""
        self._num_steps_left = max(0, self._num_steps_left - 1)
