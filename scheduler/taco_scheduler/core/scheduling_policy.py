"""Scheduling policy: fills the token budget of the next step.

There are no separate prefill and decode phases. A sequence runs the tokens that it has left to
compute: one token, or a chunk of its prompt. Running decodes come first, then chunks of running
prefills, then waiting sequences by priority, tenant counter and arrival. A waiting sequence comes
before a running prefill of lower rank, and may preempt a sequence (see `preemption`).
"""

from collections.abc import Callable, Set

import numpy as np

from taco_proto.steps import IntArray
from taco_scheduler.core.block_growth import BlockGrowth
from taco_scheduler.core.preemption import Preemption
from taco_scheduler.core.prefix_sharing import StepPrefixSharing
from taco_scheduler.core.step_rows import StepRows
from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.kv.block_table import BlockTable
from taco_scheduler.kv.radix_node import CachedPrefix
from taco_scheduler.queue.gate import Gate
from taco_scheduler.queue.waiting_queue import WaitingQueue
from taco_scheduler.speculation.draft_length_limits import DraftLengthLimits
from taco_scheduler.state.batch import Batch, BoolArray
from taco_scheduler.state.sequence import Request, Sequence

# Priority, counter of the tenant, arrival, index.
Rank = tuple[int, float, int, int]

# Long prompts that a step passes over for shorter ones behind them.
MAX_LONG_PASSED = 16

# A plan carries the tokens of joining sequences, cached ones included. They must fit in a message.
MAX_JOINED_TOKENS = 2**22


