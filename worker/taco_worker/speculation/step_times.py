"""How long a step of so many tokens takes, learned from the steps that ran."""

from __future__ import annotations

import numpy as np

from taco_worker.sampling.columns import Array

# Sizes that are told apart: 1 to 8 one by one, then four to each doubling.
_SIZES = np.unique(
    np.concatenate([np.arange(1, 9), np.round(2 ** np.arange(3, 15.01, 0.25))]).astype(np.int64)
)
# Of a size that has not run: what each token beyond the next smaller size is believed to cost, as
# a share of that size's step. Low, so that it is tried.
_BELIEVED_SLOPE = 0.02
_WEIGHT = 0.2  # of the newest step
# A step that was held up by something else counts as at most so many times what was expected.
_MAX_SURPRISE = 1.5
# Somewhat larger sizes than those that run drift to what was believed of them, so that they are
# tried again.
_DRIFT = 0.002
_DRIFT_REACH = 16


class StepTimes:
    """Seconds by number of tokens; contexts grow and machines are shared, so that it forgets."""

    def __init__(self) -> None:
        self._seconds = np.zeros(_SIZES.size)
        self._is_known = np.zeros(_SIZES.size, dtype=np.bool_)

    @property
    def is_ready(self) -> bool:
        """Some step has been measured."""
        return bool(self._is_known.any())

    def observe(self, num_tokens: int, seconds: float) -> None:
        place = _place(num_tokens)
        if self._is_known[place]:
            old = self._seconds[place]
            self._seconds[place] += _WEIGHT * (min(seconds, _MAX_SURPRISE * old) - old)
        else:
            self._seconds[place] = seconds
            self._is_known[place] = True
        self._drift(place)

    def estimate(self, num_tokens: Array) -> Array:
        """float64 of the same shape; never falling as the number of tokens rises."""
        known = np.flatnonzero(self._is_known)
        sizes, seconds = _SIZES[known], np.maximum.accumulate(self._seconds[known])
        beyond = np.maximum(num_tokens - sizes[-1], 0)
        slope = _BELIEVED_SLOPE * seconds[-1]
        if sizes.size > 1:
            slope = max(slope, (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]))
        estimates: Array = np.interp(num_tokens, sizes, seconds) + slope * beyond
        return estimates

    def _drift(self, fresh: int) -> None:
        """Larger steps that have not run lately may have become cheaper than they once were."""
        beyond = _SIZES - _SIZES[fresh]
        stale = self._is_known & (beyond > 0) & (beyond <= _DRIFT_REACH + _SIZES[fresh])
        believed = self._seconds[fresh] * (1 + _BELIEVED_SLOPE * beyond[stale])
        self._seconds[stale] += _DRIFT * (believed - self._seconds[stale])


def _place(num_tokens: int) -> int:
    """The nearest size."""
    place = int(np.searchsorted(_SIZES, num_tokens))
    if place == _SIZES.size:
        return place - 1
    if place and num_tokens - _SIZES[place - 1] < _SIZES[place] - num_tokens:
        return place - 1
    return place
