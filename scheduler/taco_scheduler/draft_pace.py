"""How many drafts are worth asking a draft worker for."""

import numpy as np

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
# While nothing is asked for, a single draft is tried once in so many steps.
_STEPS_A_TRIAL = 64


class DraftPace:
    """Chooses the number of drafts with the best goodput: tokens a step gives, over the time that
    drafting and verifying take, one after the other. All of it is measured as steps run.
    """

    def __init__(self, max_drafts: int) -> None:
        self._max_drafts = max_drafts
        self._accepted = np.full(max_drafts, _PRIOR_ACCEPTANCE * _PRIOR_DRAFTS)
        self._reached = np.full(max_drafts, _PRIOR_DRAFTS)
        self._step = _Line(_BELIEVED_SLOPE)
        self._draft = _Line(1.0)
        self._steps_without = 0

    def choose(self, num_sequences: int) -> int:
        """Drafts to ask for, for each of so many sequences, from the next step on; 0 is plain
        decoding. To be called once a step.
        """
        if not self._draft.is_known or not self._step.is_known:
            return self._max_drafts
        lengths = np.arange(self._max_drafts + 1)
        chances = np.cumprod(self._accepted / self._reached)
        tokens = 1 + np.concatenate([[0.0], np.cumsum(chances)])
        draft_seconds = np.where(lengths > 0, self._draft.at(np.maximum(lengths, 1)), 0.0)
        seconds = self._step.at(num_sequences * (1 + lengths)) + draft_seconds
        goodput = tokens / np.maximum(seconds, 1e-9)
        best = int(goodput.argmax())
        if goodput[best] < _MIN_GAIN * goodput[0]:
            best = 0
        self._steps_without = 0 if best else self._steps_without + 1
        if self._steps_without == _STEPS_A_TRIAL:
            self._steps_without = 0
            return 1
        return best

    def note_draft(self, num_drafts: int, seconds: float) -> None:
        """A request for so many drafts of each sequence was answered after so long."""
        self._draft.observe(num_drafts, seconds)

    def note_step(self, num_tokens: int, seconds: float) -> None:
        """A step that only decodes computed so many tokens."""
        self._step.observe(num_tokens, seconds)

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
