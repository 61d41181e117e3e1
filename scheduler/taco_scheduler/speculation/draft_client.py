"""Draft client: requests drafts from one draft worker, and holds back the slots that await them."""

import logging
from dataclasses import dataclass

import numpy as np

from taco_proto.drafts import DrafterInfo, DraftReply, DraftRequest
from taco_proto.steps import EMPTY, IntArray, PlannedDrafts, StepOutput
from taco_scheduler.speculation.draft_length_controller import DraftLengthController
from taco_scheduler.speculation.draft_length_limits import DraftLengthLimits
from taco_scheduler.state.batch import BoolArray
from taco_scheduler.state.counters import Counters
from taco_scheduler.state.in_flight import InFlightStep
from taco_scheduler.state.sequence import Sequence
from taco_scheduler.state.worker_state import WorkerState

logger = logging.getLogger("taco.scheduler")

# A reply may take this many times as long as usual, and at least the minimum. Then the step runs
# without it.
_PATIENCE = 3.0
_MIN_PATIENCE_SECONDS = 0.05
_FIRST_PATIENCE_SECONDS = 1.0
# A draft worker whose reply takes this many times as long as usual, and longer than a step may
# take, hangs.
_STALL_FACTOR = 10.0


@dataclass(slots=True)
class _KnownSequence:
    """A sequence at the draft worker: its number there, and the tokens that it has."""

    number: int
    num_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _PendingRequest:
    """The request that is out."""

    request_id: int
    num_drafts: int
    sent_at: float
    catches_up: bool  # it brings more than the tokens of a step
    generations: dict[int, tuple[int, int]]


class NoDraftClient:
    """The draft client of a replica without a draft worker: it never has drafts."""

    is_drafting = False

    def forget(self, sequence: Sequence) -> None:
        """See `DraftClient`, here and below."""

    def slots_awaiting_drafts(self) -> BoolArray | None:
        return None

    def ask(self, now: float) -> DraftRequest | None:
        return None

    def deadline(self) -> float | None:
        return None

    def stall_deadline(self, step_timeout: float) -> float | None:
        return None

    def take(self, reply: DraftReply, now: float) -> None:
        """The reply of a detached draft worker is dropped."""

    def planned(self, slots: IntArray, max_drafts: IntArray) -> PlannedDrafts | None:
        return None

    def note_step(self, step: InFlightStep, output: StepOutput, now: float) -> None:
        """Steps without drafts need no measurement."""


