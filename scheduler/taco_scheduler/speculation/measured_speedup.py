"""Measured speed-up of speculative decoding over plain steps."""

_FADE = 0.97  # factor of older steps, with each new one
# Steps to measure before a verdict, and the part of the time that they may cost.
_MIN_STEPS = 24
_LOSS_SHARE = 0.02


class MeasuredSpeedup:
    """Time that plain steps would have taken for the same tokens, over the measured time.

    The controller's estimates leave out some costs: sequences that await drafts leave steps half
    empty, the draft model reads every prompt, and both models may share cores.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._plain_seconds = self._seconds = 0.0
        self._num_steps = 0

    def note(self, plain_seconds: float, seconds: float) -> None:
        """Record a step with drafts; plain steps would have taken `plain_seconds`."""
        self._plain_seconds = _FADE * self._plain_seconds + plain_seconds
        self._seconds = _FADE * self._seconds + seconds
        self._num_steps += 1

    @property
    def is_slowdown(self) -> bool:
        """Whether plain steps would have been faster, after enough steps."""
        return self._num_steps >= _MIN_STEPS and self._plain_seconds < self._seconds

    @property
    def num_steps_to_pause(self) -> int:
        """Plain steps before the next attempt, so that attempts cost little."""
        loss = self._seconds / max(self._plain_seconds, 1e-9) - 1
        return int(min(loss, 10.0) * _MIN_STEPS / _LOSS_SHARE)
