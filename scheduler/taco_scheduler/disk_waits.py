"""Holds sequences back while what is on disk of their prefixes is read."""

from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.kv.disk_traffic import Reading
from taco_scheduler.sequence import Sequence

# A disk that takes longer is not waited for: what it has not read by then is computed.
MAX_WAIT_SECONDS = 1.0


class DiskWaits:
    """The waiting sequences of one worker that files are read for.

    Attributes:
        now: the time of the plan that is being made.
    """

    def __init__(self, blocks: BlockManager) -> None:
        self.now = 0.0
        self._blocks = blocks
        self._waits: dict[Sequence, tuple[Reading | None, float]] = {}

    def holds(self, sequence: Sequence) -> bool:
        """Whether a sequence that could be admitted should wait; has its files read at first."""
        if not self._blocks.has_disk_tier or sequence.computes_prompt_logprobs:
            return False
        reading, until = self._waits.get(sequence, (None, self.now + MAX_WAIT_SECONDS))
        if reading is None:
            tokens, namespace = sequence.tokens.tobytes(), sequence.request.namespace
            reading = self._blocks.read_ahead(tokens, namespace)
            self._waits[sequence] = reading, until
        return self.now < until and (reading is None or not reading.is_done)

    def forget(self, sequence: Sequence) -> None:
        """It was admitted, or waits here no more."""
        self._waits.pop(sequence, None)

    def deadline(self) -> float | None:
        """When the first one has waited for long enough."""
        waits = self._waits.values()
        return min((t for reading, t in waits if reading is None or reading.keys), default=None)
