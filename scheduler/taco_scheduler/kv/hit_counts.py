"""Where the blocks of admitted sequences were found."""

from dataclasses import dataclass


@dataclass(slots=True)
class HitCounts:
    """Blocks of tables when they were made: found on the device, on the host, or to be computed."""

    device: int = 0
    host: int = 0
    missed: int = 0

    @property
    def total(self) -> int:
        return self.device + self.host + self.missed

    def __str__(self) -> str:
        """The line that TACO-LLM's users know."""
        total = self.total
        share = 1 / max(1, total)
        return (
            f"[HIT CNT] total: {total}, gpu: {self.device} ({self.device * share:.2%}) "
            f"cpu: {self.host} ({self.host * share:.2%}) "
            f"not hit: {self.missed} ({self.missed * share:.2%})"
        )
