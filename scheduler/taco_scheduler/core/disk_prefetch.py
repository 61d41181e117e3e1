"""Holds sequences back while what is on disk of their prefixes is read."""

from dataclasses import dataclass

from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.kv.disk_read_estimate import DiskReadEstimate
from taco_scheduler.kv.disk_transfers import Reading
from taco_scheduler.state.sequence import Sequence

# Nobody waits for longer. What the disk has not read by then is computed.
MAX_WAIT_SECONDS = 10.0
# As long as it is not known what is on disk, or how long computing it would take.
UNMEASURED_WAIT_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class _Wait:
    """`reading`: None before it is known what is on disk."""

    reading: Reading | None
    until: float


class DiskPrefetch:
    """The waiting sequences of one worker that files are read for.

    A sequence waits only where reading is quicker than computing by what both have taken of late,
    and never for longer than computing would take: what is lost where the disk turns out to be slow
    is at most as much time again.

    Attributes:
        now: when a plan was last asked for.
        pace: what reading and computing take.
    """

    def __init__(self, blocks: BlockManager) -> None:
        self.now = 0.0
        self.pace = DiskReadEstimate(blocks.block_size)
        self._blocks = blocks
        self._waits: dict[Sequence, _Wait] = {}

    def holds(self, sequence: Sequence) -> bool:
        """Whether a sequence that could be admitted should wait; has its files read at first."""
        if not self._blocks.has_disk_tier or sequence.computes_prompt_logprobs:
            return False
        wait = self._waits.get(sequence)
        if wait is None:
            wait = self._waits[sequence] = _Wait(None, self.now + UNMEASURED_WAIT_SECONDS)
        if wait.reading is None:
            tokens, namespace = sequence.pack(), sequence.request.namespace
            wait.reading = self._blocks.read_ahead(tokens, namespace, self.pace.is_quicker)
            if wait.reading is not None:
                wait.until = self.now + self._patience(len(wait.reading.keys))
        if self.now >= wait.until:
            return False
        return wait.reading is None or (not wait.reading.is_done and self.pace.is_quicker(1))

    def forget(self, sequence: Sequence) -> None:
        """It was admitted, or waits here no more."""
        self._waits.pop(sequence, None)

    def deadline(self) -> float | None:
        """When the next one will have waited for long enough."""
        if not self._waits:
            return None
        waits = [w for w in self._waits.values() if w.until > self.now]
        return min((w.until for w in waits if w.reading is None or w.reading.keys), default=None)

    def _patience(self, num_blocks: int) -> float:
        seconds = self.pace.compute_seconds(num_blocks)
        return UNMEASURED_WAIT_SECONDS if seconds is None else min(seconds, MAX_WAIT_SECONDS)
