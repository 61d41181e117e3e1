"""The state snapshots of one running sequence of a recurrent model."""

from dataclasses import dataclass, field

NO_SNAPSHOT = -1  # in place of a snapshot's number


@dataclass(slots=True)
class SequenceSnapshots:
    """Where a sequence's recurrent state comes from, and where it is saved.

    Attributes:
        joined_from: the snapshot that it continues from; `NO_SNAPSHOT`: it begins at position 0.
        positions: where its state will be saved while its prompt is computed, in tokens, ascending.
        pending: a saved snapshot that is not in the radix tree yet; `NO_SNAPSHOT`: none.
        pending_position: tokens before the state in `pending`.
    """

    joined_from: int = NO_SNAPSHOT
    positions: list[int] = field(default_factory=list)
    pending: int = NO_SNAPSHOT
    pending_position: int = 0

    def limit_chunk(self, num_computed: int, num_tokens: int) -> int:
        """Cut a chunk of `num_tokens` behind `num_computed` so that it saves at most one state."""
        if len(self.positions) > 1 and self.positions[1] <= num_computed + num_tokens:
            return self.positions[0] - num_computed
        return num_tokens

    def take_position(self, num_computed: int) -> int | None:
        """Take the position that a step saves, which computes tokens up to `num_computed`."""
        if self.positions and self.positions[0] <= num_computed:
            return self.positions.pop(0)
        return None
