"""Who runs in the next step: fills the step's token budget.

There are no separate phases: a sequence runs whatever it has left to compute, one token or a chunk
of its prompt. Running decodes come first, then chunks of running prefills, then sequences that
wait, by priority, what their tenants have had, and arrival. One that waits comes before a prefill
of lower rank, and takes the place of who holds more than its part (see `PreemptionOrder`).
"""

from collections.abc import Callable, Set

import numpy as np
import numpy.typing as npt

from taco_proto.config import MAX_SPECULATIVE_TOKENS
from taco_proto.steps import IntArray
from taco_scheduler.core.preemption import PreemptionOrder
from taco_scheduler.core.prefix_sharing import StepPrefixSharing
from taco_scheduler.core.step_rows import StepRows
from taco_scheduler.core.waiting_queue import WaitingQueue
from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.kv.block_table import BlockTable
from taco_scheduler.kv.radix_node import CachedPrefix
from taco_scheduler.speculation.draft_length_limits import DraftLengthLimits
from taco_scheduler.state.batch import Batch, BoolArray
from taco_scheduler.state.sequence import Request, Sequence

SlotNumbers = npt.NDArray[np.intp]

# Priority, what the tenant has had, arrival, index.
Rank = tuple[int, float, int, int]

# After a vain search for somebody to preempt, while nobody joins or leaves: tokens alone change who
# holds too much, and slowly.
RECHECK_INTERVAL = 8

# Prompts that need more than what is left of a step, and that the step looks past for shorter ones.
MAX_LONG_PASSED = 16

# A plan brings a joining sequence's tokens along, cached ones too. They must fit in one message.
MAX_JOINED_TOKENS = 2**22