class DraftClient:
    """The scheduler's side of one draft worker. It has no clock and sends nothing itself.

    Sequences with drafts are not run ahead: the next step waits for the drafts, which follow the
    last token. If a reply is late, the step runs without it.

    Invalid drafts, with tokens outside the vocabulary or with too many tokens, are dropped and
    counted.
    """

    def __init__(
        self,
        info: DrafterInfo,
        worker: WorkerState,
        limits: DraftLengthLimits,
        max_drafts: int,
        counters: Counters,
    ) -> None:
        """`max_drafts`: draft tokens of a sequence in a step, by configuration."""
        max_drafts = min(max_drafts, limits.max_draft_tokens)
        self.info = info
        self._counters = counters
        self._worker = worker
        self._limits = limits
        self._max_drafts = max_drafts
        self._controller = DraftLengthController(max_drafts)
        self._known: dict[Sequence, _KnownSequence] = {}
        self._left: list[int] = []
        self._num_numbers = 0
        self._num_requests = 0
        self._pending: _PendingRequest | None = None
        self._is_waiting = False
        self._num_drafts = self._controller.choose(1)
        self._last_output_at: float | None = None
        self._chains: dict[int, tuple[int, IntArray]] = {}  # by slot generation: length, drafts

    def forget(self, sequence: Sequence) -> None:
        """Drop an ended sequence; the next request tells the draft worker."""
        known = self._known.pop(sequence, None)
        if known is not None:
            self._left.append(known.number)

    @property
    def is_drafting(self) -> bool:
        """Whether drafts are requested, or wait to be verified."""
        return self._num_drafts > 0 or bool(self._chains)

    # ---------------------------------------------------------------- requests

    def slots_awaiting_drafts(self) -> BoolArray | None:
        """Mask of the slots that must not run now; None: no slot waits.

        Their drafts, or the tokens before these, are on their way.
        """
        is_late = self._pending is not None and not self._is_waiting
        if not self._num_drafts or is_late:
            return None
        batch = self._worker.batch
        has_prefilled = batch.num_computed >= batch.num_prefill
        awaits = self._in_flight() & has_prefilled & self._may_draft()
        if self._is_waiting and self._pending is not None:
            generations = np.array(
                [generation for generation, _ in self._pending.generations.values()]
            )
            awaits |= np.isin(batch.slot_generation, generations)
        return awaits

    def ask(self, now: float) -> DraftRequest | None:
        """The next request; None while one is pending, or if no sequence needs drafts."""
        self._check_late(now)
        if self._pending is not None or not self._num_drafts:
            return None
        batch, wanted = self._worker.batch, self._limits.wanted(self._worker.batch)
        may = self._may_draft() & ~self._in_flight() & (batch.num_tokens == batch.num_computed + 1)
        slots = np.flatnonzero(may)
        undrafted = [
            slot
            for slot in slots.tolist()
            if self._chains.get(int(batch.slot_generation[slot]), (-1,))[0]
            != batch.num_tokens[slot]
        ]
        return self._request(undrafted, wanted, now) if undrafted else None

    def deadline(self) -> float | None:
        """When the next step runs without the pending drafts; None if it waits for none."""
        if self._pending is None or not self._is_waiting:
            return None
        usual = self._controller.draft_seconds
        patience = _FIRST_PATIENCE_SECONDS if usual is None else _PATIENCE * usual
        return self._pending.sent_at + max(patience, _MIN_PATIENCE_SECONDS)

    def stall_deadline(self, step_timeout: float) -> float | None:
        """When the draft worker counts as lost unless it replies; None: it owes no reply.

        Args:
            step_timeout: seconds that every reply may take.
        """
        if self._pending is None:
            return None
        usual = self._controller.draft_seconds or 0.0
        return self._pending.sent_at + max(step_timeout, _STALL_FACTOR * usual)

    def take(self, reply: DraftReply, now: float) -> None:
        """Take a reply. A late one only counts for the measured draft time."""
        pending = self._pending
        if pending is None or reply.request_id != pending.request_id:
            self._counters.num_invalid_drafts += 1
            return
        self._pending = None
        was_waited_for, self._is_waiting = self._is_waiting, False
        self._controller.note_draft(
            pending.num_drafts, now - pending.sent_at, caught_up=pending.catches_up
        )
        if not self._is_valid(reply, pending):
            if not self._counters.num_invalid_drafts:
                logger.error("draft worker %s sends invalid drafts", self.info.name)
            self._counters.num_invalid_drafts += 1
            reply = DraftReply(request_id=reply.request_id)
        if was_waited_for:
            self._keep_chains(reply, pending)

    # ------------------------------------------------------------------- steps

    def planned(self, slots: IntArray, max_drafts: IntArray) -> PlannedDrafts | None:
        """The drafts of a step's decodes, as many tokens each as its row may verify."""
        batch = self._worker.batch
        found: list[tuple[int, int, IntArray]] = []
        for slot, limit in zip(slots.tolist(), max_drafts.tolist(), strict=True):
            num_tokens, chain = self._chains.pop(int(batch.slot_generation[slot]), (-1, EMPTY))
            if chain.size and limit and num_tokens == batch.num_tokens[slot]:
                found.append((slot, num_tokens, chain[:limit]))
        if not found:
            return None
        return PlannedDrafts(
            slots=np.array([slot for slot, _, _ in found], dtype=np.int32),
            num_tokens=np.array([num for _, num, _ in found], dtype=np.int32),
            num_drafts=np.array([chain.size for _, _, chain in found], dtype=np.int32),
            token_ids=np.concatenate([chain for _, _, chain in found]),
        )

    def note_step(self, step: InFlightStep, output: StepOutput, now: float) -> None:
        """Record the accepted drafts and the time of a step, and choose the next draft length."""
        last_output_at, self._last_output_at = self._last_output_at, now
        if last_output_at is None or not step.only_decodes or not output.slots.size:
            return
        since_last = now - last_output_at
        if self._num_drafts and output.num_drafts.size:
            columns = (output.num_drafts, output.num_tokens - 1)
            for drafts, accepted in zip(*(c.tolist() for c in columns), strict=True):
                if drafts:
                    self._controller.note_accepted(min(drafts, self._max_drafts), accepted)
        # The rows of this step have waited since the last output.
        if not self._num_drafts:
            self._controller.note_plain_step(output.slots.size, output.token_ids.size, since_last)
        else:
            self._controller.note_drafted_step(
                self._num_decoding(), output.token_ids.size, since_last
            )
            if step.ran_alone:
                num_tokens = output.slots.size + int(output.num_drafts.sum())
                self._controller.note_step(num_tokens, now - step.planned_at)
        self._num_drafts = self._controller.choose(output.slots.size)
        if not self._num_drafts:
            self._chains.clear()

    # ----------------------------------------------------------------- details

    def _num_decoding(self) -> int:
        batch = self._worker.batch
        is_decoding = (batch.limit > 0) & (batch.num_computed >= batch.num_prefill)
        return max(1, int(np.count_nonzero(is_decoding)))  # all may be cancelled

    def _may_draft(self) -> BoolArray:
        """Mask of the slots that want drafts and are short enough for the draft model."""
        batch = self._worker.batch
        return (self._limits.wanted(batch) > 0) & (batch.num_tokens < self.info.max_model_len)

    def _in_flight(self) -> BoolArray:
        return self._worker.in_flight.is_in_flight(self._worker.batch.slot_generation)

    def _check_late(self, now: float) -> None:
        deadline = self.deadline()
        if deadline is not None and now >= deadline:
            self._is_waiting = False
            self._counters.num_late_drafts += 1

    def _request(self, slots: list[int], wanted: IntArray, now: float) -> DraftRequest:
        rows: list[tuple[int, int, np.ndarray]] = []
        generations: dict[int, tuple[int, int]] = {}
        for slot in slots:
            sequence = self._worker.batch.owner(slot)
            known = self._known.get(sequence)
            if known is None:
                self._num_numbers += 1
                known = self._known[sequence] = _KnownSequence(self._num_numbers)
            all_tokens = sequence.tokens
            tokens = np.array(all_tokens[known.num_tokens :], dtype=np.int32)
            rows.append((known.number, known.num_tokens, tokens))
            known.num_tokens = len(all_tokens)
            generations[known.number] = (sequence.slot_generation, known.num_tokens)
        self._num_requests += 1
        catches_up = any(tokens.size > self._max_drafts + 1 for _, _, tokens in rows)
        self._pending = _PendingRequest(
            self._num_requests, self._num_drafts, now, catches_up, generations
        )
        self._is_waiting = True
        left, self._left = self._left, []
        return DraftRequest(
            request_id=self._num_requests,
            left=np.array(left, dtype=np.int64),
            sequences=np.array([number for number, _, _ in rows], dtype=np.int64),
            num_known=np.array([num_known for _, num_known, _ in rows], dtype=np.int32),
            num_tokens=np.array([tokens.size for _, _, tokens in rows], dtype=np.int32),
            token_ids=np.concatenate([tokens for _, _, tokens in rows]),
            num_drafts=np.minimum(wanted[slots], self._num_drafts).astype(np.int32),
        )

    def _is_valid(self, reply: DraftReply, pending: _PendingRequest) -> bool:
        sizes, ids = reply.num_drafts, reply.token_ids
        return (
            sizes.size == reply.sequences.size
            and bool((sizes >= 0).all() and (sizes <= pending.num_drafts).all())
            and int(sizes.sum()) == ids.size
            and (not ids.size or (int(ids.min()) >= 0 and int(ids.max()) < self.info.vocab_size))
            and all(number in pending.generations for number in reply.sequences.tolist())
        )

    def _keep_chains(self, reply: DraftReply, pending: _PendingRequest) -> None:
        # A sequence without drafts gets an empty chain, so that it does not wait again.
        nothing = reply.token_ids[:0]
        self._chains = {
            generation: (num, nothing) for generation, num in pending.generations.values()
        }
        ends = np.cumsum(reply.num_drafts).tolist()
        sizes = reply.num_drafts.tolist()
        for number, size, end in zip(reply.sequences.tolist(), sizes, ends, strict=True):
            generation, num_tokens = pending.generations[number]
            self._chains[generation] = (num_tokens, reply.token_ids[end - size : end])
