"""Whether a prefix is sooner read from disk than computed, by what both have taken of late."""

WEIGHT = 0.2  # of the newest measurement
MIN_STEP_TOKENS = 64  # a smaller step says little of what a prompt takes


class _Pace:
    """Seconds that one of many takes, None before the first measurement; old ones fade."""

    def __init__(self) -> None:
        self.seconds: float | None = None

    def note(self, count: float, seconds: float) -> None:
        newest = seconds / count
        before = newest if self.seconds is None else self.seconds
        self.seconds = before + WEIGHT * (newest - before)


class DiskReadEstimate:
    """Of one worker, whose blocks are all of one size: what its disk tier says that reading them
    took, and what steps with prompts took.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._read = _Pace()
        self._computed = _Pace()  # blocks of tokens, too

    def note_read(self, num_blocks: int, seconds: float) -> None:
        if num_blocks:
            self._read.note(num_blocks, seconds)

    def note_step(self, num_tokens: int, seconds: float) -> None:
        """A step with a part of a prompt."""
        if num_tokens >= MIN_STEP_TOKENS and seconds > 0:  # a clock may be put back
            self._computed.note(num_tokens / self._block_size, seconds)

    def is_quicker(self, num_blocks: int, num_before: int = 0) -> bool:
        """Whether blocks are read, after `num_before` others, before they would be computed; yes
        as long as one of both has not been measured.
        """
        compute, read = self.compute_seconds(num_blocks), self._read.seconds
        if compute is None or read is None:
            return True
        return (num_before + num_blocks) * read < compute

    def compute_seconds(self, num_blocks: int) -> float | None:
        """What computing so many blocks would take."""
        seconds = self._computed.seconds
        return None if seconds is None else num_blocks * seconds