class Policy:
    """Fills steps for one worker.

    Args:
        suspected_requests: were in a step that failed; one at a time is admitted, on all
            workers together, so that the next failure tells which one it was.
        max_num_batched_tokens: token budget of a step. Every running sequence gets at least a token
            a step, so `batch` has no more slots than that.
        long_prefill_token_threshold: tokens of a step that a prompt which does not fit in the step
            takes before shorter ones behind it; it gets what they leave, too. 0: it takes all that
            there are; None: a quarter of the budget.
        holds: whether a sequence that waits should go on waiting, for something else than room.
        delays: whether all who wait should, of whom the one that is given is next.
        preempt: takes a running sequence's slot and blocks away and queues it again.
        admit: gives a waiting sequence a slot, with the block table made for it.
        drafts: how many drafts sequences may have.
    """

    def __init__(
        self,
        batch: Batch,
        blocks: BlockManager,
        waiting: WaitingQueue,
        suspected_requests: Set[Request],
        max_num_batched_tokens: int,
        long_prefill_token_threshold: int | None,
        drafts: DraftLengthLimits,
        *,
        holds: Callable[[Sequence], bool],
        delays: Callable[[Sequence], bool],
        preempt: Callable[[Sequence], None],
        admit: Callable[[Sequence, BlockTable], None],
    ) -> None:
        self._batch = batch
        self._blocks = blocks
        self._waiting = waiting
        self._suspected_requests = suspected_requests
        self._budget = max_num_batched_tokens
        if long_prefill_token_threshold is None:
            long_prefill_token_threshold = max(1, max_num_batched_tokens // 4)
        self._max_cut_chunk = long_prefill_token_threshold or max_num_batched_tokens
        self._drafts = drafts
        self._holds = holds
        self._delays = delays
        self._preempt = preempt
        self._admit = admit
        self._prefixes = StepPrefixSharing(blocks.block_bytes, blocks.block_size)
        self._refused: Sequence | None = None
        self._free_blocks_at_refusal = 0
        # Blocks that a decode may need at once: with run-ahead, drafts of two steps are in flight.
        self._max_growth = 1 + 2 * MAX_SPECULATIVE_TOKENS // blocks.block_size
        self._failed_search = (-1, -1, -1)
        self._steps_to_recheck = 0

    def fill_step(self, held: BoolArray | None = None) -> StepRows:
        """The rows of the next step; blocks and slots are taken, the columns' counters are
        untouched.

        Args:
            held: slots that wait for something else, and do not run.
        """
        rows = StepRows()
        self._prefixes.clear()
        self._make_room()  # before there is a row of who is preempted
        remaining = self._remaining_tokens(held)
        wanted_drafts = self._drafts.allowed(self._batch)
        has_preempted = self._grow_tables(remaining, rows)
        if has_preempted:
            remaining = self._remaining_tokens(held)
        can_run = remaining > 0
        # By what is computed: the last chunk of a prompt may be one token long, like a decode.
        is_prefill = can_run & (self._batch.num_computed < self._batch.num_prefill)
        rows.decode_slots = (can_run & ~is_prefill).nonzero()[0].astype(np.int32)
        budget = self._budget - len(rows.decode_slots)
        wants_drafts = bool(wanted_drafts.any())
        if wants_drafts:
            self._grow_for_drafts(rows, wanted_drafts)
        prefills = sorted(map(self._batch.owner, is_prefill.nonzero()[0].tolist()), key=_rank)
        if prefills and not has_preempted:
            budget = self._admit_waiting(rows, budget, before=_rank(prefills[0]))
        budget = self._continue_prefills(prefills, rows, budget)
        # What a preemption freed belongs to those that still run, if any does.
        if not (has_preempted and rows):
            budget = self._admit_waiting(rows, budget)
        if rows.cut_chunk is not None:
            rows.chunk_tokens[rows.cut_chunk] += budget
        if wants_drafts and len(rows.decode_slots):
            rows.max_drafts = self._allow_drafts(rows, wanted_drafts)
        else:
            rows.max_drafts = np.zeros(len(rows.decode_slots), np.int32)
        return rows

    def _remaining_tokens(self, held: BoolArray | None) -> IntArray:
        """Tokens that each slot could run now; 0 for those that are empty or held, or may be at
        their end when what is in flight has come.
        """
        batch = self._batch
        can_run = batch.max_num_tokens < batch.limit
        if held is not None:
            can_run &= ~held
        return (batch.num_tokens - batch.num_computed) * can_run

    def _grow_tables(self, remaining: IntArray, rows: StepRows) -> bool:
        """Gives each decode that is at the end of its table a block; True if that took a
        preemption.

        The table of a sequence that still has prompt to compute covers all of it since its
        admission.
        """
        batch = self._batch
        num_tokens = batch.max_num_tokens
        slots = ((remaining == 1) & (num_tokens > batch.capacity)).nonzero()[0]
        needy = [batch.owner(slot) for slot in slots.tolist()]
        order: PreemptionOrder | None = None
        if len(needy) * self._max_growth > self._blocks.num_free_blocks:
            # The most urgent first: a victim is then never one that has just got a block.
            order = self._preemption_order()
            needy.sort(key=order.standing)
        elif needy:
            self._extend_all(needy, slots, num_tokens[slots], rows)
            return False
        has_preempted = False
        for sequence in needy:
            while (table := sequence.table) is not None:
                if self._extend(sequence, table, int(num_tokens[sequence.slot]), rows):
                    break
                assert order is not None
                self._preempt(order.least())
                has_preempted = True
        return has_preempted

    def _extend_all(
        self, sequences: list[Sequence], slots: SlotNumbers, num_tokens: IntArray, rows: StepRows
    ) -> None:
        """Makes the table of each sequence cover its number of tokens: there are enough blocks.

        Args:
            slots: of the sequences.
        """
        tables = [sequence.table for sequence in sequences if sequence.table is not None]
        num_blocks, blocks = self._blocks.extend_all(tables, num_tokens)
        rows.appended_slots += np.repeat(slots, num_blocks).tolist()
        rows.appended_blocks += blocks
        self._batch.capacity[slots] += np.array(num_blocks, np.int32) * self._blocks.block_size

    def _grow_for_drafts(self, rows: StepRows, wanted: IntArray) -> None:
        """Room for drafts, as long as that leaves a block for each sequence that runs: drafts are
        never worth a preemption.
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

    def _extend(
        self, sequence: Sequence, table: BlockTable, num_tokens: int, rows: StepRows
    ) -> bool:
        """Makes a table cover so many tokens; False if there are too few blocks."""
        blocks = self._blocks.extend(table, num_tokens)
        if blocks is None:
            return False
        rows.appended_slots += [sequence.slot] * len(blocks)
        rows.appended_blocks += blocks
        self._batch.capacity[sequence.slot] = len(table.blocks) * self._blocks.block_size
        return True

    def _allow_drafts(self, rows: StepRows, wanted: IntArray) -> IntArray:
        """For each decode what its blocks hold; drafts share what prompts leave of the budget."""
        batch, slots = self._batch, rows.decode_slots
        room = batch.capacity - batch.max_num_tokens
        share = (self._budget - rows.num_tokens) // len(slots)
        allowed: IntArray = np.minimum(wanted, np.minimum(room, share))[slots]
        return allowed.clip(0)

    def _continue_prefills(self, prefills: list[Sequence], rows: StepRows, budget: int) -> int:
        """Chunks of prefills that run; returns what is left of the budget."""
        batch = self._batch
        for sequence in prefills:
            num_left = int(batch.num_tokens[sequence.slot] - batch.num_computed[sequence.slot])
            if budget > 0 and not _must_pass(sequence, num_left, rows, budget):
                budget -= self._add_chunk(rows, sequence, num_left, budget)
        return budget

    def _add_chunk(self, rows: StepRows, sequence: Sequence, num_left: int, budget: int) -> int:
        """Adds a row of a prompt that has `num_left` tokens to compute; returns its tokens.

        One prompt in a step at most is cut: the first one that does not fit. It gets what those
        behind it, which do fit, leave of the budget, so that no budget is lost.
        """
        num_tokens = num_left
        if num_left > budget:
            num_tokens = min(budget, self._max_cut_chunk)
            rows.cut_chunk = len(rows.chunk_slots)
            rows.cut_priority = sequence.request.priority
        rows.add_chunk(sequence.slot, num_tokens)
        if self._blocks.enable_prefix_caching:
            self._prefixes.add(sequence, int(self._batch.num_computed[sequence.slot]))
        return num_tokens

    def _make_room(self) -> None:
        """Preempts whoever must give way to the sequence that is next and finds no place."""
        batch, waiting = self._batch, self._waiting
        if not waiting.has_several_tenants or (batch.num_free_slots and self._refused is None):
            return
        search = (waiting.num_pushed, batch.num_joined, batch.num_running)
        self._steps_to_recheck -= 1
        if search == self._failed_search and self._steps_to_recheck > 0:
            return
        sequence = waiting.peek()
        if sequence is None or (batch.num_free_slots and sequence is not self._refused):
            return
        if self._holds(sequence) or self._delays(sequence):
            return
        num_blocks = -(-len(sequence.tokens) // self._blocks.block_size)
        victim = self._preemption_order().yields_to(sequence, num_blocks)
        if victim is None:
            self._failed_search, self._steps_to_recheck = search, RECHECK_INTERVAL
        else:
            self._preempt(victim)

    def _preemption_order(self) -> PreemptionOrder:
        blocks = self._blocks
        fair_share = self._waiting.fair_share
        return PreemptionOrder(self._batch, fair_share, blocks.num_blocks, blocks.block_size)

    def _admit_waiting(self, rows: StepRows, budget: int, before: Rank | None = None) -> int:
        """Gives sequences that wait a slot and a first row, as far as slots, blocks and budget go;
        only those of a higher rank than `before`, if that is given. Returns what is left of the
        budget.
        """
        if budget <= 0 or self._is_vain():
            return budget
        if not self._batch.num_free_slots:
            self._refused = None
            return budget
        head = self._waiting.peek()
        if head is None or not _precedes(head, before) or self._delays(head):
            return budget
        self._refused = None
        batch = self._batch
        suspects_run = any(request.is_on_worker for request in self._suspected_requests)
        passed_over: list[Sequence] = []
        num_kept_slots = num_joined_tokens = num_long = 0
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
            is_suspect = sequence.request in self._suspected_requests
            if is_suspect and suspects_run:
                passed_over.append(sequence)
                continue
            if self._holds(sequence):
                passed_over.append(sequence)
                continue
            prefix = self._find(sequence)
            if prefix is None:
                # It keeps its turn: no later one may take the slot that it will need then.
                passed_over.append(sequence)
                num_kept_slots += 1
                continue
            num_left = len(sequence.tokens) - prefix.num_blocks * self._blocks.block_size
            if _must_pass(sequence, num_left, rows, budget):
                passed_over.append(sequence)
                num_long += 1
                continue
            table = self._allocate(sequence, prefix)
            if table is None:
                self._refused = sequence
                self._free_blocks_at_refusal = self._blocks.num_free_blocks
                passed_over.append(sequence)
                break
            sequence.awaits = None
            self._admit(sequence, table)
            suspects_run |= is_suspect
            rows.joined.append(sequence)
            num_joined_tokens += len(sequence.tokens)
            num_left = len(sequence.tokens) - table.num_cached_tokens
            budget -= self._add_chunk(rows, sequence, num_left, budget)
        for sequence in passed_over:
            self._waiting.put_back(sequence)
        return budget

    def _is_vain(self) -> bool:
        """The most urgent sequence was refused, and no block has been freed since."""
        return (
            self._refused is not None
            and self._refused is self._waiting.peek()
            and self._blocks.num_free_blocks <= self._free_blocks_at_refusal
            and self._batch.num_running > 0
        )

    def _find(self, sequence: Sequence) -> CachedPrefix | None:
        """What is cached of a sequence; None if a row of this step computes the block behind it,
        which can be matched in the next step.
        """
        if self._prefixes.awaits(sequence):
            return None
        read_cache = not sequence.computes_prompt_logprobs
        namespace = sequence.request.namespace
        prefix = self._blocks.find(sequence.pack(), namespace, read_cache=read_cache)
        is_shared = read_cache and self._prefixes.should_await(sequence, prefix)
        return None if is_shared else prefix

    def _allocate(self, sequence: Sequence, prefix: CachedPrefix) -> BlockTable | None:
        """Blocks for all its tokens; None if that would leave less than a block for each sequence
        that runs to grow into: admitting more only to preempt them soon costs more than it gives.
        """
        return self._blocks.allocate(
            sequence.pack(),
            len(sequence.tokens),
            sequence.request.namespace,
            read_cache=not sequence.computes_prompt_logprobs,
            num_spare_blocks=self._batch.num_running,
            found=prefix,
        )


def _rank(sequence: Sequence) -> Rank:
    request = sequence.request
    return (request.priority, request.share.counter, request.arrival, sequence.index)


def _must_pass(sequence: Sequence, num_left: int, rows: StepRows, budget: int) -> bool:
    """Whether the budget belongs to the prompt that is cut rather than to this one, which has
    `num_left` tokens to compute: a longer one, or one of lower priority.
    """
    if rows.cut_chunk is None:
        return False
    return num_left > budget or sequence.request.priority > rows.cut_priority


def _precedes(sequence: Sequence, other: Rank | None) -> bool:
    """Whether a sequence that waits runs before one of rank `other` that computes its prompt: not
    for its arrival alone.
    """
    return other is None or _rank(sequence)[:2] < other[:2]
