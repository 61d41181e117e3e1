"""Block growth: appends blocks to the block tables of running sequences as they get longer."""

import numpy as np
import numpy.typing as npt

from taco_proto.config import MAX_SPECULATIVE_TOKENS
from taco_proto.steps import IntArray
from taco_scheduler.core.preemption import Preemption, PreemptionOrder
from taco_scheduler.core.step_rows import StepRows
from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.kv.block_table import BlockTable
from taco_scheduler.state.batch import Batch
from taco_scheduler.state.sequence import Sequence

SlotNumbers = npt.NDArray[np.intp]


class BlockGrowth:
    """Grows the block tables of one worker's batch, and records the new blocks in a step's rows."""

    def __init__(self, batch: Batch, blocks: BlockManager, preemption: Preemption) -> None:
        """`preemption`: preempts sequences when a decode finds no free block."""
        self._batch = batch
        self._blocks = blocks
        self._preemption = preemption
        # Blocks that a decode may need at once: with run-ahead, drafts of two steps are in flight.
        self._max_growth = 1 + 2 * MAX_SPECULATIVE_TOKENS // blocks.block_size

    def grow_for_decodes(self, remaining: IntArray, rows: StepRows) -> bool:
        """Append a block for each decode that is at the end of its block table.

        The table of a sequence that still computes its prompt has covered the prompt since its
        admission.

        Args:
            remaining: tokens that each slot could run now.

        Returns:
            Whether a sequence was preempted for it.
        """
        batch = self._batch
        num_tokens = batch.max_num_tokens
        slots = ((remaining == 1) & (num_tokens > batch.capacity)).nonzero()[0]
        needy = [batch.owner(slot) for slot in slots.tolist()]
        order: PreemptionOrder | None = None
        if len(needy) * self._max_growth > self._blocks.num_free_blocks:
            # The last victim first: a sequence that has just got a block is then never preempted.
            order = self._preemption.order()
            needy.sort(key=order.key)
        elif needy:
            self._extend_all(needy, slots, num_tokens[slots], rows)
            return False
        has_preempted = False
        for sequence in needy:
            while (table := sequence.table) is not None:
                if self._extend(sequence, table, int(num_tokens[sequence.slot]), rows):
                    break
                assert order is not None
                self._preemption.preempt(order.pick_victim())
                has_preempted = True
        return has_preempted

    def grow_for_drafts(self, wanted: IntArray, rows: StepRows) -> None:
        """Append blocks for drafts, while more than two blocks are free for each running sequence.

        No sequence is preempted for drafts.

        Args:
            wanted: draft tokens by slot.
        """
        batch = self._batch
        num_tokens = batch.max_num_tokens + wanted
        slots = rows.decode_slots
        for slot in slots[num_tokens[slots] > batch.capacity[slots]].tolist():
            if self._blocks.num_free_blocks <= 2 * batch.num_running:
                return
            table = batch.owner(slot).table
            assert table is not None
            self._extend(batch.owner(slot), table, int(num_tokens[slot]), rows)

    def _extend_all(
        self, sequences: list[Sequence], slots: SlotNumbers, num_tokens: IntArray, rows: StepRows
    ) -> None:
        """Extend the block table of each sequence to its number of tokens; there are enough blocks.

        Args:
            slots: of the sequences.
        """
        tables = [sequence.table for sequence in sequences if sequence.table is not None]
        num_blocks, blocks = self._blocks.extend_all(tables, num_tokens)
        rows.appended_slots += np.repeat(slots, num_blocks).tolist()
        rows.appended_blocks += blocks
        self._batch.capacity[slots] += np.array(num_blocks, np.int32) * self._blocks.block_size

    def _extend(
        self, sequence: Sequence, table: BlockTable, num_tokens: int, rows: StepRows
    ) -> bool:
        """Extend a block table to `num_tokens`; False if there are too few blocks."""
        blocks = self._blocks.extend(table, num_tokens)
        if blocks is None:
            return False
        rows.appended_slots += [sequence.slot] * len(blocks)
        rows.appended_blocks += blocks
        self._batch.capacity[sequence.slot] = len(table.blocks) * self._blocks.block_size
        return True
