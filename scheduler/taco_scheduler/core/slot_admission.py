"""Slot admission: gives waiting sequences their slots, blocks and first rows."""

from collections.abc import Callable, Set
from dataclasses import dataclass, field

from taco_scheduler.core.prompt_chunks import PromptChunks, must_pass
from taco_scheduler.core.step_rows import StepRows
from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.kv.block_table import BlockTable
from taco_scheduler.kv.radix_node import CachedPrefix
from taco_scheduler.queue.gate import Gate, closed_gate
from taco_scheduler.queue.waiting_queue import WaitingQueue
from taco_scheduler.state.batch import Batch
from taco_scheduler.state.sequence import Request, Sequence

# Priority, counter of the tenant, arrival, index.
Rank = tuple[int, float, int, int]

# Long prompts that a step passes over for shorter ones behind them.
MAX_LONG_PASSED = 16

# A plan carries the tokens of joining sequences, cached ones included. They must fit in a message.
MAX_JOINED_TOKENS = 2**22


@dataclass(slots=True)
class _Round:
    """One pass over the waiting sequences.

    Attributes:
        runs_suspect: a suspected request runs.
        passed_over: sequences that keep their turn for the next step.
        num_kept_slots: free slots that are kept for them.
        num_long: how many of them are long prompts.
        num_held: sequences with a slot that a sampling gate holds; None: not counted yet.
    """

    rows: StepRows
    budget: int
    runs_suspect: bool
    passed_over: list[Sequence] = field(default_factory=list)
    num_kept_slots: int = 0
    num_joined_tokens: int = 0
    num_long: int = 0
    num_held: int | None = None

    def has_room(self, num_free_slots: int) -> bool:
        return (
            self.budget > 0
            and num_free_slots > self.num_kept_slots
            and self.num_joined_tokens < MAX_JOINED_TOKENS
            and self.num_long < MAX_LONG_PASSED
        )


