"""Drafts of a draft worker: who is asked for, who waits for them, and what came back."""

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

# A reply may take so many times as long as usual, and in any case so long, before the step goes on
# without it.
_PATIENCE = 3.0
_MIN_PATIENCE_SECONDS = 0.05
_FIRST_PATIENCE_SECONDS = 1.0


@dataclass(slots=True)
class _Known:
    """What the draft worker knows of a sequence: its number there, and how many tokens."""

    number: int
    num_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Asked:
    """The request that is out."""

    request_id: int
    num_drafts: int
    asked_at: float
    catches_up: bool  # it brings more than the tokens of a step
    generations: dict[int, tuple[int, int]]  # by number: tenure, tokens of the sequence


class DraftClient:
    """One draft worker's part in the engine. It keeps no clock and sends nothing itself.

    Sequences that it drafts for are not run ahead: their next step waits for the drafts, which
    follow their last token. When a reply is late, they go on without.

    What comes that cannot be drafts, tokens outside the vocabulary or too many of them, is left
    out and counted.
    """

    def __init__(
        self,
        info: DrafterInfo,
        worker: WorkerState,
        limits: DraftLengthLimits,
        max_drafts: int,
        counters: Counters,
    ) -> None:
        """`max_drafts` of a sequence in a step."""
        max_drafts = min(max_drafts, limits.max_draft_tokens)
        self.info = info
        self._counters = counters
        self._worker = worker
        self._limits = limits
        self._max_drafts = max_drafts
        self._pace = DraftLengthController(max_drafts)
        self._known: dict[Sequence, _Known] = {}
        self._left: list[int] = []
        self._num_numbers = 0
        self._num_requests = 0
        self._asked: _Asked | None = None
        self._is_waiting = False
        self._num_drafts = self._pace.choose(1)
        self._last_output_at = 0.0
        self._chains: dict[int, tuple[int, IntArray]] = {}  # by tenure: tokens before, drafts

    def forget(self, sequence: Sequence) -> None:
        """It has ended."""
        known = self._known.pop(sequence, None)
        if known is not None:
            self._left.append(known.number)

    @property
    def is_on(self) -> bool:
        """Drafts are asked for, or have come and not been used yet."""
        return self._num_drafts > 0 or bool(self._chains)

    # ---------------------------------------------------------------- requests

    def held(self) -> BoolArray | None:
        """Slots that must not be planned now: their drafts, or the tokens before them, are on
        their way. None: no slot waits.
        """
        is_late = self._asked is not None and not self._is_waiting
        if not self._num_drafts or is_late:
            return None
        batch = self._worker.batch
        has_prefilled = batch.num_computed >= batch.num_prefill
        held = self._in_flight() & has_prefilled & (self._limits.wanted(batch) > 0)
        if self._is_waiting and self._asked is not None:
            generations = np.array(
                [generation for generation, _ in self._asked.generations.values()]
            )
            held |= np.isin(batch.slot_generation, generations)
        return held

    def ask(self, now: float) -> DraftRequest | None:
        """The next request; None while one is out, or if there is nobody to draft for."""
        self._check_late(now)
        if self._asked is not None or not self._num_drafts:
            return None
        batch, wanted = self._worker.batch, self._limits.wanted(self._worker.batch)
        may = (wanted > 0) & ~self._in_flight() & (batch.num_tokens == batch.num_computed + 1)
        may &= batch.num_tokens < self.info.max_model_len
        slots = np.flatnonzero(may)
        fresh = [
            slot
            for slot in slots.tolist()
            if self._chains.get(int(batch.slot_generation[slot]), (-1,))[0]
            != batch.num_tokens[slot]
        ]
        return self._request(fresh, wanted, now) if fresh else None

    def deadline(self) -> float | None:
        """When the step goes on without the drafts that are waited for."""
        if self._asked is None or not self._is_waiting:
            return None
        usual = self._pace.draft_seconds
        patience = _FIRST_PATIENCE_SECONDS if usual is None else _PATIENCE * usual
        return self._asked.asked_at + max(patience, _MIN_PATIENCE_SECONDS)

    def take(self, reply: DraftReply, now: float) -> None:
        """A reply; one that nobody waits for any more only tells how long it took."""
        asked = self._asked
        if asked is None or reply.request_id != asked.request_id:
            self._counters.num_invalid_drafts += 1
            return
        self._asked = None
        was_waited_for, self._is_waiting = self._is_waiting, False
        self._pace.note_draft(asked.num_drafts, now - asked.asked_at, caught_up=asked.catches_up)
        if not self._is_valid(reply, asked):
            if not self._counters.num_invalid_drafts:
                logger.error("draft worker %s gives what cannot be drafts", self.info.name)
            self._counters.num_invalid_drafts += 1
            reply = DraftReply(request_id=reply.request_id)
        if was_waited_for:
            self._keep_chains(reply, asked)

    # ------------------------------------------------------------------- steps

    def planned(self, slots: IntArray, max_drafts: IntArray) -> PlannedDrafts | None:
        """The chains of a step's decodes, each as long as its row may verify."""
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
        """What a step came to."""
        since_last, self._last_output_at = now - self._last_output_at, now
        if not step.only_decodes or not output.slots.size:
            return
        if self._num_drafts and output.num_drafts.size:
            columns = (output.num_drafts, output.num_tokens - 1)
            for drafts, accepted in zip(*(c.tolist() for c in columns), strict=True):
                if drafts:
                    self._pace.note_accepted(min(drafts, self._max_drafts), accepted)
        # Since the last output something of what ran now has been waiting to run.
        if not self._num_drafts:
            self._pace.note_plain_step(output.slots.size, output.token_ids.size, since_last)
        else:
            self._pace.note_drafted_step(self._num_decoding(), output.token_ids.size, since_last)
            if step.ran_alone:
                num_tokens = output.slots.size + int(output.num_drafts.sum())
                self._pace.note_step(num_tokens, now - step.planned_at)
        self._num_drafts = self._pace.choose(output.slots.size)
        if not self._num_drafts:
            self._chains.clear()

    # ----------------------------------------------------------------- details

    def _num_decoding(self) -> int:
        batch = self._worker.batch
        is_decoding = (batch.limit > 0) & (batch.num_computed >= batch.num_prefill)
        return max(1, int(np.count_nonzero(is_decoding)))  # they may have been cancelled meanwhile

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
                known = self._known[sequence] = _Known(self._num_numbers)
            all_tokens = sequence.tokens
            tokens = np.array(all_tokens[known.num_tokens :], dtype=np.int32)
            rows.append((known.number, known.num_tokens, tokens))
            known.num_tokens = len(all_tokens)
            generations[known.number] = (sequence.slot_generation, known.num_tokens)
        self._num_requests += 1
        catches_up = any(tokens.size > self._max_drafts + 1 for _, _, tokens in rows)
        self._asked = _Asked(self._num_requests, self._num_drafts, now, catches_up, generations)
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

    def _is_valid(self, reply: DraftReply, asked: _Asked) -> bool:
        sizes, ids = reply.num_drafts, reply.token_ids
        return (
            sizes.size == reply.sequences.size
            and bool((sizes >= 0).all() and (sizes <= asked.num_drafts).all())
            and int(sizes.sum()) == ids.size
            and (not ids.size or (int(ids.min()) >= 0 and int(ids.max()) < self.info.vocab_size))
            and all(number in asked.generations for number in reply.sequences.tolist())
        )

    def _keep_chains(self, reply: DraftReply, asked: _Asked) -> None:
        # An empty chain for whoever is missing: it has been asked for and does not wait again.
        nothing = reply.token_ids[:0]
        self._chains = {
            generation: (num, nothing) for generation, num in asked.generations.values()
        }
        ends = np.cumsum(reply.num_drafts).tolist()
        sizes = reply.num_drafts.tolist()
        for number, size, end in zip(reply.sequences.tolist(), sizes, ends, strict=True):
            generation, num_tokens = asked.generations[number]
            self._chains[generation] = (num_tokens, reply.token_ids[end - size : end])
