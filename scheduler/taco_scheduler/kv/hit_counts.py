"""Hit counts: in which tier the blocks of admitted sequences were found."""

import logging
from dataclasses import dataclass

LOGGED_BLOCKS = 100
logger = logging.getLogger("taco.scheduler")


@dataclass(slots=True)
class HitCounts:
    """Blocks of new block tables: found on the device, found on the host, or not cached.

    Attributes:
        is_logged: `add` logs the counts after every 100 blocks.
    """

    device: int = 0
    host: int = 0
    missed: int = 0
    is_logged: bool = False

    @property
    def total(self) -> int:
        return self.device + self.host + self.missed

    def add(self, num_device: int, num_host: int, num_missed: int) -> None:
        """Count the blocks of one new table."""
        before = self.total
        self.device += num_device
        self.host += num_host
        self.missed += num_missed
        if self.is_logged and self.total // LOGGED_BLOCKS > before // LOGGED_BLOCKS:
            logger.info("%s", self)

    def __str__(self) -> str:
        """The line that TACO-LLM's users know."""
        total = self.total
        share = 1 / max(1, total)
        return (
            f"[HIT CNT] total: {total}, gpu: {self.device} ({self.device * share:.2%}) "
            f"cpu: {self.host} ({self.host * share:.2%}) "
            f"not hit: {self.missed} ({self.missed * share:.2%})"
        )