class Policy:
    """Fills steps for one worker.

    Args:
        suspected: requests that were in a failed step. One at a time runs, on all workers together,
            so that the next failure identifies the request.
        max_num_batched_tokens: token budget of a step. Every running sequence gets at least one
            token a step, so `batch` has no more slots than that.
        long_prefill_token_threshold: tokens of a step for a prompt that does not fit in the step,
            before shorter prompts behind it get theirs. The prompt also gets the tokens that these
            leave. 0: it gets the whole budget first; None: a quarter of the budget.
        drafts: the draft tokens that sequences may verify.
        preemption: preempts sequences when slots or blocks run short.
        waiting_gates: while one of them holds a waiting sequence, it is set aside and gets no slot.
            Sequences behind it may run.
        delays_prompts: whether all waiting sequences wait, given the first of them.
        sampling_gates: while one of them holds a sequence, its prompt runs up to its last token, so
            that no step samples the sequence. They hold no sequence that has been sampled since
            it joined. Such sequences take at most half of the slots.
        admit: gives a waiting sequence a slot, with the block table made for it.
    """

    def __init__(
        self,
        batch: Batch,
        blocks: BlockManager,
        waiting: WaitingQueue,
        suspected: Set[Request],
        max_num_batched_tokens: int,
        long_prefill_token_threshold: int | None,
        drafts: DraftLengthLimits,
        preemption: Preemption,
        *,
        waiting_gates: tuple[Gate, ...],
        delays_prompts: Callable[[Sequence], bool],
        sampling_gates: tuple[Gate, ...] = (),
        admit: Callable[[Sequence, BlockTable], None],
    ) -> None:
        self._batch = batch
        self._blocks = blocks
        self._waiting = waiting
        self._suspected = suspected
        self._budget = max_num_batched_tokens
        if long_prefill_token_threshold is None:
            long_prefill_token_threshold = max(1, max_num_batched_tokens // 4)
        self._max_cut_chunk = long_prefill_token_threshold or max_num_batched_tokens
        self._drafts = drafts
        self._preemption = preemption
        self._waiting_gates = waiting_gates
        self._delays_prompts = delays_prompts
        self._sampling_gates = sampling_gates
        self._max_held = max(1, len(batch.sequences) // 2)
        self._admit = admit
        self._growth = BlockGrowth(batch, blocks, preemption)
        self._sharing = StepPrefixSharing(blocks.block_bytes, blocks.block_size)
        self._blocked: Sequence | None = None  # the waiting sequence that found too few blocks
        self._free_blocks_when_blocked = 0

    def fill_step(self, awaits_drafts: BoolArray | None = None) -> StepRows:
        """The rows of the next step. Takes blocks and slots, and leaves the batch's counters.

        Args:
            awaits_drafts: slots that do not run, because their drafts are on their way.
        """
        rows = StepRows()
        self._sharing.clear()
        self._waiting.bring_back()
        # Before the step has rows: a victim must not have one.
        self._preemption.preempt_for_next(self._blocked, self._must_wait)
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
            prefills.sort(key=_rank)
        if prefills and not has_preempted and self._waiting.num_sequences:
            budget = self._admit_waiting(rows, budget, before=_rank(prefills[0]))
        budget = self._continue_prefills(prefills, rows, budget)
        # Running sequences get the blocks that a preemption freed, before waiting ones.
        if not (has_preempted and rows):
            budget = self._admit_waiting(rows, budget)
        if rows.cut_chunk is not None:
            rows.chunk_tokens[rows.cut_chunk] += budget
        if len(rows.decode_slots):
            if wanted_drafts is not None:
                rows.max_drafts = self._allow_drafts(rows, wanted_drafts)
            else:
                rows.max_drafts = np.zeros(len(rows.decode_slots), np.int32)
        return rows

    def _must_wait(self, sequence: Sequence) -> bool:
        """Whether a sequence waits for something other than a slot and blocks."""
        is_gated = _closed_gate(self._waiting_gates, sequence) is not None
        return is_gated or self._delays_prompts(sequence)

    def _is_held(self, sequence: Sequence) -> bool:
        """Whether no step may sample the sequence yet."""
        return _closed_gate(self._sampling_gates, sequence) is not None

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
            num_left -= self._is_held(sequence)
            if num_left > 0 and budget > 0 and not _must_pass(sequence, num_left, rows, budget):
                budget -= self._add_chunk(rows, sequence, num_left, budget)
        return budget

    def _add_chunk(self, rows: StepRows, sequence: Sequence, num_left: int, budget: int) -> int:
        """Add a row of a prompt that has `num_left` tokens to compute; returns the row's tokens.

        A step cuts at most one prompt: the first one that does not fit. It gets the budget that
        the fitting prompts behind it leave, so that no budget is lost.
        """
        num_tokens = num_left
        if num_left > budget:
            num_tokens = min(budget, self._max_cut_chunk)
            rows.cut_chunk = len(rows.chunk_slots)
            rows.cut_priority = sequence.request.priority
        rows.add_chunk(sequence.slot, num_tokens)
        if self._blocks.enable_prefix_caching:
            self._sharing.add(sequence, int(self._batch.num_computed[sequence.slot]))
        return num_tokens

    def _admit_waiting(self, rows: StepRows, budget: int, before: Rank | None = None) -> int:
        """Give waiting sequences a slot and a first row, as slots, blocks and budget allow.

        Args:
            before: admit only sequences of a higher rank than this; None: all.

        Returns:
            The rest of the budget.
        """
        if budget <= 0 or self._is_still_blocked():
            return budget
        if not self._batch.num_free_slots:
            self._blocked = None
            return budget
        head = self._waiting.peek()
        if head is None or not _precedes(head, before) or self._delays_prompts(head):
            return budget
        self._blocked = None
        batch = self._batch
        suspect_runs = any(request.is_on_worker for request in self._suspected)
        passed_over: list[Sequence] = []
        num_kept_slots = num_joined_tokens = num_long = 0
        num_held: int | None = None
        while (
            budget > 0
            and batch.num_free_slots > num_kept_slots
            and num_joined_tokens < MAX_JOINED_TOKENS
            and num_long < MAX_LONG_PASSED
        ):
            sequence = self._waiting.pop()
            if sequence is None:
                break
            if not _precedes(sequence, before):
                passed_over.append(sequence)
                break
            is_suspect = sequence.request in self._suspected
            if is_suspect and suspect_runs:
                passed_over.append(sequence)
                continue
            if (gate := _closed_gate(self._waiting_gates, sequence)) is not None:
                self._waiting.set_aside(sequence, gate)
                continue
            prefix = self._find(sequence)
            if prefix is None:
                # It keeps its turn: no later sequence may take the slot that it will need.
                passed_over.append(sequence)
                num_kept_slots += 1
                continue
            num_left = len(sequence.tokens) - prefix.num_blocks * self._blocks.block_size
            gate = _closed_gate(self._sampling_gates, sequence)
            is_held = gate is not None
            if gate is not None:
                num_left -= 1
                if num_held is None:
                    num_held = sum(map(self._is_held, batch.running()))
                if not num_left or num_held >= self._max_held:
                    self._waiting.set_aside(sequence, gate)
                    continue
            if _must_pass(sequence, num_left, rows, budget):
                passed_over.append(sequence)
                num_long += 1
                continue
            table = self._allocate(sequence, prefix)
            if table is None:
                self._blocked = sequence
                self._free_blocks_when_blocked = self._blocks.num_free_blocks
                passed_over.append(sequence)
                break
            sequence.awaits = None
            self._admit(sequence, table)
            suspect_runs |= is_suspect
            if num_held is not None:
                num_held += is_held
            rows.joined.append(sequence)
            num_joined_tokens += len(sequence.tokens)
            num_left = len(sequence.tokens) - table.num_cached_tokens - is_held
            budget -= self._add_chunk(rows, sequence, num_left, budget)
        for sequence in passed_over:
            self._waiting.put_back(sequence)
        return budget

    def _is_still_blocked(self) -> bool:
        """Whether the first waiting sequence found too few blocks and none was freed since."""
        return (
            self._blocked is not None
            and self._blocked is self._waiting.peek()
            and self._blocks.num_free_blocks <= self._free_blocks_when_blocked
            and self._batch.num_running > 0
        )

    def _find(self, sequence: Sequence) -> CachedPrefix | None:
        """The cached prefix of a sequence.

        None if a row of this step computes the block behind it: the next step can match that block.
        """
        if self._sharing.awaits(sequence):
            return None
        read_cache = not sequence.computes_prompt_logprobs
        namespace = sequence.request.namespace
        prefix = self._blocks.find(sequence.pack(), namespace, read_cache=read_cache)
        is_shared = read_cache and self._sharing.should_await(sequence, prefix)
        return None if is_shared else prefix

    def _allocate(self, sequence: Sequence, prefix: CachedPrefix) -> BlockTable | None:
        """Allocate blocks for all tokens of a waiting sequence.

        Returns:
            None if less than one block would remain for each running sequence. Admitting a
            sequence only to preempt it soon costs more than it gives.
        """
        return self._blocks.allocate(
            sequence.pack(),
            len(sequence.tokens),
            sequence.request.namespace,
            read_cache=not sequence.computes_prompt_logprobs,
            num_spare_blocks=self._batch.num_running,
            found=prefix,
        )


def _closed_gate(gates: tuple[Gate, ...], sequence: Sequence) -> Gate | None:
    """The first gate that holds a sequence."""
    for gate in gates:
        if gate.must_wait(sequence):
            return gate
    return None


def _rank(sequence: Sequence) -> Rank:
    request = sequence.request
    return (request.priority, request.share.counter, request.arrival, sequence.index)


def _must_pass(sequence: Sequence, num_left: int, rows: StepRows, budget: int) -> bool:
    """Whether a prompt with `num_left` tokens to compute leaves the budget to the prompt that the
    step cuts: because it does not fit either, or has a lower priority.
    """
    if rows.cut_chunk is None:
        return False
    return num_left > budget or sequence.request.priority > rows.cut_priority


def _precedes(sequence: Sequence, other: Rank | None) -> bool:
    """Whether a waiting sequence runs before a running prefill of rank `other`.

    An earlier arrival alone does not count.
    """
    return other is None or _rank(sequence)[:2] < other[:2]
