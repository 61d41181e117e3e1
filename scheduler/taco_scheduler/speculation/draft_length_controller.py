"""How many drafts are worth asking a draft worker for."""

import numpy as np

from taco_scheduler.speculation.measured_speedup import MeasuredSpeedup

_WEIGHT = 0.2  # of the newest measurement
_PRIOR_ACCEPTANCE = 0.7
_PRIOR_DRAFTS = 4.0  # that the prior weighs
_MAX_DRAFTS_SEEN = 200.0  # older ones fade
# A row is believed to add so much to a step until two sizes have been measured.
_BELIEVED_SLOPE = 0.02
# The variance of sizes at which what was measured counts as much as what is believed.
_DOUBT = 0.02
# Drafts must promise to be worth it, since what is waited for holds up the whole step.
_MIN_GAIN = 1.03
# While nothing is asked for, a single draft is tried now and then, which takes the time of what the
# draft model has to catch up with first: such a share of all time at most, and not more often than
# once in so many steps.
_TRIAL_SHARE = 0.01
_MIN_STEPS_A_TRIAL = 64
# Where every request has something to catch up with, what so many in a row take is their cost.
_MAX_CATCHING_UP = 8
# What plain steps take has to be known first, and be looked at again after so many with drafts.
_PLAIN_STEPS = 8
_STEPS_A_PLAIN_LOOK = 512


class DraftLengthController:
    """Chooses the number of drafts with the best goodput: tokens a step gives, over the time that
    drafting and verifying take, one after the other. Plain steps are planned ahead and take less
    time than such a step without drafts would. All of it is measured as steps run, and where
    drafting proves to be slower than plain steps in spite of it, it rests.
    """

    def __init__(self, max_drafts: int) -> None:
        self._max_drafts = max_drafts
        self._accepted = np.full(max_drafts, _PRIOR_ACCEPTANCE * _PRIOR_DRAFTS)
        self._reached = np.full(max_drafts, _PRIOR_DRAFTS)
        self._step = _Line(_BELIEVED_SLOPE)
        self._plain = _Line(_BELIEVED_SLOPE)
        self._plain_tokens = 1.0  # that such a step gives a sequence
        self._draft = _Line(1.0)
        self._plain_steps_left = _PLAIN_STEPS
        self._steps_to_look = _STEPS_A_PLAIN_LOOK
        self._steps_to_trial = _MIN_STEPS_A_TRIAL
        self._trial_seconds: float | None = None  # so far; None: drafts are not being tried
        self._num_catching_up = 0
        self._gain = MeasuredSpeedup()
        self._steps_to_rest = 0

    def choose(self, num_sequences: int) -> int:
        """Drafts to ask for, for each of so many sequences, from the next step on; 0 is plain
        decoding. To be called once a step.
        """
        if self._plain_steps_left > 0:
            return 0
        if not self._draft.is_known or not self._step.is_known:
            return self._max_drafts
        if self._steps_to_rest > 0:
            self._steps_to_rest -= 1
            return 0
        if self._trial_seconds is not None:
            return 1
        best = self._best(num_sequences)
        if best and self._gain.is_loss:
            self._steps_to_rest = self._gain.num_steps_to_rest
            self._gain.clear()
            return 0
        if best:
            self._steps_to_look -= 1
            if self._steps_to_look <= 0:
                self._steps_to_look = _STEPS_A_PLAIN_LOOK
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
        """A request for so many drafts of each sequence was answered after so long.

        Args:
            caught_up: the draft model had to read more than the last step's tokens first, such as
                a prompt, so that it took longer than drafts do.
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
            self._steps_to_trial = max(_MIN_STEPS_A_TRIAL, int(num_steps))
            self._trial_seconds = None

    def note_step(self, num_tokens: int, seconds: float) -> None:
        """A step that only decodes computed so many tokens."""
        self._step.observe(num_tokens, seconds)

    def note_drafted_step(self, num_sequences: int, num_tokens: int, seconds: float) -> None:
        """While drafts are asked for, a step gave so many tokens, and came so long after the one
        before it. `num_sequences` decode, whether they ran in it or wait for drafts.
        """
        if self._plain.is_known:
            plain_step = float(self._plain.at(np.array(num_sequences)))
            tokens_of_plain_step = num_sequences * self._plain_tokens
            self._gain.note(plain_step * num_tokens / tokens_of_plain_step, seconds)

    def note_plain_step(self, num_sequences: int, num_tokens: int, seconds: float) -> None:
        """A step without the draft worker's drafts gave so many tokens, which are more than one a
        sequence where the worker drafts itself, and came so long after the one before it.
        """
        self._plain.observe(num_sequences, seconds)
        self._plain_tokens += _WEIGHT * (num_tokens / num_sequences - self._plain_tokens)
        self._plain_steps_left -= 1

    def note_accepted(self, num_drafts: int, num_accepted: int) -> None:
        """Of one sequence in one step."""
        self._reached[: min(num_accepted + 1, num_drafts)] += 1
        self._accepted[: min(num_accepted, num_drafts)] += 1
        fade = np.minimum(1.0, _MAX_DRAFTS_SEEN / self._reached)
        self._reached *= fade
        self._accepted *= fade

    @property
    def draft_seconds(self) -> float | None:
        """What a request for all drafts takes; None before the first."""
        return float(self._draft.at(np.array(self._max_drafts))) if self._draft.is_known else None


class _Line:
    """Seconds by size, a straight line through what was measured, of which old points fade."""

    def __init__(self, believed_slope: float) -> None:
        self._believed_slope = believed_slope
        self._sums = np.zeros(5)  # weights, x, y, x * x, x * y

    @property
    def is_known(self) -> bool:
        return bool(self._sums[0] > 0)

    def observe(self, size: float, seconds: float) -> None:
        if self.is_known:
            # What was held up by something else must not count for more than it is.
            seconds = min(seconds, 2 * float(self.at(np.array(size))))
        self._sums *= 1 - _WEIGHT
        self._sums += np.array([1, size, seconds, size * size, size * seconds])

    def at(self, size: np.ndarray) -> np.ndarray:
        weight, x, y, xx, xy = self._sums
        mean_x, mean_y = x / weight, y / weight
        variance = xx / weight - mean_x**2
        believed = self._believed_slope * mean_y / max(1.0, mean_x)
        # The fewer sizes were seen, the more what is believed counts.
        slope = (xy / weight - mean_x * mean_y + believed * _DOUBT) / (variance + _DOUBT)
        seconds: np.ndarray = np.maximum(mean_y + max(slope, 0.0) * (size - mean_x), 0.05 * mean_y)
        return seconds
