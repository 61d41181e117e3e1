"""Disk prefetch: a waiting sequence waits while its prefix is read from disk to the host tier."""

from dataclasses import dataclass

from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.kv.disk_read_estimate import DiskReadEstimate
from taco_scheduler.kv.disk_transfers import PrefixRead
from taco_scheduler.state.sequence import Sequence

# A sequence waits at most this long; blocks that the disk has not read by then are computed.
MAX_WAIT_SECONDS = 10.0
# The same before the files on disk, or the time of computing a block, are known.
UNMEASURED_WAIT_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class _Wait:
    """A sequence's wait; `read` is None before the files on disk are known."""

    read: PrefixRead | None
    until: float


class DiskPrefetch:
    """Reads the prefixes of one worker's waiting sequences, and tells which sequences wait.

    A sequence waits only if reading is faster than computing, as recently measured. It waits no
    longer than computing would take. So a slow disk at most doubles the time.

    Attributes:
        estimate: measured times of reading and computing.
        generation: see `Gate`; each plan changes it, because time lets sequences pass.
    """

    def __init__(self, blocks: BlockManager) -> None:
        self.generation = 0
        self.estimate = DiskReadEstimate(blocks.block_size)
        self._blocks = blocks
        self._waits: dict[Sequence, _Wait] = {}
        self._now = 0.0

    def begin(self, now: float) -> None:
        """Begin a plan."""
        self._now = now
        self.generation += 1

    def must_wait(self, sequence: Sequence) -> bool:
        """Whether a sequence that could be admitted waits; the first call starts the read."""
        if not self._blocks.disk.exists or sequence.computes_prompt_logprobs:
            return False
        wait = self._waits.get(sequence)
        if wait is None:
            wait = self._waits[sequence] = _Wait(None, self._now + UNMEASURED_WAIT_SECONDS)
        if wait.read is None:
            tokens, namespace = sequence.pack(), sequence.request.namespace
            wait.read = self._blocks.read_ahead(tokens, namespace, self.estimate.is_faster)
            if wait.read is not None:
                wait.until = self._now + self._patience(len(wait.read.keys))
        if self._now >= wait.until:
            return False
        return wait.read is None or (not wait.read.is_done and self.estimate.is_faster(1))

    def forget(self, sequence: Sequence) -> None:
        """End a sequence's wait: it was admitted, or does not wait here any more."""
        self._waits.pop(sequence, None)

    def deadline(self) -> float | None:
        """When the next sequence stops waiting; None if none waits."""
        if not self._waits:
            return None
        waits = [w for w in self._waits.values() if w.until > self._now]
        return min((w.until for w in waits if w.read is None or w.read.keys), default=None)

    def _patience(self, num_blocks: int) -> float:
        seconds = self.estimate.compute_seconds(num_blocks)
        return UNMEASURED_WAIT_SECONDS if seconds is None else min(seconds, MAX_WAIT_SECONDS)
