"""State saves: at which positions a recurrent worker saves the states of its sequences.

A later sequence continues a cached prefix only from such a position. See `RecurrentBlockManager`.
"""

import numpy as np

from taco_scheduler.core.step_rows import NOTHING_SAVED, SavedStates, StepRows
from taco_scheduler.kv.block_table import BlockTable
from taco_scheduler.kv.recurrent_block_manager import RecurrentBlockManager
from taco_scheduler.kv.sequence_snapshots import NO_SNAPSHOT
from taco_scheduler.state.batch import Batch
from taco_scheduler.state.sequence import Sequence

# Tokens between two saves of a sequence that decodes: what a preempted sequence computes again at
# most. Rounded up to whole blocks.
DECODE_INTERVAL = 64


class StateSaves:
    """Plans the saves of one recurrent worker.

    The state of a prompt is saved

    - where the tokens depart from those in the prefix cache (`RecurrentBlockManager.allocate`),
    - at the end of each prefix that the client pins,
    - at the last end of a block before the last token of the prompt: the same prompt, or the next
      turn of a conversation, continues there, and
    - likewise before the last token that a preempted sequence had.

    A sequence that decodes saves its state at regular positions.
    """

    def __init__(self, batch: Batch, blocks: RecurrentBlockManager) -> None:
        self._batch = batch
        self._blocks = blocks
        self._interval = -(-DECODE_INTERVAL // blocks.block_size) * blocks.block_size

    def begin(self, sequence: Sequence, table: BlockTable) -> None:
        """Choose where to save the state of a sequence that joins, while its prompt is computed."""
        states, size, request = table.states, self._blocks.block_size, sequence.request
        assert states is not None
        num_tokens = len(sequence.tokens)
        ends = [request.num_prompt_tokens - 1, num_tokens - 1]
        ends += [min(pin.num_tokens, num_tokens - 1) for pin in request.pins]
        positions = {end // size * size for end in ends} | set(states.positions)
        states.positions = sorted(p for p in positions if p > table.num_cached_tokens)

    def plan(self, rows: StepRows, step_id: int) -> SavedStates:
        """The saves of a step, whose tokens are not counted in the batch yet.

        To be called once for each step, before its plan is made.
        """
        batch, blocks = self._batch, self._blocks
        slots: list[int] = []
        positions: list[int] = []
        for slot, num_tokens in zip(rows.chunk_slots, rows.chunk_tokens, strict=True):
            states = self._table(slot).states
            assert states is not None
            position = states.take_position(int(batch.num_computed[slot]) + num_tokens)
            if position is not None:
                slots.append(slot)
                positions.append(position)
        num_prompts = len(slots)
        ends = batch.num_computed[rows.decode_slots] + 1
        is_saved = ends % self._interval == 0
        slots += rows.decode_slots[is_saved].tolist()
        positions += ends[is_saved].tolist()
        saved: list[tuple[int, int, int]] = []
        for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
            table = self._table(slot)
            if row >= num_prompts and not self._may_save_decode(table):
                continue
            snapshot = blocks.save_state(table, position, step_id)
            if snapshot is not None:
                saved.append((slot, position, snapshot))
        blocks.snapshots.end_plan()
        if not saved:
            return NOTHING_SAVED
        return SavedStates(*np.array(saved, np.int32).T)

    def _may_save_decode(self, table: BlockTable) -> bool:
        """Whether a decode may keep a snapshot: together, they leave half to the prefix cache."""
        snapshots = self._blocks.snapshots
        assert table.states is not None
        holds_one = table.states.pending != NO_SNAPSHOT
        return holds_one or snapshots.num_pending < snapshots.num_snapshots // 2

    def _table(self, slot: int) -> BlockTable:
        table = self._batch.owner(slot).table
        assert table is not None
        return table
