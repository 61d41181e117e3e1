"""Estimates whether a prefix is read from disk faster than it is computed again."""

WEIGHT = 0.2  # of the newest measurement
MIN_STEP_TOKENS = 64  # the time of a smaller step says little about that of a prompt


class _MovingAverage:
    """Average seconds per item, in which older measurements fade; None before the first one."""

    def __init__(self) -> None:
        self.seconds: float | None = None

    def note(self, count: float, seconds: float) -> None:
        newest = seconds / count
        before = newest if self.seconds is None else self.seconds
        self.seconds = before + WEIGHT * (newest - before)


class DiskReadEstimate:
    """Measured times of one worker: to read a block from disk, and to compute one."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._read = _MovingAverage()
        self._computed = _MovingAverage()

    def note_read(self, num_blocks: int, seconds: float) -> None:
        """Record how long the disk tier took to read blocks."""
        if num_blocks:
            self._read.note(num_blocks, seconds)

    def note_step(self, num_tokens: int, seconds: float) -> None:
        """Record how long a step with prompt tokens took."""
        if num_tokens >= MIN_STEP_TOKENS and seconds > 0:
            self._computed.note(num_tokens / self._block_size, seconds)

    def is_faster(self, num_blocks: int, num_before: int = 0) -> bool:
        """Whether reading blocks, after `num_before` others, is faster than computing them.

        True before both times have been measured.
        """
        compute, read = self.compute_seconds(num_blocks), self._read.seconds
        if compute is None or read is None:
            return True
        return (num_before + num_blocks) * read < compute

    def compute_seconds(self, num_blocks: int) -> float | None:
        """Estimated seconds to compute blocks; None before the first measurement."""
        seconds = self._computed.seconds
        return None if seconds is None else num_blocks * seconds
