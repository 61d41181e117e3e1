"""Draft-length controller: chooses how many draft tokens to request from a draft worker."""

import numpy as np

from taco_scheduler.speculation.measured_speedup import MeasuredSpeedup

_WEIGHT = 0.2  # of the newest measurement
_PRIOR_ACCEPTANCE = 0.7
_PRIOR_DRAFTS = 4.0  # that the prior weighs
_MAX_DRAFTS_SEEN = 200.0  # older ones fade
# Part of a step's time that one more row is assumed to cost, before two sizes were measured.
_BELIEVED_SLOPE = 0.02
# Variance of sizes at which the measured slope counts as much as the assumed one.
_DOUBT = 0.02
# Drafts must promise this speed-up, because the whole step waits for them.
_MIN_GAIN = 1.03
# While no drafts are requested, a trial requests a single one from time to time. The draft model
# has to read the missing tokens first. Trials take at most this part of all time, and come at most
# once in this number of steps.
_TRIAL_SHARE = 0.01
_MIN_TRIAL_INTERVAL = 64
# Requests in a row that catch up, after which their times count as the cost of drafts.
_MAX_CATCHING_UP = 8
# Plain steps to measure first, and again after this number of steps with drafts.
_PLAIN_STEPS = 8
_PLAIN_RECHECK_INTERVAL = 512


