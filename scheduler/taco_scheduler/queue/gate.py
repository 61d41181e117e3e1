"""What a waiting sequence may wait for other than a slot and blocks."""

from typing import Protocol

from taco_scheduler.state.sequence import Sequence


class Gate(Protocol):
    """Holds sequences until it opens for them."""

    def must_wait(self, sequence: Sequence) -> bool:
        """Whether a sequence waits."""

    @property
    def generation(self) -> int:
        """Changes, at the latest, when a sequence that had to wait may pass. O(1)."""


def closed_gate(gates: tuple[Gate, ...], sequence: Sequence) -> Gate | None:
    """The first gate that holds a sequence; None: none does."""
    for gate in gates:
        if gate.must_wait(sequence):
            return gate
    return None
