"""What drafting really gained, whatever was promised of it."""

_FADE = 0.97  # of older steps, with each
# So many steps have to be seen, and what they lose may be such a share of the time.
_MIN_STEPS = 24
_LOSS_SHARE = 0.02


class MeasuredSpeedup:
    """The time that plain steps would have taken for the tokens that came, over the time that they
    did take.

    Estimates leave things out: sequences that wait for their drafts leave steps half empty, the
    draft model reads every prompt, and both models may have to share their cores.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._plain_seconds = self._seconds = 0.0
        self._num_steps = 0

    def note(self, plain_seconds: float, seconds: float) -> None:
        """A step with drafts, which plain ones would have taken `plain_seconds` for."""
        self._plain_seconds = _FADE * self._plain_seconds + plain_seconds
        self._seconds = _FADE * self._seconds + seconds
        self._num_steps += 1

    @property
    def is_loss(self) -> bool:
        """Enough steps have been seen to say that plain ones would have been faster."""
        return self._num_steps >= _MIN_STEPS and self._plain_seconds < self._seconds

    @property
    def num_steps_to_rest(self) -> int:
        """Plain steps after which trying once more costs next to nothing."""
        loss = self._seconds / max(self._plain_seconds, 1e-9) - 1
        return int(min(loss, 10.0) * _MIN_STEPS / _LOSS_SHARE)
