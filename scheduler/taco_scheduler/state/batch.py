"""The batch: one worker's running sequences as columns over slots.

With columns, planning and committing a decode step is array arithmetic.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from taco_proto.steps import IntArray
from taco_scheduler.kv.block_table import BlockTable
from taco_scheduler.state.sequence import Sequence, Status
from taco_scheduler.state.token_log import TokenLog

LongArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class Batch:
    """Mirrors the worker's batch as it will be when every sent plan has run.

    A slot may get a new sequence while steps of its last sequence are in flight. The *slot
    generation* identifies one stay of a sequence in a slot, and no number is used twice. The output
    of a step belongs to the slot's sequence only if the slot generation is still that of the plan.

    Columns, by slot:
        slot_generation: of the slot's sequence; -1 for an empty slot.
        num_tokens: tokens of the sequence, including one for each step in flight that samples. More
            tokens of a step count when its accepted drafts are known.
        drafts_in_flight: drafts that steps in flight may accept in addition.
        num_committed: tokens whose values are known.
        num_computed: tokens whose KV is computed once the steps in flight are done.
        num_prefill: tokens when it joined; it decodes when their KV is computed.
        limit: length at which the sequence ends; 0 for an empty slot.
        capacity: tokens that its block table covers.
        ignore_eos, has_stop_tokens: which tokens end it earlier.
        no_token_yet: it has generated no token since its request arrived.
        client, handle, index: identify the sequence for its client.
        num_cached: prompt tokens that the prefix cache held.
        share: row of its tenant's share in `FairShare`.
        priority: of its request.
        has_grammar: a grammar constrains it.
        is_beam: it is a beam, whose next token follows from the candidates of all beams.
        is_held: it is a beam that no step may run: its step is in flight, or candidates of other
            beams are awaited.

    Attributes:
        num_beams: running sequences that are beams.
    """

    def __init__(self, num_slots: int) -> None:
        self.sequences: list[Sequence | None] = [None] * num_slots
        self._token_log = TokenLog(num_slots)
        self.slot_generation = np.full(num_slots, -1, dtype=np.int64)
        self.num_tokens = np.zeros(num_slots, dtype=np.int32)
        self.drafts_in_flight = np.zeros(num_slots, dtype=np.int32)
        self.num_committed = np.zeros(num_slots, dtype=np.int32)
        self.num_computed = np.zeros(num_slots, dtype=np.int32)
        self.num_prefill = np.zeros(num_slots, dtype=np.int32)
        self.limit = np.zeros(num_slots, dtype=np.int32)
        self.capacity = np.zeros(num_slots, dtype=np.int32)
        self.ignore_eos = np.zeros(num_slots, dtype=np.bool_)
        self.has_stop_tokens = np.zeros(num_slots, dtype=np.bool_)
        self.no_token_yet = np.zeros(num_slots, dtype=np.bool_)
        self.client = np.zeros(num_slots, dtype=np.int64)
        self.handle = np.zeros(num_slots, dtype=np.int64)
        self.index = np.zeros(num_slots, dtype=np.int32)
        self.num_cached = np.zeros(num_slots, dtype=np.int32)
        self.share = np.zeros(num_slots, dtype=np.int32)
        self.priority = np.zeros(num_slots, dtype=np.int64)
        self.has_grammar = np.zeros(num_slots, dtype=np.bool_)
        self.is_beam = np.zeros(num_slots, dtype=np.bool_)
        self.is_held = np.zeros(num_slots, dtype=np.bool_)
        self.num_beams = 0
        self.left_slots: list[int] = []  # slots freed since the last plan
        self._joins_again: list[Sequence] = []
        self._free_slots = list(range(num_slots))[::-1]
        self._next_slot_generation = 0

    @property
    def num_free_slots(self) -> int:
        return len(self._free_slots)

    @property
    def num_running(self) -> int:
        return len(self.sequences) - len(self._free_slots)

    @property
    def num_joined(self) -> int:
        """Sequences that have joined since the start."""
        return self._next_slot_generation

    def running(self) -> Iterator[Sequence]:
        return (sequence for sequence in self.sequences if sequence is not None)

    def owner(self, slot: int) -> Sequence:
        sequence = self.sequences[slot]
        assert sequence is not None
        return sequence

    @property
    def max_num_tokens(self) -> IntArray:
        """Tokens of each sequence once the steps in flight are done, if every draft is accepted."""
        return self.num_tokens + self.drafts_in_flight

    def append_tokens(self, slots: IntArray, num_tokens: IntArray, tokens: IntArray) -> None:
        """Append committed tokens to running sequences.

        Args:
            slots: the sequences' slots, each once.
            num_tokens: new tokens of each slot, at least one.
            tokens: int32 [sum(num_tokens)], slot after slot.
        """
        num_rows = 1 if tokens.size == slots.size else int(num_tokens.max())
        if not self._token_log.has_room(num_rows):
            self._empty_token_log()
        if num_rows == 1:
            self._token_log.add(slots, tokens)
        else:
            starts = np.cumsum(num_tokens) - num_tokens
            places = np.arange(tokens.size) - np.repeat(starts, num_tokens)
            self._token_log.add_several(np.repeat(slots, num_tokens), tokens, places, num_rows)

    def _empty_token_log(self) -> None:
        for sequence in self.running():
            _ = sequence.tokens  # moves them from the log to the sequence
        self._token_log.clear()

    def join(self, sequence: Sequence, table: BlockTable, limit: int, block_size: int) -> None:
        """Put a sequence in a free slot.

        Args:
            limit: length at which the sequence ends.
        """
        slot = self._free_slots.pop()
        request = sequence.request
        num_tokens = len(sequence.tokens)
        sequence.status = Status.RUNNING
        sequence.slot = slot
        sequence.slot_generation = self._next_slot_generation
        sequence.table = table
        self._next_slot_generation += 1
        self.sequences[slot] = sequence
        self._token_log.begin(slot)
        sequence.token_log = self._token_log
        self.slot_generation[slot] = sequence.slot_generation
        self.num_tokens[slot] = self.num_committed[slot] = self.num_prefill[slot] = num_tokens
        self.num_computed[slot] = table.num_cached_tokens
        self.drafts_in_flight[slot] = 0
        self.limit[slot] = limit
        self.capacity[slot] = len(table.blocks) * block_size
        self.ignore_eos[slot] = request.ignores_eos
        self.has_stop_tokens[slot] = bool(request.stop_token_ids)
        self.no_token_yet[slot] = sequence.first_token_time is None
        self.client[slot] = request.output_buffer.client
        self.handle[slot] = request.handle
        self.index[slot] = sequence.index
        self.num_cached[slot] = sequence.num_cached_tokens or 0
        self.share[slot] = request.share.index
        self.priority[slot] = request.priority
        self.has_grammar[slot] = request.grammar is not None
        self.is_beam[slot] = request.search is not None
        self.is_held[slot] = False
        self.num_beams += request.search is not None

    def leave(self, sequence: Sequence) -> None:
        """Free the slot; outputs in flight of this slot generation have no owner then."""
        slot = sequence.slot
        _ = sequence.tokens  # moves them from the log to the sequence
        sequence.token_log = None
        self.sequences[slot] = None
        self.slot_generation[slot] = -1
        self.limit[slot] = 0
        self.has_grammar[slot] = False
        self.num_beams -= int(self.is_beam[slot])
        self.is_beam[slot] = self.is_held[slot] = False
        if sequence in self._joins_again:  # its slot is among the left ones
            self._joins_again.remove(sequence)
        else:
            self.left_slots.append(slot)
        self._free_slots.append(slot)
        sequence.slot = -1
        sequence.table = None

    def continue_beam(self, sequence: Sequence, *, joins_again: bool) -> None:
        """Let steps run a held beam, which has got its next token.

        Args:
            joins_again: the worker has sampled another token. The next plan takes the sequence out
                of its slot, and puts it in again with the same blocks.
        """
        slot = sequence.slot
        self.num_committed[slot] += 1
        self.is_held[slot] = False
        if joins_again:
            self.left_slots.append(slot)
            self._joins_again.append(sequence)

    def take_joining_again(self) -> list[Sequence]:
        """Running sequences that the next plan puts in their slots again."""
        sequences, self._joins_again = self._joins_again, []
        return sequences

    def take_left_slots(self) -> IntArray:
        """Slots that sequences left since the last call."""
        left = np.array(self.left_slots, dtype=np.int32)
        self.left_slots.clear()
        return left
