"""Turns the output of a step into committed tokens, ended sequences and news for clients."""

from collections.abc import Callable
from itertools import compress

import numpy as np

from taco_proto.logprobs import LogprobColumns
from taco_proto.requests import FinishReason
from taco_proto.steps import IntArray, StepOutput
from taco_scheduler.batch import Batch
from taco_scheduler.counters import Counters
from taco_scheduler.in_flight import InFlightStep
from taco_scheduler.sequence import Request, Sequence
from taco_scheduler.stop import StopChecker


class Committer:
    """Commits steps, in their order, for one worker.

    Args:
        landing: preempted sequences that wait for the outputs of steps in flight, by tenure.
        suspects: requests that were in a step that failed; a new token clears them.
        retire: frees what an ended sequence holds.
        requeue: queues a sequence that has landed.
        limit_of: length at which a request's sequences end.
    """

    def __init__(
        self,
        batch: Batch,
        stops: StopChecker,
        landing: dict[int, Sequence],
        suspects: set[Request],
        counters: Counters,
        *,
        retire: Callable[[Sequence], None],
        requeue: Callable[[Sequence], None],
        limit_of: Callable[[Request], int],
    ) -> None:
        self._batch = batch
        self._stops = stops
        self._landing = landing
        self._suspects = suspects
        self._counters = counters
        self._retire = retire
        self._requeue = requeue
        self._limit_of = limit_of

    def commit(self, step: InFlightStep, output: StepOutput, now: float) -> None:
        """`output` has been checked against `step`."""
        if output.prompt_logprobs is not None:
            self._emit_prompt_logprobs(step, output)
        slots, tokens, logprobs = output.slots, output.token_ids, output.logprobs
        owned = self._batch.tenure[slots] == step.sampled_tenures
        if not owned.all():
            # Sequences that ended or were preempted while the step ran.
            for row in np.flatnonzero(~owned).tolist():
                sequence = self._landing.get(int(step.sampled_tenures[row]))
                if sequence is not None:
                    self._land(sequence, int(tokens[row]), _select(logprobs, [row]), now)
            slots, tokens = slots[owned], tokens[owned]
            logprobs = _select(logprobs, np.flatnonzero(owned).tolist())
        if slots.size:
            self._commit_rows(slots, tokens, logprobs, now)

    def _commit_rows(
        self, slots: IntArray, tokens: IntArray, logprobs: LogprobColumns | None, now: float
    ) -> None:
        batch = self._batch
        token_ids = tokens.tolist()
        batch.append_tokens(slots, token_ids)
        reasons = self._stops.finish_reasons(batch, slots, tokens)
        if batch.no_token_yet[slots].any():
            self._note_first_tokens(slots, now)
        self._emit(slots, tokens, reasons, logprobs)
        self._counters.generation_tokens += len(token_ids)
        if self._suspects:
            self._suspects.difference_update(batch.owner(s).request for s in slots.tolist())
        for row in np.flatnonzero(reasons).tolist():
            sequence = batch.owner(int(slots[row]))
            self._note_end(sequence, now)
            self._retire(sequence)

    def _emit(
        self, slots: IntArray, tokens: IntArray, reasons: IntArray, logprobs: LogprobColumns | None
    ) -> None:
        """One row a slot into the outbox of its client."""
        batch = self._batch
        clients = batch.client[slots]
        if (clients == clients[0]).all():
            self._emit_to_client(slots, tokens, reasons, logprobs)
            return
        for client in np.unique(clients):
            rows = np.flatnonzero(clients == client)
            news = _select(logprobs, rows.tolist())
            self._emit_to_client(slots[rows], tokens[rows], reasons[rows], news)

    def _emit_to_client(
        self, slots: IntArray, tokens: IntArray, reasons: IntArray, logprobs: LogprobColumns | None
    ) -> None:
        batch = self._batch
        if reasons.any():
            reason_list = reasons.tolist()
            stop_tokens = np.where(reasons == FinishReason.STOP, tokens, -1).tolist()
        else:
            reason_list, stop_tokens = [0] * len(slots), [-1] * len(slots)
        batch.owner(int(slots[0])).request.outbox.add_tokens(
            batch.handle[slots].tolist(),
            batch.index[slots].tolist(),
            tokens.tolist(),
            reason_list,
            stop_tokens,
            batch.num_cached[slots].tolist(),
            logprobs,
        )

    def _land(
        self, sequence: Sequence, token: int, logprobs: LogprobColumns | None, now: float
    ) -> None:
        """A preempted sequence gets a token of a step that it was in."""
        request = sequence.request
        sequence.tokens.append(token)
        sequence.num_landing -= 1
        reason = self._stops.finish_reason(sequence, self._limit_of(request))
        request.outbox.add_tokens(
            [request.handle],
            [sequence.index],
            [token],
            [reason],
            [token if reason is FinishReason.STOP else -1],
            [sequence.num_cached_tokens or 0],
            logprobs,
        )
        self._counters.generation_tokens += 1
        self._suspects.discard(request)
        if sequence.first_token_time is None:
            self._note_first_token(sequence, now)
        if reason is not FinishReason.RUNNING:
            self._note_end(sequence, now)
            self._retire(sequence)
        elif sequence.num_landing == 0:
            del self._landing[sequence.tenure]
            self._requeue(sequence)

    def _emit_prompt_logprobs(self, step: InFlightStep, output: StepOutput) -> None:
        assert output.prompt_logprobs is not None
        tenures = dict(zip(step.slots.tolist(), step.tenures.tolist(), strict=True))
        slots = output.prompt_logprob_slots.tolist()
        positions = output.prompt_logprob_positions.tolist()
        rows = output.prompt_logprobs.rows()
        for slot, position, row in zip(slots, positions, rows, strict=True):
            sequence = self._batch.sequences[slot]
            if sequence is None or sequence.tenure != tenures[slot]:
                sequence = self._landing.get(tenures[slot])
            # A sequence that was preempted in its prefill computes some positions again.
            if sequence is not None and position == sequence.request.num_prompt_logprobs:
                request = sequence.request
                request.outbox.add_prompt_logprob(request.handle, position, row)
                request.num_prompt_logprobs += 1

    # ------------------------------------------------------------------- times

    def _note_first_tokens(self, slots: IntArray, now: float) -> None:
        for slot in slots[self._batch.no_token_yet[slots]].tolist():
            self._batch.no_token_yet[slot] = False
            self._note_first_token(self._batch.owner(slot), now)

    def _note_first_token(self, sequence: Sequence, now: float) -> None:
        assert sequence.first_run_time is not None
        sequence.first_token_time = now
        self._counters.prefill_seconds.observe(now - sequence.first_run_time)

    def _note_end(self, sequence: Sequence, now: float) -> None:
        assert sequence.first_run_time is not None
        assert sequence.first_token_time is not None
        self._counters.decode_seconds.observe(now - sequence.first_token_time)
        self._counters.inference_seconds.observe(now - sequence.first_run_time)


def _select(columns: LogprobColumns | None, rows: list[int]) -> LogprobColumns | None:
    """Some rows of `columns`, in their order."""
    if columns is None:
        return None
    wanted = set(rows)
    selected = LogprobColumns()
    for row in compress(columns.rows(), (i in wanted for i in range(len(columns.num_entries)))):
        selected.append_row(*row)
    return selected