class SlotAdmission:
    """Admits the waiting sequences of one worker, as slots, blocks and the step's budget allow.

    Attributes:
        blocked: the waiting sequence that found too few blocks; None: none did.
    """

    def __init__(
        self,
        batch: Batch,
        blocks: BlockManager,
        waiting: WaitingQueue,
        suspected: Set[Request],
        chunks: PromptChunks,
        *,
        waiting_gates: tuple[Gate, ...],
        sampling_gates: tuple[Gate, ...],
        delays_prompts: Callable[[Sequence], bool],
        admit: Callable[[Sequence, BlockTable], None],
    ) -> None:
        """
        Args:
            suspected: requests that were in a failed step. One at a time runs, on all workers
                together, so that the next failure identifies the request.
            chunks: adds the first rows.
            waiting_gates: while one of them holds a waiting sequence, it is set aside and gets no
                slot. Sequences behind it may run.
            sampling_gates: see `Policy`. Sequences that they hold take at most half of the slots.
            delays_prompts: whether all waiting sequences wait, given the first of them.
            admit: gives a waiting sequence a slot, with the block table made for it.
        """
        self.blocked: Sequence | None = None
        self._free_blocks_when_blocked = 0
        self._batch = batch
        self._blocks = blocks
        self._waiting = waiting
        self._suspected = suspected
        self._chunks = chunks
        self._waiting_gates = waiting_gates
        self._sampling_gates = sampling_gates
        self._max_held = max(1, len(batch.sequences) // 2)
        self._delays_prompts = delays_prompts
        self._admit = admit

    def must_wait(self, sequence: Sequence) -> bool:
        """Whether a sequence waits for something other than a slot and blocks."""
        if closed_gate(self._waiting_gates, sequence) or self._delays_prompts(sequence):
            return True
        is_held = closed_gate(self._sampling_gates, sequence) is not None
        return is_held and self._count_held() >= self._max_held

    def admit_waiting(self, rows: StepRows, budget: int, before: Rank | None = None) -> int:
        """Give waiting sequences a slot and a first row.

        Args:
            before: admit only sequences of a higher rank than this; None: all.

        Returns:
            The rest of the budget.
        """
        if budget <= 0 or self._is_still_blocked():
            return budget
        if not self._batch.num_free_slots:
            self.blocked = None
            return budget
        head = self._waiting.peek()
        if head is None or not _precedes(head, before) or self._delays_prompts(head):
            return budget
        self.blocked = None
        runs_suspect = any(request.is_on_worker for request in self._suspected)
        this = _Round(rows, budget, runs_suspect)
        while self.blocked is None and this.has_room(self._batch.num_free_slots):
            sequence = self._waiting.pop()
            if sequence is None:
                break
            if not _precedes(sequence, before):
                this.passed_over.append(sequence)
                break
            self._consider(sequence, this)
        for sequence in this.passed_over:
            self._waiting.put_back(sequence)
        return this.budget

    def _consider(self, sequence: Sequence, this: _Round) -> None:
        """Admit a sequence, set it aside, or pass it over."""
        if this.runs_suspect and sequence.request in self._suspected:
            this.passed_over.append(sequence)
            return
        if (gate := closed_gate(self._waiting_gates, sequence)) is not None:
            self._waiting.set_aside(sequence, gate)
            return
        prefix = self._find(sequence)
        if prefix is None:
            # It keeps its turn: no later sequence may take the slot that it will need.
            this.passed_over.append(sequence)
            this.num_kept_slots += 1
            return
        num_left = len(sequence.tokens) - prefix.num_blocks * self._blocks.block_size
        gate = closed_gate(self._sampling_gates, sequence)
        if gate is not None:
            num_left -= 1
            if not num_left or self._num_held(this) >= self._max_held:
                self._waiting.set_aside(sequence, gate)
                return
        if must_pass(sequence, num_left, this.rows, this.budget):
            this.passed_over.append(sequence)
            this.num_long += 1
            return
        table = self._allocate(sequence, prefix)
        if table is None:
            self.blocked = sequence
            self._free_blocks_when_blocked = self._blocks.num_free_blocks
            this.passed_over.append(sequence)
            return
        self._join(sequence, table, this, is_held=gate is not None)

    def _join(self, sequence: Sequence, table: BlockTable, this: _Round, *, is_held: bool) -> None:
        sequence.awaits = None
        self._admit(sequence, table)
        this.runs_suspect |= sequence.request in self._suspected
        if is_held:
            this.num_held = self._num_held(this) + 1
        this.rows.joined.append(sequence)
        this.num_joined_tokens += len(sequence.tokens)
        num_left = len(sequence.tokens) - table.num_cached_tokens - is_held
        this.budget -= self._chunks.add(this.rows, sequence, num_left, this.budget)

    def _num_held(self, this: _Round) -> int:
        if this.num_held is None:
            this.num_held = self._count_held()
        return this.num_held

    def _count_held(self) -> int:
        running, gates = self._batch.running(), self._sampling_gates
        return sum(closed_gate(gates, other) is not None for other in running)

    def _is_still_blocked(self) -> bool:
        """Whether the first waiting sequence found too few blocks and none was freed since."""
        return (
            self.blocked is not None
            and self.blocked is self._waiting.peek()
            and self._blocks.num_free_blocks <= self._free_blocks_when_blocked
            and self._batch.num_running > 0
        )

    def _find(self, sequence: Sequence) -> CachedPrefix | None:
        """The cached prefix of a sequence.

        None if a row of this step computes the block behind it: the next step can match that block.
        """
        sharing = self._chunks.sharing
        if sharing.awaits(sequence):
            return None
        read_cache = not sequence.computes_prompt_logprobs
        namespace = sequence.request.namespace
        prefix = self._blocks.find(sequence.pack(), namespace, read_cache=read_cache)
        is_shared = read_cache and sharing.should_await(sequence, prefix)
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


def rank(sequence: Sequence) -> Rank:
    request = sequence.request
    return (request.priority, request.share.counter, request.arrival, sequence.index)


def _precedes(sequence: Sequence, other: Rank | None) -> bool:
    """Whether a waiting sequence runs before a running prefill of rank `other`.

    An earlier arrival alone does not count.
    """
    return other is None or rank(sequence)[:2] < other[:2]
