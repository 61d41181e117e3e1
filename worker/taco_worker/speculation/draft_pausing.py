"""When a drafter costs more time than its drafts save, it rests."""

from __future__ import annotations

_WEIGHT = 0.15  # of the newest step
_FIRST_GAIN = 1.1  # believed of a drafter that has not drafted yet
_MIN_GAIN = 0.995
# Trying again may take such a share of the time.
_TRIAL_SHARE = 0.02


class DraftPause:
    """Steps with drafts are worth it while they give more tokens a second, the time to make the
    drafts included, than plain ones would. Else the drafter rests for so many steps that trying
    again hardly costs anything: a cheap one hardly rests, a slow one for long.
    """

    def __init__(self) -> None:
        self._gain = _FIRST_GAIN
        self._draft_seconds = 0.0
        self._num_steps_left = 0

    @property
    def is_paused(self) -> bool:
        """The drafter is to be left alone in this step."""
        return self._num_steps_left > 0

    @property
    def draft_seconds(self) -> float:
        """What drafting takes in a step."""
        return self._draft_seconds

    def record_draft_time(self, seconds: float) -> None:
        """Making the drafts of a step took so long."""
        if not self._draft_seconds:
            self._draft_seconds = seconds
        self._draft_seconds += _WEIGHT * (
            min(seconds, 3 * self._draft_seconds) - self._draft_seconds
        )

    def record_speedup(self, gain: float, plain_seconds: float) -> None:
        """A step with drafts promised so many times the tokens a second of a plain one.

        Args:
            plain_seconds: what the plain one would take.
        """
        self._gain += _WEIGHT * (gain - self._gain)
        if self._gain < _MIN_GAIN:
            self._num_steps_left = int(self._draft_seconds / (_TRIAL_SHARE * plain_seconds))
            self._gain = _MIN_GAIN

    def count_step(self) -> None:
        """A step is over."""
        self._num_steps_left = max(0, self._num_steps_left - 1)
