"""Prefix sharing inside a step: a sequence waits for blocks that a row of the step computes."""

from taco_scheduler.kv.common_blocks import num_common_blocks
from taco_scheduler.kv.radix_node import CachedPrefix, Node
from taco_scheduler.state.sequence import Sequence

# The end of a cached prefix in the radix tree, and the packed token ids of the block behind it.
Place = tuple[Node, bytes]


class StepPrefixSharing:
    """Tells whether a waiting sequence should wait for a block that a row of this step computes.

    A row's first block follows the cached prefix that the row pins. A waiting sequence that lacks
    the same block has the same prefix, so its match ends at the same node of the radix tree. One
    dictionary look-up therefore compares the two whole prefixes.

    The step's blocks can be matched from the next step on. A sequence never waits for a row that
    does not run, so every wait ends when that row's prompt is computed.
    """

    def __init__(self, block_bytes: int, num_block_tokens: int) -> None:
        """`block_bytes`: size of one block's packed token ids; `num_block_tokens`: its length."""
        self._block_bytes = block_bytes
        self._block_size = num_block_tokens
        self._rows: dict[Sequence, int] = {}  # blocks that were computed before the step
        self._by_place: dict[Place, Sequence] = {}

    def clear(self) -> None:
        """A new step begins."""
        self._rows.clear()
        self._by_place.clear()

    def add(self, sequence: Sequence, num_computed_tokens: int) -> None:
        """Add a row of the step, which computes tokens of `sequence` behind the first ones."""
        table, num_blocks = sequence.table, num_computed_tokens // self._block_size
        if table is None or table.node is None or table.num_pinned_blocks != num_blocks:
            return  # a failed step took blocks back: nothing more of it is cached
        place = self._place(sequence, table.node, num_blocks)
        if place is not None:
            self._rows[sequence] = num_blocks
            self._by_place.setdefault(place, sequence)

    def awaits(self, sequence: Sequence) -> bool:
        """Whether this step continues what `sequence` waited for in the step before. O(1)."""
        if sequence.awaits is None:
            return False
        row, num_common = sequence.awaits
        num_computed = self._rows.get(row)
        if num_computed is None or num_computed >= num_common:
            sequence.awaits = None
        return sequence.awaits is not None

    def should_await(self, sequence: Sequence, prefix: CachedPrefix) -> bool:
        """Whether a row of this step computes the first block that `sequence` lacks.

        Args:
            prefix: the cached prefix of the sequence.
        """
        num_cached = prefix.num_blocks
        num_readable = (len(sequence.tokens) - 1) // self._block_size
        if prefix.node is None or num_cached >= num_readable:
            return False
        place = self._place(sequence, prefix.node, num_cached)
        row = None if place is None else self._by_place.get(place)
        if row is None:
            return False
        start = num_cached * self._block_bytes
        num_common = num_cached + num_common_blocks(
            sequence.pack(), start, row.pack()[start:], self._block_bytes, num_known=1
        )
        sequence.awaits = (row, min(num_common, num_readable))
        return True

    def _place(self, sequence: Sequence, node: Node, num_blocks: int) -> Place | None:
        """None if the sequence's next block is not full."""
        start = num_blocks * self._block_bytes
        block = sequence.pack()[start : start + self._block_bytes]
        return (node, block) if len(block) == self._block_bytes else None
