"""Prefix sharing of a recurrent model: a sequence waits for states that a row of a step saves."""

from taco_scheduler.core.prefix_sharing import StepPrefixSharing
from taco_scheduler.kv.common_blocks import num_common_blocks
from taco_scheduler.kv.radix_node import CachedPrefix
from taco_scheduler.state.sequence import Sequence

# Rows of a step that each waiting sequence is compared with.
MAX_ROWS = 16


class StepSnapshotSharing(StepPrefixSharing):
    """Tells whether a waiting sequence should wait for a row of this step that has the same prefix.

    It waits

    - for a state that the row will save within the common prefix, or else
    - for the row to compute blocks that both need and the cache lacks. From the cached blocks, the
      sequence then knows where the common prefix ends, and saves its state there for later ones.

    So of many requests that arrive together, two compute the common prefix, and the others continue
    from its end.
    """

    def add(self, sequence: Sequence, num_computed_tokens: int) -> None:
        """Add a row of the step, which computes tokens of `sequence` behind the first ones."""
        is_cached = sequence.table is not None and not sequence.table.sealed
        if is_cached and len(self._rows) < MAX_ROWS:
            self._rows[sequence] = num_computed_tokens // self._block_size

    def should_await(self, sequence: Sequence, prefix: CachedPrefix) -> bool:
        """Whether a row of this step computes what `sequence` would wait for.

        Args:
            prefix: the cached prefix of the sequence.
        """
        num_readable = (len(sequence.tokens) - 1) // self._block_size
        if prefix.num_blocks >= num_readable:
            return False
        first = prefix.num_blocks * self._block_bytes
        key, namespace = sequence.pack(), sequence.request.namespace
        block = key[first : first + self._block_bytes]
        found: tuple[bool, int, Sequence] | None = None
        for row, num_computed in self._rows.items():
            other = row.pack()
            if row.request.namespace != namespace or not other.startswith(block, first):
                continue
            num_common = min(self._num_common(key, other), num_readable)
            saved = self._last_save(row, num_common)
            if saved > prefix.num_blocks:
                wait = (True, saved, row)
            elif num_common > max(prefix.num_kv_blocks, num_computed):
                wait = (False, num_common, row)
            else:
                continue
            if found is None or wait[:2] > found[:2]:
                found = wait
        if found is None:
            return False
        sequence.awaits = (found[2], found[1])
        return True

    def _num_common(self, key: bytes, other: bytes) -> int:
        size = len(other) // self._block_bytes * self._block_bytes
        return num_common_blocks(key, 0, memoryview(other)[:size], self._block_bytes)

    def _last_save(self, row: Sequence, num_common: int) -> int:
        """The deepest of the first `num_common` blocks at whose end a row will save its state; 0:
        none."""
        assert row.table is not None
        assert row.table.states is not None
        depths = (position // self._block_size for position in row.table.states.positions)
        return max((depth for depth in depths if depth <= num_common), default=0)
