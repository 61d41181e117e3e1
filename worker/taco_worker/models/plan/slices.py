"""Named columns of a step's buffers, which ops read and write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive columns of a buffer, for all tokens of a step.

    Attributes:
        buffer: name of the buffer.
        start, size: first column and number of columns.
    """

    buffer: str
    start: int
    size: int

    def columns(self, start: int, size: int) -> Slice:
        """The part [start, start + size) of these columns.

        Raises:
            ValueError: the part is not inside.
        """
        if start < 0 or size < 1 or start + size > self.size:
            raise ValueError(f"columns {start} to {start + size} are not inside {self}")
        return Slice(self.buffer, self.start + start, size)

    def overlaps(self, other: Slice) -> bool:
        return (
            self.buffer == other.buffer
            and self.start < other.start + other.size
            and other.start < self.start + self.size
        )

    def covers(self, other: Slice) -> bool:
        return (
            self.buffer == other.buffer
            and self.start <= other.start
            and other.start + other.size <= self.start + self.size
        )

    def __str__(self) -> str:
        return f"{self.buffer}[{self.start}:{self.start + self.size}]"


def is_covered(part: Slice, others: Iterable[Slice]) -> bool:
    """Whether `others` together have all columns of `part`."""
    end = part.start
    for other in sorted((one for one in others if one.overlaps(part)), key=lambda one: one.start):
        if other.start > end:
            return False
        end = max(end, other.start + other.size)
    return end >= part.start + part.size
