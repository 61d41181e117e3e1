"""Scheduling policy: fills the token budget of the next step.

There are no separate prefill and decode phases. A sequence runs the tokens that it has left to
compute: one token, or a chunk of its prompt. Running decodes come first, then chunks of running
prefills, then waiting sequences by priority, tenant counter and arrival. A waiting sequence comes
before a running prefill of lower rank, and may preempt a sequence (see `preemption`).
"""

import numpy as np

from taco_proto.steps import IntArray
from taco_scheduler.core.block_growth import BlockGrowth
from taco_scheduler.core.preemption import Preemption
from taco_scheduler.core.prompt_chunks import PromptChunks, must_pass
from taco_scheduler.core.slot_admission import SlotAdmission, rank
from taco_scheduler.core.step_rows import StepRows
from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.queue.gate import Gate, closed_gate
from taco_scheduler.queue.waiting_queue import WaitingQueue
from taco_scheduler.speculation.draft_length_limits import DraftLengthLimits
from taco_scheduler.state.batch import Batch, BoolArray
from taco_scheduler.state.sequence import Sequence


class Policy:
    """Fills steps for one worker.

    Args:
        max_num_batched_tokens: token budget of a step. Every running sequence gets at least one
            token a step, so `batch` has no more slots than that.
        drafts: the draft tokens that sequences may verify.
        preemption: preempts sequences when slots or blocks run short.
        chunks: adds rows of prompts.
        admission: gives waiting sequences slots.
        sampling_gates: while one of them holds a sequence, its prompt runs up to its last token, so
            that no step samples the sequence. They hold no sequence that has been sampled since
            it joined.
    """

    def __init__(
        self,
        batch: Batch,
        blocks: BlockManager,
        waiting: WaitingQueue,
        max_num_batched_tokens: int,
        drafts: DraftLengthLimits,
        preemption: Preemption,
        chunks: PromptChunks,
        admission: SlotAdmission,
        sampling_gates: tuple[Gate, ...],
    ) -> None:
        self._batch = batch
        self._waiting = waiting
        self._budget = max_num_batched_tokens
        self._drafts = drafts
        self._preemption = preemption
        self._chunks = chunks
        self._admission = admission
        self._sampling_gates = sampling_gates
        self._growth = BlockGrowth(batch, blocks, preemption)

    def fill_step(self, awaits_drafts: BoolArray | None = None) -> StepRows:
        """The rows of the next step. Takes blocks and slots, and leaves the batch's counters.

        Args:
            awaits_drafts: slots that do not run, because their drafts are on their way.
        """
        rows = StepRows()
        self._chunks.sharing.clear()
        self._waiting.bring_back()
        # Before the step has rows: a victim must not have one.
        self._preemption.preempt_for_next(self._admission.blocked, self._admission.must_wait)
        remaining = self._remaining_tokens(awaits_drafts)
        wanted_drafts = self._drafts.allowed(self._batch)
        has_preempted = self._growth.grow_for_decodes(remaining, rows)
        if has_preempted:
            remaining = self._remaining_tokens(awaits_drafts)
        can_run = remaining > 0
        # By what is computed: the last chunk of a prompt may be one token long, like a decode.
        is_prefill = can_run & (self._batch.num_computed < self._batch.num_prefill)
        rows.decode_slots = (can_run & ~is_prefill).nonzero()[0].astype(np.int32)
        budget = self._budget - len(rows.decode_slots)
        if wanted_drafts is not None:
            self._growth.grow_for_drafts(wanted_drafts, rows)
        prefills = [self._batch.owner(slot) for slot in is_prefill.nonzero()[0].tolist()]
        if len(prefills) > 1:
            prefills.sort(key=rank)
        if prefills and not has_preempted and self._waiting.num_sequences:
            budget = self._admission.admit_waiting(rows, budget, before=rank(prefills[0]))
        budget = self._continue_prefills(prefills, rows, budget)
        # Running sequences get the blocks that a preemption freed, before waiting ones.
        if not (has_preempted and rows):
            budget = self._admission.admit_waiting(rows, budget)
        self._chunks.use_rest(rows, budget)
        if len(rows.decode_slots):
            if wanted_drafts is not None:
                rows.max_drafts = self._allow_drafts(rows, wanted_drafts)
            else:
                rows.max_drafts = np.zeros(len(rows.decode_slots), np.int32)
        return rows

    def _remaining_tokens(self, awaits_drafts: BoolArray | None) -> IntArray:
        """Tokens that each slot could run now.

        0 for a slot that is empty, held or awaits drafts, or may end with the outputs in flight.
        """
        batch = self._batch
        can_run = batch.max_num_tokens < batch.limit
        if awaits_drafts is not None:
            can_run &= ~awaits_drafts
        if batch.num_beams:
            can_run &= ~batch.is_held
        return (batch.num_tokens - batch.num_computed) * can_run

    def _allow_drafts(self, rows: StepRows, wanted: IntArray) -> IntArray:
        """Draft tokens of each decode: as its blocks allow, from the budget that prompts leave."""
        batch, slots = self._batch, rows.decode_slots
        space = batch.capacity - batch.max_num_tokens
        share = (self._budget - rows.num_tokens) // len(slots)
        allowed: IntArray = np.minimum(wanted, np.minimum(space, share))[slots]
        return allowed.clip(0)

    def _continue_prefills(self, prefills: list[Sequence], rows: StepRows, budget: int) -> int:
        """Add chunks of running prefills; returns the rest of the budget."""
        batch = self._batch
        for sequence in prefills:
            num_left = int(batch.num_tokens[sequence.slot] - batch.num_computed[sequence.slot])
            num_left -= closed_gate(self._sampling_gates, sequence) is not None
            if num_left > 0 and budget > 0 and not must_pass(sequence, num_left, rows, budget):
                budget -= self._chunks.add(rows, sequence, num_left, budget)
        return budget