class DraftLengthController:
    """Chooses the number of draft tokens with the best goodput.

    Goodput is the tokens of a step over the time to draft and verify, one after the other. Plain
    steps are planned ahead, and are faster than such a step without drafts. All times are measured
    while steps run. If drafting is slower than plain steps nevertheless, it pauses.
    """

    def __init__(self, max_drafts: int) -> None:
        self._max_drafts = max_drafts
        self._accepted = np.full(max_drafts, _PRIOR_ACCEPTANCE * _PRIOR_DRAFTS)
        self._reached = np.full(max_drafts, _PRIOR_DRAFTS)
        self._step = _LinearTime(_BELIEVED_SLOPE)
        self._plain = _LinearTime(_BELIEVED_SLOPE)
        self._plain_tokens = 1.0  # tokens of a sequence in a plain step
        self._draft = _LinearTime(1.0)
        self._plain_steps_left = _PLAIN_STEPS
        self._steps_to_plain_recheck = _PLAIN_RECHECK_INTERVAL
        self._steps_to_trial = _MIN_TRIAL_INTERVAL
        self._trial_seconds: float | None = None  # of the current trial; None: no trial
        self._num_catching_up = 0
        self._speedup = MeasuredSpeedup()
        self._steps_to_resume = 0

    def choose(self, num_sequences: int) -> int:
        """Draft tokens to request for each sequence of the next step; 0 is plain decoding.

        To be called once a step.
        """
        if self._plain_steps_left > 0:
            return 0
        if not self._draft.is_known or not self._step.is_known:
            return self._max_drafts
        if self._steps_to_resume > 0:
            self._steps_to_resume -= 1
            return 0
        if self._trial_seconds is not None:
            return 1
        best = self._best(num_sequences)
        if best and self._speedup.is_slowdown:
            self._steps_to_resume = self._speedup.num_steps_to_pause
            self._speedup.clear()
            return 0
        if best:
            self._steps_to_plain_recheck -= 1
            if self._steps_to_plain_recheck <= 0:
                self._steps_to_plain_recheck = _PLAIN_RECHECK_INTERVAL
                self._plain_steps_left = _PLAIN_STEPS
            return best
        self._steps_to_trial -= 1
        if self._steps_to_trial > 0:
            return 0
        self._trial_seconds = 0.0
        return 1

    def _best(self, num_sequences: int) -> int:
        lengths = np.arange(self._max_drafts + 1)
        chances = np.cumprod(self._accepted / self._reached)
        tokens = 1 + np.concatenate([[0.0], np.cumsum(chances)])
        draft_seconds = np.where(lengths > 0, self._draft.at(np.maximum(lengths, 1)), 0.0)
        seconds = self._step.at(num_sequences * (1 + lengths)) + draft_seconds
        if self._plain.is_known:
            seconds[0] = self._plain.at(np.array(num_sequences))
            tokens[0] = self._plain_tokens
        goodput = tokens / np.maximum(seconds, 1e-9)
        best = int(goodput.argmax())
        return best if goodput[best] >= _MIN_GAIN * goodput[0] else 0

    def note_draft(self, num_drafts: int, seconds: float, *, caught_up: bool) -> None:
        """Record how long a request for drafts took.

        Args:
            num_drafts: requested draft tokens of each sequence.
            caught_up: the draft model first read more than the last step's tokens, such as a
                prompt, which takes longer.
        """
        if self._trial_seconds is not None:
            self._trial_seconds += seconds
        self._num_catching_up = self._num_catching_up + 1 if caught_up else 0
        if caught_up and self._num_catching_up < _MAX_CATCHING_UP:
            return
        self._draft.observe(num_drafts, seconds)
        if self._trial_seconds is not None:
            a_step = max(float(self._plain.at(np.array(1))), 1e-9) if self._plain.is_known else 1.0
            num_steps = self._trial_seconds / (_TRIAL_SHARE * a_step)
            self._steps_to_trial = max(_MIN_TRIAL_INTERVAL, int(num_steps))
            self._trial_seconds = None

    def note_step(self, num_tokens: int, seconds: float) -> None:
        """Record a step without prompt tokens."""
        self._step.observe(num_tokens, seconds)

    def note_drafted_step(self, num_sequences: int, num_tokens: int, seconds: float) -> None:
        """Record a step while drafts are requested.

        Args:
            num_sequences: decoding sequences, including those that await drafts.
            num_tokens: tokens that the step gave.
            seconds: since the output before it.
        """
        if self._plain.is_known:
            plain_step = float(self._plain.at(np.array(num_sequences)))
            tokens_of_plain_step = num_sequences * self._plain_tokens
            self._speedup.note(plain_step * num_tokens / tokens_of_plain_step, seconds)

    def note_plain_step(self, num_sequences: int, num_tokens: int, seconds: float) -> None:
        """Record a step without the draft worker's drafts.

        Args:
            num_tokens: tokens that the step gave; more than one a sequence if the worker drafts.
            seconds: since the output before it.
        """
        self._plain.observe(num_sequences, seconds)
        self._plain_tokens += _WEIGHT * (num_tokens / num_sequences - self._plain_tokens)
        self._plain_steps_left -= 1

    def note_accepted(self, num_drafts: int, num_accepted: int) -> None:
        """Record the accepted draft tokens of one sequence in one step."""
        self._reached[: min(num_accepted + 1, num_drafts)] += 1
        self._accepted[: min(num_accepted, num_drafts)] += 1
        fade = np.minimum(1.0, _MAX_DRAFTS_SEEN / self._reached)
        self._reached *= fade
        self._accepted *= fade

    @property
    def draft_seconds(self) -> float | None:
        """Seconds of a request for the maximum of draft tokens; None before the first request."""
        return float(self._draft.at(np.array(self._max_drafts))) if self._draft.is_known else None


class _LinearTime:
    """Seconds as a linear function of size, fitted to measurements, of which old ones fade."""

    def __init__(self, believed_slope: float) -> None:
        self._believed_slope = believed_slope
        self._sums = np.zeros(5)  # weights, x, y, x * x, x * y

    @property
    def is_known(self) -> bool:
        return bool(self._sums[0] > 0)

    def observe(self, size: float, seconds: float) -> None:
        if self.is_known:
            # A delay with another cause must not count in full.
            seconds = min(seconds, 2 * float(self.at(np.array(size))))
        self._sums *= 1 - _WEIGHT
        self._sums += np.array([1, size, seconds, size * size, size * seconds])

    def at(self, size: np.ndarray) -> np.ndarray:
        weight, x, y, xx, xy = self._sums
        mean_x, mean_y = x / weight, y / weight
        variance = xx / weight - mean_x**2
        believed = self._believed_slope * mean_y / max(1.0, mean_x)
        # The fewer sizes were measured, the more the assumed slope counts.
        slope = (xy / weight - mean_x * mean_y + believed * _DOUBT) / (variance + _DOUBT)
        seconds: np.ndarray = np.maximum(mean_y + max(slope, 0.0) * (size - mean_x), 0.05 * mean_y)
        return seconds
